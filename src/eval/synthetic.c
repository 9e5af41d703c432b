/* synthetic.c -- tasks with generated documents: RULER (ruler.h), the pass-key probes (probe.h), MQAR
 * (mqar_numpy.h). */
#define _POSIX_C_SOURCE 200809L
#include "core/file.h"
#include "eval/mqar_numpy.h"
#include "eval/probe.h"
#include "eval/ruler.h"
#include "eval/tasks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hola_status no_memory(const struct hl_task *t) { return hl_fail(HOLA_ENOMEM, "%s: no memory", t->name); }

/* ---- RULER ---- */

struct ruler {
    enum hl_ruler_task task;
    enum hl_ruler_variant variant;
    struct hl_ruler_set set;
};

static void ruler_free(void *own) {
    struct ruler *r = own;
    hl_ruler_free(&r->set);
    free(r);
}

static hola_status add_sample(const struct hl_task *t, struct hl_set *out, const struct hl_ruler_sample *s,
                              int64_t max_new) {
    struct hl_doc *d;
    struct hl_text prompt = {0}, refs = {0};
    hola_status st = hl_text_printf(&prompt, "%s%s", s->input, s->prefix);
    for (int64_t i = 0; st == HOLA_OK && i < s->n_refs; i++)
        st = hl_text_printf(&refs, "%s%s", i > 0 ? ", " : "", s->refs[i]);
    struct hl_request r = {.kind = HL_ASK_GENERATE, .max_new = max_new, .whole = true, .early = s->n_refs == 1};
    if (st == HOLA_OK)
        r.context = hl_set_keep(out, hl_span_text(&prompt)), r.target = hl_set_keep(out, hl_span_text(&refs));
    if (st == HOLA_OK && (!r.context.p || !r.target.p)) st = no_memory(t);
    if (st == HOLA_OK) st = hl_set_doc(out, &d);
    if (st == HOLA_OK) st = hl_set_ask(out, &r);
    free(prompt.data);
    free(refs.data);
    return st;
}

/* Samples from a file, the first opts.limit of each length. */
static hola_status read_samples(const struct hl_task *t, const struct hl_eval_opts *o, struct ruler *r,
                                struct hl_set *out) {
    out->file = strdup(o->prompts);
    hola_status st = out->file ? hl_ruler_read(o->prompts, r->task, &r->set) : no_memory(t);
    if (st == HOLA_OK) st = hl_set_hash(out);
    if (st == HOLA_OK && o->limit) hl_ruler_limit(&r->set, o->limit);
    out->note = "prompts of a file";
    return st;
}

static hola_status too_long(const struct hl_task *t, const struct hl_eval_opts *o, int64_t length) {
    return hl_fail(
        HOLA_EINVAL,
        "%s: prompts of %lld tokens exceed max_length %lld; use --max-length %lld, or --truncate to cut them", t->name,
        (long long)length, (long long)o->max_length, (long long)length);
}

static hola_status make_samples(const struct hl_task *t, const struct hl_eval_opts *o, struct ruler *r) {
    char *data = o->data ? hl_path_join(o->data, "ruler") : NULL;
    struct hl_ruler_opts how = hl_ruler_default();
    if (!data) return hl_fail(HOLA_EINVAL, "%s: --data DIR is required", t->name);
    how.task = r->task, how.variant = r->variant, how.seed = o->seed, how.tokenizer = o->tokenizer;
    how.data = data, how.bos = o->bos == HL_BOS_NEVER ? 0 : -1;
    if (o->length) how.length = o->length;
    if (o->limit) how.samples = o->limit;
    hola_status st =
        how.length > o->max_length && !o->truncate ? too_long(t, o, how.length) : hl_ruler_make(&how, &r->set);
    free(data);
    return st;
}

hola_status hl_ruler_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    struct ruler *r = calloc(1, sizeof *r);
    if (!r) return no_memory(t);
    out->own = r, out->own_free = ruler_free;
    HL_ASSERT(hl_ruler_find(t->name, &r->task));
    r->variant = o->nvidia ? HL_RULER_NVIDIA : HL_RULER_HARNESS;
    if (o->nvidia) out->note = "NVIDIA's variant";
    hola_status st = o->prompts ? read_samples(t, o, r, out) : make_samples(t, o, r);
    for (int64_t i = 0; st == HOLA_OK && i < r->set.n; i++)
        st = add_sample(t, out, &r->set.sample[i], hl_ruler_max_new_tokens(r->task));
    return st;
}

hola_status hl_ruler_task_dump(const struct hl_task *t, const struct hl_set *s, struct hl_text *out) {
    (void)t;
    return hl_ruler_write(((const struct ruler *)s->own)->task, &((const struct ruler *)s->own)->set, out);
}

