/* cache_view_report.c -- hola inspect --memory: reads a text and reports what the heads keep of it. See
 * cache_view.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cache_view.h"
#include "cli/terminal.h"
#include "ops/cache/policy.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const cache_view_colors[] = {"auto", "always", "never", NULL};

/* ---- the text of tokens ---- */

/* Length of the UTF-8 character at s; 0: invalid or not printable. */
static int utf8_length(const unsigned char *s, int64_t n) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const int len = s[0] < 0x80             ? 1
                    : (s[0] & 0xe0) == 0xc0 ? 2
                    : (s[0] & 0xf0) == 0xe0 ? 3
                    : (s[0] & 0xf8) == 0xf0 ? 4
                                            : 0;
    uint32_t c = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    if (len == 0 || len > n) return 0;
    for (int i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    return c < 0x20 || (c >= 0x7f && c < 0xa0) ? 0 : len;
}

/* Printable text for n bytes, malloced: anything else is written as
 * , \t or \xNN. */
static char *printable(const char *bytes, int64_t n) {
    char *out = malloc((size_t)n * 4 + 1), *to = out;
    for (int64_t i = 0; out && i < n;) {
        const unsigned char *s = (const unsigned char *)bytes + i;
        const int len = utf8_length(s, n - i);
        if (len > 0) memcpy(to, s, (size_t)len), to += len;
        else if (*s == '\n' || *s == '\t') *to++ = '\\', *to++ = *s == '\n' ? 'n' : 't';
        else to += sprintf(to, "\\x%02x", *s);
        i += len > 0 ? len : 1;
    }
    if (out) *to = 0;
    return out;
}

/* Token i's bytes in context: tokenizers may drop a leading space, so the previous token is decoded too and its text
 * removed. */
static char *token_text(const hola_tokenizer *t, const int32_t *ids, int64_t i) {
    char *both = NULL, *before = NULL, *text = NULL, name[32];
    int64_t n = 0, skip = 0;
    const int64_t from = i > 0 ? i - 1 : i;
    snprintf(name, sizeof name, "[%d]", (int)ids[i]);
    if (t && ids[i] == hola_tokenizer_eos(t)) snprintf(name, sizeof name, "</s>");
    if (t && ids[i] == hola_tokenizer_bos(t)) snprintf(name, sizeof name, "<s>");
    if (t && hola_tokenizer_decode(t, ids + from, i + 1 - from, &both, &n) == HOLA_OK &&
        (i == 0 || hola_tokenizer_decode(t, ids + from, 1, &before, &skip) == HOLA_OK) && n > skip)
        text = printable(both + skip, n - skip);
    else text = printable(name, (int64_t)strlen(name));
    free(both);
    free(before);
    return text;
}

/* ---- figures ---- */

bool cache_view_recent(const struct cache_view_report *r, int64_t pos) {
    const int64_t closed = r->view.n / r->cfg->cache_chunk * r->cfg->cache_chunk;
    return pos < closed && pos >= closed - r->cfg->cache_window;
}

/* Every token's surprise relative to the text's mean, over the selected heads; the caller frees it. */
static double *heat_of(const struct cache_view_report *r) {
    const int64_t n = r->view.n;
    double *heat = calloc((size_t)n, sizeof *heat), heads = 0;
    for (int64_t i = 0; heat && i < r->view.layers * r->view.heads; i++)
        heads += cache_view_chosen(r, i / r->view.heads, i % r->view.heads);
    for (int64_t i = 0; heat && i < r->view.layers * r->view.heads; i++) {
        const float *m = r->view.head[i].m;
        double sum = 0;
        if (!cache_view_chosen(r, i / r->view.heads, i % r->view.heads)) continue;
        for (int64_t t = 0; t < n; t++) sum += (double)m[t];
        for (int64_t t = 0; sum > 0 && t < n; t++) heat[t] += (double)m[t] * (double)n / sum / heads;
    }
    return heat;
}

