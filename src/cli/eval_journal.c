/* eval_journal.c -- the journal of answers, and the samples file. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval.h"
#include "core/sha256.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lines ---- */

/* Appends a JSON string. */
static void put_string(struct hl_text *t, struct hl_span s) {
    json_t *v = json_stringn(s.p ? s.p : "", (size_t)s.n);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    if (text) hl_text_puts(t, text);
    else t->failed = true;
    free(text);
    json_decref(v);
}

static void put_line(struct hl_text *t, const struct hl_request *r, int64_t i, const struct hl_answer *a) {
    hl_text_printf(t, "{\"i\": %lld, \"ll\": %.17g, \"greedy\": %s, \"tokens\": %lld", (long long)i, a->loglikelihood,
                   a->greedy ? "true" : "false", (long long)a->tokens);
    if (r->kind == HL_ASK_GENERATE) {
        hl_text_puts(t, ", \"output\": ");
        put_string(t, hl_span_text(&a->text));
    }
    if (r->kind == HL_ASK_IDS) {
        hl_text_puts(t, ", \"top\": \"");
        for (int64_t k = 0; k < r->n_ids; k++) hl_text_puts(t, a->top[k] ? "1" : "0");
        hl_text_puts(t, "\"");
    }
    hl_text_puts(t, "}\n");
}

/* Parses a line into an answer; false: invalid. */
static bool take_line(const char *line, int64_t len, const struct hl_set *s, struct hl_answer *a) {
    json_t *v = json_loadb(line, (size_t)len, JSON_REJECT_DUPLICATES, NULL);
    json_int_t i = -1, tokens;
    double ll;
    int greedy;
    const char *output = NULL, *top = NULL;
    bool good = v && json_unpack(v, "{s:I, s:F, s:b, s:I, s?s, s?s}", "i", &i, "ll", &ll, "greedy", &greedy, "tokens",
                                 &tokens, "output", &output, "top", &top) == 0;
    good = good && i >= 0 && i < s->n && !a[i].done;
    if (good) {
        const struct hl_request *r = &s->request[i];
        struct hl_answer y = {.done = true, .greedy = greedy, .loglikelihood = ll, .tokens = tokens};
        if (r->kind == HL_ASK_GENERATE) good = output && hl_text_puts(&y.text, output) == HOLA_OK;
        if (r->kind == HL_ASK_IDS) {
            good = top && strlen(top) == (size_t)r->n_ids && (y.top = calloc((size_t)r->n_ids + 1, sizeof *y.top));
            for (int64_t k = 0; good && k < r->n_ids; k++) y.top[k] = top[k] == '1';
        }
        if (good) a[i] = y;
    }
    json_decref(v);
    return good;
}

/* ---- the file ---- */

static hola_status io_fail(const char *path) { return hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno)); }

/* Reads existing answers; *good: bytes up to the last complete line. */
static hola_status read_back(struct eval_journal *j, const char *head, const struct hl_set *s, struct hl_answer *a,
                             int64_t *good) {
    struct hl_map map = {0};
    const int64_t n = (int64_t)strlen(head);
    *good = 0;
    if (access(j->path, F_OK) != 0) return HOLA_OK;
    if (hl_map_open(&map, j->path) != HOLA_OK) return HOLA_OK; /* empty: killed before the first line */
    hola_status st = HOLA_OK;
    if (map.size >= n && memcmp(map.data, head, (size_t)n) != 0)
        st = hl_fail(HOLA_EFORMAT, "%s: not a file of this evaluation", j->path);
    for (int64_t at = map.size >= n ? n : 0; st == HOLA_OK && at > 0;) {
        const char *end = at < map.size ? memchr(map.data + at, '\n', (size_t)(map.size - at)) : NULL;
        *good = at;
        if (!end) break;
        if (!take_line(map.data + at, end - map.data - at, s, a))
            st = hl_fail(HOLA_EFORMAT, "%s: line %lld is not an answer of this evaluation", j->path,
                         (long long)j->found + 2);
        j->found++;
        at = end + 1 - map.data;
    }
    hl_map_close(&map);
    return st;
}