/* A figure for each length, named by it as in the harness. */
void hl_ruler_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    const struct ruler *r = s->own;
    const struct hl_ruler_sample *sample = r->set.sample;
    double *x = malloc((size_t)s->docs * sizeof *x);
    (void)t;
    HL_ASSERT(x);
    for (int64_t i = 0; i < s->docs; i++)
        a[i].score = hl_ruler_score(r->task, r->variant, a[i].text.data ? a[i].text.data : "", a[i].text.n, &sample[i]);
    for (int64_t i = 0; i < s->docs; i++) {
        int64_t n = 0;
        bool seen = false;
        for (int64_t k = 0; k < s->docs; k++) {
            if (sample[k].max_length != sample[i].max_length) continue;
            seen = seen || k < i;
            x[n++] = a[k].score;
        }
        if (seen || out->count == HL_METRICS) continue;
        char name[32];
        snprintf(name, sizeof name, "%lld", (long long)sample[i].max_length);
        hl_metric_mean(out, name, x, n);
    }
    free(x);
}

/* ---- pass keys ---- */

struct probes { /* one for each document */
    struct hl_probe *probe;
    int *kind; /* of a depth, or of a number of keys */
    int64_t n, room;
};
static const int key_counts[] = {1, 2, 4, 8, 16};
enum { KEY_COUNTS = sizeof key_counts / sizeof *key_counts };

static void probes_free(void *own) {
    struct probes *p = own;
    for (int64_t i = 0; i < p->n; i++) hl_probe_free(&p->probe[i]);
    free(p->probe);
    free(p->kind);
    free(p);
}

static hola_status probes_new(const struct hl_task *t, struct hl_set *out, int64_t room) {
    struct probes *p = calloc(1, sizeof *p);
    if (!p) return no_memory(t);
    out->own = p, out->own_free = probes_free;
    p->room = room;
    p->probe = calloc((size_t)room, sizeof *p->probe), p->kind = calloc((size_t)room, sizeof *p->kind);
    return p->probe && p->kind ? HOLA_OK : no_memory(t);
}

/* Every token of the answer is predicted. */
static hola_status ask_probe(const struct hl_task *t, struct hl_set *out, const struct hl_probe *p) {
    struct hl_doc *d;
    int32_t *next = hl_set_bytes(out, p->n * (int64_t)sizeof *next);
    hola_status st = next ? hl_set_doc(out, &d) : no_memory(t);
    for (int64_t i = 0; st == HOLA_OK && i + 1 < p->n; i++) next[i] = i + 1 < p->answer ? -1 : p->ids[i + 1];
    const struct hl_request r = {.kind = HL_ASK_IDS, .ids = p->ids, .next = next, .n_ids = p->n - 1};
    return st == HOLA_OK ? hl_set_ask(out, &r) : st;
}

hola_status hl_passkey_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    const int64_t samples = o->limit ? o->limit : HL_PROBE_SAMPLES, length = o->length ? o->length : 4096;
    int64_t fillers = length / 25;
    hola_status st = probes_new(t, out, samples * HL_PROBE_DEPTHS);
    struct probes *p = out->own;
    for (int64_t i = 0; st == HOLA_OK && i < samples; i++)
        for (int depth = 0; st == HOLA_OK && depth < HL_PROBE_DEPTHS; depth++) {
            st = hl_probe_pk(&p->probe[p->n], o->tokenizer, length, depth, i, &fillers);
            p->kind[p->n] = depth;
            if (st == HOLA_OK) st = ask_probe(t, out, &p->probe[p->n++]);
        }
    return st;
}

hola_status hl_multikey_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    const int64_t samples = o->limit ? o->limit : HL_PROBE_CONTEXTS, length = o->length ? o->length : 512;
    hola_status st = probes_new(t, out, samples * (1 + 2 + 4 + 8 + 16));
    struct probes *p = out->own;
    for (int k = 0; st == HOLA_OK && k < KEY_COUNTS; k++) {
        int64_t fillers = length / 25;
        for (int64_t i = 0; st == HOLA_OK && i < samples; i++) {
            const int64_t first = p->n;
            st = hl_probe_mk(&p->probe[first], o->tokenizer, length, key_counts[k], i, &fillers);
            if (st == HOLA_OK) p->n += key_counts[k];
            for (int64_t q = first; st == HOLA_OK && q < p->n; q++) {
                p->kind[q] = k;
                st = ask_probe(t, out, &p->probe[q]);
            }
        }
    }
    return st;
}