/* The score that the i-th kept token is ranked by; its surprise if the policy uses positions. */
static double rank_by(const struct cache_view_report *r, const struct hl_cache_view_head *h, int64_t i) {
    return (double)(hl_evict_score_name(r->cfg->cache_evict) ? h->score[i] : h->m[h->pos[i]]);
}
static bool ranks_by_layer(const struct cache_view_report *r) {
    return r->cfg->cache_layer_set && hl_evict_score_name(r->cfg->cache_evict);
}
struct rank_name {
    char text[16];
};
static struct rank_name rank_name(const struct cache_view_report *r) {
    const char *name = hl_evict_score_name(r->cfg->cache_evict);
    struct rank_name n;
    snprintf(n.text, sizeof n.text, ranks_by_layer(r) ? "|%s|" : "%s", name ? name : "m");
    return n;
}

struct summary {
    double min, max, age, recent; /* of the kept tokens: score, mean age, fraction that recency would keep */
    double kept, block, sink;     /* where the query's weight goes */
};
static struct summary sum_up(const struct cache_view_report *r, const struct hl_cache_view_head *h) {
    struct summary s = {.min = INFINITY, .max = -INFINITY, .sink = (double)h->p_sink};
    for (int64_t i = 0; i < h->kept; i++) {
        s.min = fmin(s.min, rank_by(r, h, i));
        s.max = fmax(s.max, rank_by(r, h, i));
        s.age += (double)(r->view.n - h->pos[i]) / (double)h->kept;
        s.recent += cache_view_recent(r, h->pos[i]) / (double)h->kept;
    }
    for (int64_t i = 0; i < h->seen; i++) *(i < h->seen_kept ? &s.kept : &s.block) += (double)h->p[i];
    return s;
}

/* The query's weight on a kept token; 0 if it was not in the memory at that time. */
static double read_at(const struct hl_cache_view_head *h, int64_t pos) {
    for (int64_t i = 0; i < h->seen; i++)
        if (h->seen_pos[i] == pos) return (double)h->p[i];
    return 0;
}

/* ---- on the terminal ---- */

static void print_heat(const struct cache_view_report *r, const double *heat) {
    static const int shades[] = {0, 229, 222, 215, 208, 202, 196}; /* of the 256-colour palette; below 1: none */
    enum { SHADES = sizeof shades / sizeof shades[0] };
    printf("\nThe text, by surprise against its mean (1.0 to %.1f times and more):\n", 1 + 0.5 * (SHADES - 2));
    for (int64_t t = 0; t < r->view.n; t++) {
        const double above = heat[t] < 1 ? -1 : (heat[t] - 1) / 0.5;
        const int level = above < 0 ? 0 : above < SHADES - 2 ? 1 + (int)above : SHADES - 1;
        const bool line = !strcmp(r->text[t], "\\n");
        if (level) printf("\033[48;5;%dm\033[30m%s\033[0m", shades[level], r->text[t]);
        else fputs(line ? "" : r->text[t], stdout);
        if (line) putchar('\n');
    }
    putchar('\n');
}

struct ranked {
    int64_t pos;
    double by;
};
static int larger_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->by != y->by ? (x->by < y->by) - (x->by > y->by) : (x->pos > y->pos) - (x->pos < y->pos);
}

/* A head's first tokens follow its figures, which take 76 columns. */
static bool shows_tokens(void) { return !isatty(STDOUT_FILENO) || terminal_columns(STDOUT_FILENO) >= 100; }

static void print_head_row(const struct cache_view_report *r, int64_t l, int64_t h, struct ranked *rank) {
    const struct hl_cache_view_head *x = cache_view_head(r, l, h);
    const struct summary s = sum_up(r, x);
    printf("%5" PRId64 " %4" PRId64 " %4" PRId64, l, h, x->kept);
    if (x->kept) printf(" %8.3g %8.3g %8.0f %6.0f%%", s.min, s.max, s.age, 100 * s.recent);
    else printf(" %8s %8s %8s %7s", "-", "-", "-", "-");
    printf("  %6.3f %5.3f %5.3f %5.3f", s.kept, s.block, s.sink, (double)x->gate);
    for (int64_t i = 0; i < x->kept; i++) rank[i] = (struct ranked){x->pos[i], rank_by(r, x, i)};
    qsort(rank, (size_t)x->kept, sizeof *rank, larger_first);
    for (int64_t i = 0; i < x->kept && i < 6 && shows_tokens(); i++) printf(" |%s|", r->text[rank[i].pos]);
    putchar('\n');
}

