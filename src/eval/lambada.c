/* lambada.c -- the last word of a passage, given the rest: split at spaces only, so newlines stay in words. */
#include "eval/jsonl.h"
#include "eval/tasks.h"
#include <stdlib.h>

static hola_status add(struct hl_set *out, struct hl_span text) {
    struct hl_doc *d;
    hola_status st = hl_set_doc(out, &d);
    text = hl_set_keep(out, text);
    if (st != HOLA_OK || !text.p) return st != HOLA_OK ? st : hl_fail(HOLA_ENOMEM, "eval: no memory for a passage");
    int64_t cut = text.n;
    while (cut > 0 && text.p[cut - 1] != ' ') cut--;
    struct hl_request r = {.kind = HL_ASK_LOGLIKELIHOOD, .context = {text.p, cut > 0 ? cut - 1 : 0}};
    if (cut > 0) r.text = (struct hl_span){text.p + cut - 1, text.n - cut + 1}; /* with the space before it */
    else { /* a single word */ char *p = hl_set_bytes(out, text.n + 2);
        if (!p) return hl_fail(HOLA_ENOMEM, "eval: no memory for a passage");
        p[0] = ' ';
        memcpy(p + 1, text.p, (size_t)text.n);
        r.text = (struct hl_span){p, text.n + 1};
    }
    return hl_set_ask(out, &r);
}

static hola_status lines(const struct hl_eval_opts *o, struct hl_set *out) {
    struct hl_map map;
    hola_status st = hl_map_open(&map, out->file);
    for (int64_t at = 0; st == HOLA_OK && at < map.size && !hl_set_full(out, o);) {
        const char *end = memchr(map.data + at, '\n', (size_t)(map.size - at));
        const int64_t len = end ? end - map.data - at : map.size - at;
        if (len > 0) st = add(out, (struct hl_span){map.data + at, len});
        at += len + 1;
    }
    hl_map_close(&map);
    return st;
}

hola_status hl_lambada_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    struct hl_rowfile f;
    const size_t n = strlen(out->file);
    (void)t;
    if (n > 4 && strcmp(out->file + n - 4, ".txt") == 0) return lines(o, out);
    hola_status st = hl_rowfile_open(&f, out->file);
    while (st == HOLA_OK && !hl_set_full(out, o)) {
        struct hl_span text;
        st = hl_rowfile_next(&f);
        if (st != HOLA_OK || !f.now) break;
        st = hl_row_text(&f, "text", &text);
        if (st == HOLA_OK && text.n == 0) st = hl_row_fail(&f, "\"text\" is empty");
        if (st == HOLA_OK) st = add(out, text);
    }
    hl_rowfile_close(&f);
    return st;
}

void hl_lambada_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    double *acc = malloc((size_t)s->docs * sizeof *acc), *nll = malloc((size_t)s->docs * sizeof *nll);
    (void)t;
    HL_ASSERT(acc && nll);
    for (int64_t i = 0; i < s->docs; i++) acc[i] = a[i].greedy, nll[i] = -a[i].loglikelihood;
    hl_metric_ratio(out, "perplexity", nll, NULL, s->docs, true);
    hl_metric_mean(out, "acc", acc, s->docs);
    free(acc);
    free(nll);
}