/* Per document: fraction of right digits, of right tokens, and whether all digits are right. */
struct hits {
    double *digits, *tokens, *exact; /* [documents] */
};
static void hits_free(struct hits *h) { free(h->digits), free(h->tokens), free(h->exact); }
static struct hits count_hits(const struct hl_set *s, struct hl_answer *a) {
    const struct probes *p = s->own;
    const size_t bytes = (size_t)s->docs * sizeof(double);
    struct hits h = {malloc(bytes), malloc(bytes), malloc(bytes)};
    HL_ASSERT(h.digits && h.tokens && h.exact);
    for (int64_t i = 0; i < s->docs; i++) {
        const struct hl_probe *b = &p->probe[i];
        struct hl_probe_tally tally = {0};
        int32_t *argmax = malloc((size_t)(b->n - b->answer) * sizeof *argmax);
        HL_ASSERT(argmax);
        for (int64_t k = b->answer; k < b->n; k++) argmax[k - b->answer] = a[i].top[k - 1] ? b->ids[k] : -1;
        hl_probe_score(b, argmax, &tally);
        h.digits[i] = a[i].score = (double)tally.digits_right / (double)tally.digits;
        h.tokens[i] = (double)tally.tokens_right / (double)tally.tokens;
        h.exact[i] = (double)tally.exact;
        free(argmax);
    }
    return h;
}

static const double DIGIT = 0.1; /* of ten digits, one is right by chance */

/* The mean of one kind of documents, in digits. */
static void mean_of_kind(struct hl_metrics *out, const char *name, const struct hl_set *s, const double *x, int kind) {
    const struct probes *p = s->own;
    double *some = malloc((size_t)s->docs * sizeof *some);
    int64_t n = 0;
    HL_ASSERT(some);
    for (int64_t i = 0; i < s->docs; i++)
        if (p->kind[i] == kind) some[n++] = x[i];
    hl_metric_mean(out, name, some, n);
    hl_metric_chance(out, DIGIT);
    free(some);
}

void hl_passkey_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    static const char *const names[HL_PROBE_DEPTHS] = {"far", "depth_0.3", "depth_0.5", "depth_0.7", "depth_0.9"};
    struct hits h = count_hits(s, a);
    (void)t;
    hl_metric_mean(out, "acc", h.digits, s->docs);
    hl_metric_chance(out, DIGIT);
    for (int d = 0; d < HL_PROBE_DEPTHS; d++) mean_of_kind(out, names[d], s, h.digits, d);
    hl_metric_mean(out, "acc_tokens", h.tokens, s->docs);
    hl_metric_mean(out, "exact_match", h.exact, s->docs);
    hits_free(&h);
}

void hl_multikey_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    static const char *const names[KEY_COUNTS] = {"keys_1", "keys_2", "keys_4", "keys_8", "keys_16"};
    struct hits h = count_hits(s, a);
    (void)t;
    for (int k = 0; k < KEY_COUNTS; k++) mean_of_kind(out, names[k], s, h.digits, k);
    hl_metric_mean(out, "acc_tokens", h.tokens, s->docs);
    hl_metric_mean(out, "exact_match", h.exact, s->docs);
    hits_free(&h);
}

/* ---- MQAR ---- */

hola_status hl_mqar_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    const int64_t examples = o->limit ? o->limit : 1000;
    struct hl_mqar m = hl_mqar_default();
    m.random_non_queries = false; /* as in Zoology's Figure 2: 64/4, 128/8, 256/16 tokens and pairs */
    if (o->length) m.length = o->length, m.pairs = o->length / 16;
    hola_status st = hl_mqar_check(&m);
    int32_t *ids = st == HOLA_OK ? hl_set_bytes(out, examples * m.length * (int64_t)sizeof *ids) : NULL;
    int32_t *next = ids ? hl_set_bytes(out, examples * m.length * (int64_t)sizeof *next) : NULL;
    if (st == HOLA_OK && !next) st = no_memory(t);
    if (st == HOLA_OK) st = hl_mqar_numpy_make(&m, o->seed < 0 ? 0 : (uint32_t)o->seed, 0, examples, ids, next);
    for (int64_t i = 0; st == HOLA_OK && i < examples; i++) {
        struct hl_doc *d;
        const struct hl_request r = {
            .kind = HL_ASK_IDS, .ids = ids + i * m.length, .next = next + i * m.length, .n_ids = m.length};
        st = hl_set_doc(out, &d);
        if (st == HOLA_OK) st = hl_set_ask(out, &r);
    }
    return st;
}

void hl_mqar_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out) {
    double *x = malloc((size_t)s->docs * sizeof *x);
    (void)t;
    HL_ASSERT(x);
    for (int64_t i = 0; i < s->docs; i++) {
        int64_t right = 0;
        for (int64_t k = 0; k < s->request[i].n_ids; k++) right += a[i].top[k];
        x[i] = a[i].score = (double)right / (double)a[i].tokens;
    }
    hl_metric_mean(out, "acc", x, s->docs);
    free(x);
}