hola_status eval_journal_open(struct eval_journal *j, const char *dir, const char *task, json_t *settings,
                              const struct hl_set *s, struct hl_answer *a) {
    char key[65], name[256];
    struct hl_sha256 sha;
    int64_t good = 0;
    char *head = settings ? json_dumps(settings, JSON_SORT_KEYS) : NULL;
    struct hl_text line = {0};
    *j = (struct eval_journal){0};
    json_decref(settings);
    hola_status st = head ? hl_make_dirs(dir) : hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    if (st == HOLA_OK) st = hl_text_puts(&line, head);
    if (st == HOLA_OK) st = hl_text_put(&line, "\n", 2) /* including its NUL */;
    if (st == HOLA_OK) {
        hl_sha256_begin(&sha);
        hl_sha256_add(&sha, line.data, line.n);
        hl_sha256_end(&sha, key);
        snprintf(name, sizeof name, "%s-%.12s.jsonl", task, key);
        j->path = hl_path_join(dir, name);
        st = j->path ? read_back(j, line.data, s, a, &good) : hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    }
    if (st == HOLA_OK && !(j->f = fopen(j->path, good ? "r+b" : "wb"))) st = io_fail(j->path);
    if (st == HOLA_OK && good && (ftruncate(fileno(j->f), good) != 0 || fseek(j->f, 0, SEEK_END) != 0))
        st = io_fail(j->path);
    if (st == HOLA_OK && !good && fputs(line.data, j->f) < 0) st = io_fail(j->path);
    free(head);
    free(line.data);
    return st;
}

hola_status eval_journal_put(struct eval_journal *j, const struct hl_request *r, int64_t i, const struct hl_answer *a) {
    struct hl_text t = {0};
    put_line(&t, r, i, a);
    hola_status st = hl_text_status(&t);
    if (st == HOLA_OK && fwrite(t.data, 1, (size_t)t.n, j->f) != (size_t)t.n) st = io_fail(j->path);
    free(t.data);
    return st;
}

hola_status eval_journal_flush(struct eval_journal *j) { return j->f && fflush(j->f) ? io_fail(j->path) : HOLA_OK; }

void eval_journal_close(struct eval_journal *j) {
    if (j->f) fclose(j->f);
    free(j->path);
    *j = (struct eval_journal){0};
}

/* ---- samples ---- */

hola_status eval_samples_add(struct hl_writer *w, const char *model, const char *task, int64_t length,
                             const struct hl_set *s, const struct hl_answer *a) {
    hola_status st = HOLA_OK;
    for (int64_t i = 0; st == HOLA_OK && i < s->n; i++) {
        const struct hl_request *r = &s->request[i];
        const struct hl_doc *d = &s->doc[r->doc];
        json_t *v =
            json_pack("{s:s, s:I, s:I}", "task", task, "doc", (json_int_t)r->doc, "choice", (json_int_t)r->choice);
        if (model) json_object_set_new(v, "model", json_string(model));
        if (length) json_object_set_new(v, "length", json_integer((json_int_t)length));
        if (r->kind == HL_ASK_GENERATE) {
            json_object_set_new(v, "output", json_stringn(a[i].text.data ? a[i].text.data : "", (size_t)a[i].text.n));
            json_object_set_new(v, "target", json_stringn(r->target.p ? r->target.p : "", (size_t)r->target.n));
            json_object_set_new(v, "correct", json_boolean(a[i].score == 1));
        } else {
            json_object_set_new(v, "loglikelihood", json_real(a[i].loglikelihood));
            json_object_set_new(v, "is_greedy", r->kind == HL_ASK_ROLLING ? json_null() : json_boolean(a[i].greedy));
        }
        json_object_set_new(v, "tokens", json_integer((json_int_t)a[i].tokens));
        if (r->kind == HL_ASK_GENERATE || r->kind == HL_ASK_IDS) {
            json_object_set_new(v, "score", json_real(a[i].score));
        } else if (d->n > 1) { /* multiple choice: acc and acc_norm are derived from these */
            json_object_set_new(v, "gold", json_integer((json_int_t)d->gold));
            json_object_set_new(v, "chars", json_integer((json_int_t)r->chars));
        }
        char *text = v ? json_dumps(v, JSON_REAL_PRECISION(17)) : NULL;
        st = text ? hl_writer_write(w, text, (int64_t)strlen(text)) : hl_fail(HOLA_ENOMEM, "no memory for a sample");
        if (st == HOLA_OK) st = hl_writer_write(w, "\n", 1);
        free(text);
        json_decref(v);
    }
    return st;
}
