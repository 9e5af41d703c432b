/* cache_view_page.c -- the page of hola inspect --memory: cache_view.html with the data in its place. */
#include "cli/cache_view.h"
#include "core/file.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* the page itself, as a file that a browser shows and an editor knows */
__asm__(".pushsection .rodata\n"
        ".local cache_view_html\ncache_view_html: .incbin \"src/cli/cache_view.html\"\n"
        ".local cache_view_html_end\ncache_view_html_end: .byte 0\n"
        ".popsection\n");
extern const char cache_view_html[] __attribute__((visibility("hidden")));
extern const char cache_view_html_end[] __attribute__((visibility("hidden")));

/* as many numbers as a browser takes without trouble: 128 MiB */
enum { MOST_NUMBERS = 1 << 25 };

static char *base64(const void *data, int64_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = data;
    char *out = malloc((size_t)(n + 2) / 3 * 4 + 1), *to = out;
    for (int64_t i = 0; out && i < n; i += 3) {
        const int have = n - i < 3 ? (int)(n - i) : 3;
        const uint32_t x = (uint32_t)s[i] << 16 | (have > 1 ? (uint32_t)s[i + 1] << 8 : 0) | (have > 2 ? s[i + 2] : 0);
        for (int d = 0; d < 4; d++) *to++ = d <= have ? digits[x >> (18 - 6 * d) & 63] : '=';
    }
    if (out) *to = 0;
    return out;
}

static json_t *integers(const int64_t *x, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)x[i]));
    return list;
}
static json_t *numbers(const float *x, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real((double)x[i]));
    return list;
}

/* The data that cache_view.html reads, as text; NULL: no memory. */
static char *page_data(const struct cache_view_report *r) {
    const struct hl_cache_view *v = &r->view;
    const int64_t heads = v->layers * v->heads;
    json_t *tokens = json_array(), *kept = json_array(), *read = json_array();
    float *m = malloc((size_t)(heads * v->n) * sizeof *m);
    for (int64_t t = 0; t < v->n; t++) json_array_append_new(tokens, json_string(r->text[t]));
    for (int64_t i = 0; i < heads; i++) {
        const struct hl_cache_view_head *h = &v->head[i];
        json_array_append_new(kept, integers(h->pos, h->kept));
        json_array_append_new(read, json_pack("{s:o, s:o, s:I, s:f, s:f}", "pos", integers(h->seen_pos, h->seen), "p",
                                              numbers(h->p, h->seen), "kept", (json_int_t)h->seen_kept, "sink",
                                              (double)h->p_sink, "gate", (double)h->gate));
        if (m) memcpy(m + i * v->n, h->m, (size_t)v->n * sizeof *m);
    }
    char *packed = m ? base64(m, heads * v->n * (int64_t)sizeof *m) : NULL;
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:s}", "evict", hola_evict_name(r->cfg->cache_evict),
                  "window", (json_int_t)r->cfg->cache_window, "chunk", (json_int_t)r->cfg->cache_chunk, "layers",
                  (json_int_t)v->layers, "heads", (json_int_t)v->heads, "query", (json_int_t)v->query, "tokens", tokens,
                  "kept", kept, "read", read, "m", packed ? packed : "");
    char *text = root && packed ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(root);
    free(packed);
    free(m);
    return text;
}

/* '<' could end the script element that holds the data. */
static hola_status write_data(struct hl_writer *w, const char *s) {
    hola_status st = HOLA_OK;
    while (*s && st == HOLA_OK) {
        const size_t run = strcspn(s, "<");
        if (run) st = hl_writer_write(w, s, (int64_t)run);
        s += run;
        if (*s == '<' && st == HOLA_OK) st = hl_writer_write(w, "\\u003c", 6), s++;
    }
    return st;
}

int cache_view_page_write(const struct cache_view_report *r, const char *path) {
    static const char mark[] = "@DATA@";
    const int64_t numbers = r->view.layers * r->view.heads * r->view.n;
    if (numbers > MOST_NUMBERS)
        return cli_fail("%s: %" PRId64 " tokens x %" PRId64 " heads are too many for a page (%d numbers at most)", path,
                        r->view.n, r->view.layers * r->view.heads, MOST_NUMBERS);
    const char *hole = strstr(cache_view_html, mark), *rest = hole + sizeof mark - 1;
    char *data = page_data(r);
    struct hl_writer w;
    if (!data) return cli_fail("%s: no memory for the page", path);
    hola_status s = hl_writer_open(&w, path);
    if (s == HOLA_OK) s = hl_writer_write(&w, cache_view_html, hole - cache_view_html);
    if (s == HOLA_OK) s = write_data(&w, data);
    if (s == HOLA_OK) s = hl_writer_write(&w, rest, cache_view_html_end - rest);
    if (s == HOLA_OK) s = hl_writer_commit(&w);
    else hl_writer_abort(&w);
    free(data);
    return s == HOLA_OK ? CLI_OK : cli_fail_library();
}