static void print_kept(const struct cache_view_report *r, const struct hl_cache_view_head *x, struct ranked *rank) {
    printf("\n%10s %10s %10s %10s %10s %10s  %s\n", "position", "age", "m", rank_name(r).text, "query", "latest",
           "token");
    for (int64_t i = 0; i < x->kept; i++) rank[i] = (struct ranked){x->pos[i], rank_by(r, x, i)};
    qsort(rank, (size_t)x->kept, sizeof *rank, larger_first);
    for (int64_t i = 0; i < x->kept && i < r->opts->top; i++)
        printf("%10" PRId64 " %10" PRId64 " %10.4g %10.4g %10.4f %10s  |%s|\n", rank[i].pos, r->view.n - rank[i].pos,
               (double)x->m[rank[i].pos], rank[i].by, read_at(x, rank[i].pos),
               cache_view_recent(r, rank[i].pos) ? "yes" : "-", r->text[rank[i].pos]);
}

static void print_report(const struct cache_view_report *r, const double *heat, struct ranked *rank) {
    const struct cache_view_opts *o = r->opts;
    const char *term = getenv("TERM");
    printf("%" PRId64 " tokens; %" PRId64 " layers x %" PRId64 " heads keep up to %" PRId64
           " of them each (%s), in blocks of %" PRId64 ".\nThe query is token %" PRId64 ", |%s|.\n",
           r->view.n, r->view.layers, r->view.heads, r->cfg->cache_window, hola_evict_name(r->cfg->cache_evict),
           r->cfg->cache_chunk, r->view.query, r->text[r->view.query]);
    if (r->cfg->cache_redundancy > 0)
        printf("A key whose cosine with that of a better token is above %g is kept last.\n", r->cfg->cache_redundancy);
    if (ranks_by_layer(r)) printf("The heads of a layer keep the same tokens, ranked by the norm of their scores.\n");
    if (r->cfg->cache_gate_token) printf("Every token has its own gates: these are the query's.\n");
    if (o->color == CACHE_VIEW_COLOR_ALWAYS ||
        (o->color == CACHE_VIEW_COLOR_AUTO && isatty(1) && !(term && !strcmp(term, "dumb"))))
        print_heat(r, heat);
    printf("\nKept tokens, ranked by %-27s  The query reads from\n", rank_name(r).text);
    printf("%5s %4s %4s %8s %8s %8s %7s  %6s %5s %5s %5s%s\n", "layer", "head", "kept", "least", "most", "mean age",
           "latest", "memory", "block", "sink", "gate", shows_tokens() ? "  the first" : "");
    for (int64_t l = 0; l < r->view.layers; l++)
        for (int64_t h = 0; h < r->view.heads; h++)
            if (cache_view_chosen(r, l, h)) print_head_row(r, l, h, rank);
    if (o->layer >= 0 && o->head >= 0) print_kept(r, cache_view_head(r, o->layer, o->head), rank);
}

/* ---- JSON ---- */

static json_t *head_json(const struct cache_view_report *r, int64_t l, int64_t h) {
    const struct hl_cache_view_head *x = cache_view_head(r, l, h);
    json_t *kept = json_array(), *read = json_array(), *m = json_array();
    for (int64_t i = 0; i < x->kept; i++)
        json_array_append_new(kept, json_pack("{s:I, s:I, s:f, s:f, s:b, s:f}", "position", (json_int_t)x->pos[i],
                                              "age", (json_int_t)(r->view.n - x->pos[i]), "m", (double)x->m[x->pos[i]],
                                              "score", (double)x->score[i], "recency",
                                              (int)cache_view_recent(r, x->pos[i]), "alike", (double)x->alike[i]));
    for (int64_t i = 0; i < x->seen; i++)
        json_array_append_new(read, json_pack("{s:I, s:f, s:b}", "position", (json_int_t)x->seen_pos[i], "p",
                                              (double)x->p[i], "kept", (int)(i < x->seen_kept)));
    for (int64_t t = 0; t < r->view.n; t++) json_array_append_new(m, cli_json_number((double)x->m[t]));
    return json_pack("{s:I, s:I, s:o, s:o, s:f, s:f, s:f, s:o}", "layer", (json_int_t)l, "head", (json_int_t)h, "kept",
                     kept, "read", read, "sink", (double)x->p_sink, "gate", (double)x->gate, "added", (double)x->added,
                     "m", m);
}

static int print_json(const struct cache_view_report *r) {
    json_t *tokens = json_array(), *heads = json_array();
    for (int64_t t = 0; t < r->view.n; t++)
        json_array_append_new(tokens, json_pack("{s:i, s:s}", "id", (int)r->ids[t], "text", r->text[t]));
    for (int64_t l = 0; l < r->view.layers; l++)
        for (int64_t h = 0; h < r->view.heads; h++)
            if (cache_view_chosen(r, l, h)) json_array_append_new(heads, head_json(r, l, h));
    return cli_print_json(
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:I, s:o, s:o}", "evict", hola_evict_name(r->cfg->cache_evict),
                  "ranked_by", hl_evict_score_name(r->cfg->cache_evict) ? rank_name(r).text : "position", "window",
                  (json_int_t)r->cfg->cache_window, "chunk", (json_int_t)r->cfg->cache_chunk, "redundancy",
                  r->cfg->cache_redundancy, "query", (json_int_t)r->view.query, "tokens", tokens, "heads", heads));
}

/* ---- the command ---- */

static int read_ids(const struct cache_view_opts *o, const char *dir, int64_t vocab, int32_t **ids, int64_t *n) {
    if (o->ids) return cli_ids_read(o->ids, vocab, ids, n);
    return cli_ids_encode(o->tokenizer ? o->tokenizer : dir, o->file, vocab, ids, n);
}

static int report(struct cache_view_report *r, hola_model *m, const char *dir, int64_t n) {
    const struct cache_view_opts *o = r->opts;
    hola_tokenizer *t = NULL;
    struct ranked *rank = malloc((size_t)(r->cfg->cache_window + 1) * sizeof *rank);
    double *heat = NULL;
    int rc = CLI_OK;
    r->text = calloc((size_t)n, sizeof *r->text);
    /* without a tokenizer, tokens are shown by id */
    if (hola_tokenizer_load(&t, o->tokenizer ? o->tokenizer : dir) != HOLA_OK && !o->ids) rc = cli_fail_library();
    for (int64_t i = 0; rc == CLI_OK && r->text && i < n; i++)
        if (!(r->text[i] = token_text(t, r->ids, i))) rc = cli_fail("no memory for the text");
    if (rc == CLI_OK && (!r->text || !rank)) rc = cli_fail("no memory for %" PRId64 " tokens", n);
    if (rc == CLI_OK && hl_cache_view_make(&r->view, m, r->ids, n, o->query < 0 ? n - 1 : o->query) != HOLA_OK)
        rc = cli_fail_library();
    if (rc == CLI_OK && o->html) rc = cache_view_page_write(r, o->html);
    if (rc == CLI_OK && o->json) rc = print_json(r);
    else if (rc == CLI_OK && !(heat = heat_of(r))) rc = cli_fail("no memory for %" PRId64 " tokens", n);
    else if (rc == CLI_OK) print_report(r, heat, rank);
    for (int64_t i = 0; r->text && i < n; i++) free(r->text[i]);
    free(r->text);
    free(rank);
    free(heat);
    hl_cache_view_free(&r->view);
    hola_tokenizer_free(t);
    return rc;
}

int cache_view_inspect(hola_model *m, const char *dir, const struct cache_view_opts *o) {
    struct cache_view_report r = {.opts = o, .cfg = hola_model_config(m)};
    int32_t *ids = NULL;
    int64_t n = 0;
    if (o->layer >= r.cfg->num_hidden_layers || o->head >= r.cfg->num_v_heads)
        return cli_fail("the model has %" PRId64 " layers x %" PRId64 " heads", r.cfg->num_hidden_layers,
                        r.cfg->num_v_heads);
    int rc = read_ids(o, dir, r.cfg->vocab_size, &ids, &n);
    r.ids = ids;
    if (rc == CLI_OK && o->query >= n)
        rc = cli_fail("--query %" PRId64 ": the text has %" PRId64 " tokens", o->query, n);
    if (rc == CLI_OK) rc = report(&r, m, dir, n);
    free(ids);
    return rc;
}
