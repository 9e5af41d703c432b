/* ruler.c -- see ruler.h: names, the search for the haystack size, and the samples. */
#include "eval/ruler.h"
#include "eval/ruler_internal.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *other; /* other: NVIDIA's, where it is not the same */
    const struct hl_ruler_kind *kind;
    int64_t tokens;
} tasks[HL_RULER_TASKS] = {
    [HL_NIAH_SINGLE_1] = {"niah_single_1", "", &hl_ruler_niah, 128},
    [HL_NIAH_SINGLE_2] = {"niah_single_2", "", &hl_ruler_niah, 128},
    [HL_NIAH_SINGLE_3] = {"niah_single_3", "", &hl_ruler_niah, 128},
    [HL_NIAH_MULTIKEY_1] = {"niah_multikey_1", "", &hl_ruler_niah, 128},
    [HL_NIAH_MULTIKEY_2] = {"niah_multikey_2", "", &hl_ruler_niah, 128},
    [HL_NIAH_MULTIKEY_3] = {"niah_multikey_3", "", &hl_ruler_niah, 128},
    [HL_NIAH_MULTIVALUE] = {"niah_multivalue", "", &hl_ruler_niah, 128},
    [HL_NIAH_MULTIQUERY] = {"niah_multiquery", "", &hl_ruler_niah, 128},
    [HL_RULER_VT] = {"ruler_vt", "vt", &hl_ruler_vt, 30},
    [HL_RULER_CWE] = {"ruler_cwe", "cwe", &hl_ruler_cwe, 120},
    [HL_RULER_FWE] = {"ruler_fwe", "fwe", &hl_ruler_fwe, 50},
    [HL_RULER_QA_SQUAD] = {"ruler_qa_squad", "qa_1", &hl_ruler_qa, 32},
    [HL_RULER_QA_HOTPOT] = {"ruler_qa_hotpot", "qa_2", &hl_ruler_qa, 32},
};

const char *hl_ruler_name(enum hl_ruler_task t) { return tasks[t].name; }
int64_t hl_ruler_max_new_tokens(enum hl_ruler_task t) { return tasks[t].tokens; }

bool hl_ruler_find(const char *name, enum hl_ruler_task *t) {
    for (int i = 0; i < HL_RULER_TASKS; i++)
        if (strcmp(name, tasks[i].name) == 0 || (*tasks[i].other && strcmp(name, tasks[i].other) == 0))
            return *t = (enum hl_ruler_task)i, true;
    return false;
}

struct hl_ruler_opts hl_ruler_default(void) {
    return (struct hl_ruler_opts){.length = 4096, .samples = 100, .seed = -1, .bos = -1};
}

/* ---- drafts ---- */

void hl_draft_clear(struct hl_draft *d) {
    for (int64_t i = 0; i < d->n_refs; i++) free(d->refs[i]);
    d->n_refs = 0;
    d->failed = false;
    d->cut = -1;
    hl_text_clear(&d->text);
    hl_text_clear(&d->head);
    hl_text_clear(&d->tail);
    hl_text_clear(&d->prefix);
}

void hl_draft_free(struct hl_draft *d) {
    hl_draft_clear(d);
    free(d->refs);
    hl_text_free(&d->text);
    hl_text_free(&d->head);
    hl_text_free(&d->tail);
    hl_text_free(&d->prefix);
}

hola_status hl_draft_ref(struct hl_draft *d, const char *text, int64_t n) {
    char **refs = realloc(d->refs, (size_t)(d->n_refs + 1) * sizeof *refs);
    if (refs) d->refs = refs;
    char *copy = refs ? malloc((size_t)n + 1) : NULL;
    if (!copy) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    memcpy(copy, text, (size_t)n);
    copy[n] = 0;
    d->refs[d->n_refs++] = copy;
    return HOLA_OK;
}

hola_status hl_ruler_keep(struct hl_ruler_gen *g, struct hl_draft *d, int64_t length, struct hl_ruler_set *out) {
    struct hl_ruler_sample *v = realloc(out->sample, (size_t)(out->n + 1) * sizeof *v);
    if (v) out->sample = v;
    if (!v || d->text.failed || d->prefix.failed) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (d->cut >= 0) {
        hl_text_clear(&d->prefix);
        hl_text_put(&d->prefix, d->text.data + d->cut, d->text.n - d->cut);
        if (d->prefix.failed) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
        d->text.data[d->cut] = 0;
    }
    v[out->n++] = (struct hl_ruler_sample){.input = d->text.data,
                                           .prefix = d->prefix.data,
                                           .refs = d->refs,
                                           .n_refs = d->n_refs,
                                           .length = length,
                                           .max_length = g->o->length};
    d->text = d->prefix = (struct hl_text){.data = NULL};
    d->refs = NULL;
    d->n_refs = 0;
    return HOLA_OK;
}

static void free_sample(struct hl_ruler_sample *s) {
    free(s->input);
    free(s->prefix);
    for (int64_t j = 0; j < s->n_refs; j++) free(s->refs[j]);
    free(s->refs);
}

void hl_ruler_limit(struct hl_ruler_set *s, int64_t most) {
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t before = 0;
        for (int64_t k = 0; k < kept; k++) before += s->sample[k].max_length == s->sample[i].max_length;
        if (before < most) s->sample[kept++] = s->sample[i];
        else free_sample(&s->sample[i]);
    }
    s->n = kept;
}

void hl_ruler_free(struct hl_ruler_set *s) {
    for (int64_t i = 0; i < s->n; i++) free_sample(&s->sample[i]);
    free(s->sample);
    *s = (struct hl_ruler_set){.sample = NULL};
}

/* ---- the search ---- */

hola_status hl_ruler_too_short(const struct hl_ruler_gen *g) {
    return hl_fail(HOLA_EINVAL, "%s: a length of %" PRId64 " tokens is too short for it with this tokenizer",
                   hl_ruler_name(g->o->task), g->o->length);
}

hola_status hl_ruler_count(const struct hl_ruler_gen *g, const struct hl_text *a, const struct hl_text *b,
                           const struct hl_text *c, int64_t *n) {
    struct hl_text all = {.data = NULL};
    const struct hl_text *text = a;
    int32_t *ids = NULL;
    if (b || c) {
        hl_text_put(&all, a->data, a->n);
        if (b) hl_text_put(&all, b->data, b->n);
        if (c) hl_text_put(&all, c->data, c->n);
        text = &all;
    }
    hola_status s = text->failed ? hl_fail(HOLA_ENOMEM, "ruler: no memory")
                                 : hola_tokenizer_encode(g->o->tokenizer, text->data, text->n, g->o->threads, &ids, n);
    free(ids);
    hl_text_free(&all);
    if (s != HOLA_OK || g->nvidia) return s; /* NVIDIA's scripts count no special tokens */
    *n += g->o->bos >= 0 ? g->o->bos : hola_tokenizer_bos(g->o->tokenizer) >= 0;
    return HOLA_OK;
}

/* Retries until the tool would have no exception; those are rare and random. */
static hola_status probe(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, int64_t units, struct hl_draft *d,
                         int64_t *tokens) {
    hola_status s;
    do {
        hl_draft_clear(d);
        s = k->build(g, units, 0, true, d);
    } while (s == HOLA_OK && d->failed);
    if (s != HOLA_OK) return s;
    return g->nvidia ? hl_ruler_count(g, &d->text, NULL, NULL, tokens)
                     : hl_ruler_count(g, &d->head, &d->text, &d->tail, tokens);
}

/* Linear search until a text does not fit. */
static hola_status search_up(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, struct hl_draft *d,
                             int64_t *units) {
    int64_t n = g->step, total = 0;
    while (total + g->reserve + g->extra < g->length) {
        hola_status s = probe(g, k, n, d, &total);
        if (s != HOLA_OK) return s;
        if (total + g->reserve + g->extra > g->length) {
            n -= g->step;
            break;
        }
        if (!g->cap_late) n += g->step;
        if (g->cap && n > g->cap) {
            n = g->cap;
            break;
        }
        if (g->cap_late) n += g->step;
    }
    *units = n;
    return HOLA_OK;
}

/* Bisection, between one step and a multiple of the estimate from a first text. */
static hola_status search_halves(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, struct hl_draft *d,
                                 int64_t *units) {
    int64_t total, low = g->step, high;
    hola_status s = probe(g, k, g->probe, d, &total);
    if (s != HOLA_OK) return s;
    const double each = (double)total / (double)g->probe;
    if (g->probe == g->step) high = (int64_t)((double)g->length / each * 3);
    else high = 2 * (int64_t)round(((double)g->length - fmod((double)g->length, each)) / each); /* Python's // */
    if (high < 2 * g->step) high = 2 * g->step;
    *units = g->step;
    while (low <= high) {
        int64_t mid = (low + high) / 2;
        s = probe(g, k, mid, d, &total);
        if (s != HOLA_OK) return s;
        if (total + g->extra + g->reserve <= g->length) *units = mid, low = mid + 1;
        else high = mid - 1;
    }
    return HOLA_OK;
}

hola_status hl_ruler_search(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, int64_t *units) {
    struct hl_draft d = {.cut = -1};
    hola_status s = g->nvidia ? search_halves(g, k, &d, units) : search_up(g, k, &d, units);
    hl_draft_free(&d);
    return s;
}

/* The tools redraw with one step less until a text fits, and loop forever if one step is too much. Here the number of
 * tries at one step is limited; then the haystack shrinks further. */
enum { TRIES = 100 };
hola_status hl_ruler_draw(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, int64_t units, int64_t index,
                          struct hl_draft *d, int64_t *length) {
    const int64_t least = k->least(g, index), less = g->step > 25 ? g->step / 25 : 1;
    int64_t used = units < least ? (g->step > least ? g->step : least) : units;
    int tries = units < least ? TRIES : 0;
    for (;;) {
        hl_draft_clear(d);
        hola_status s = k->build(g, used, index, false, d);
        if (s == HOLA_OK) s = hl_ruler_count(g, &d->text, NULL, NULL, length);
        if (s != HOLA_OK) return s;
        *length += g->reserve + (g->nvidia ? 0 : g->extra);
        if (!d->failed && *length <= g->length) return HOLA_OK;
        if (used > g->step) used -= g->step;
        else if (tries < TRIES) tries++;
        else if (used > least) used = used - less > least ? used - less : least;
        else return hl_ruler_too_short(g);
    }
}

/* ---- all samples ---- */

static hola_status make(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, struct hl_ruler_set *out) {
    struct hl_draft d = {.cut = -1};
    hola_status s = hl_ruler_search(g, k, &out->units);
    for (int64_t i = 0; s == HOLA_OK && i < g->o->samples; i++) {
        int64_t length;
        s = hl_ruler_draw(g, k, out->units, i, &d, &length);
        if (s == HOLA_OK && k->finish) s = k->finish(g, &d);
        if (s == HOLA_OK) s = hl_ruler_keep(g, &d, length, out);
    }
    hl_draft_free(&d);
    return s;
}

hola_status hl_ruler_make(const struct hl_ruler_opts *o, struct hl_ruler_set *out) {
    struct hl_ruler_opts opts = *o;
    struct hl_ruler_gen g = {.o = &opts, .nvidia = o->variant == HL_RULER_NVIDIA, .length = o->length};
    const struct hl_ruler_kind *k;
    *out = (struct hl_ruler_set){.sample = NULL};
    if ((int)o->task < 0 || o->task >= HL_RULER_TASKS || !o->tokenizer)
        return hl_fail(HOLA_EINVAL, "ruler: no task or no tokenizer");
    if (o->length < 1 || o->length > 1 << 28 || o->samples < 0 || o->samples > 1 << 24)
        return hl_fail(HOLA_EINVAL, "%s: %" PRId64 " samples of %" PRId64 " tokens", hl_ruler_name(o->task), o->samples,
                       o->length);
    if (opts.samples == 0) opts.samples = 100;
    k = tasks[o->task].kind;
    g.reserve = tasks[o->task].tokens;
    g.inner_seed = g.nvidia && o->seed >= 0 ? (uint64_t)o->seed : HL_INNER_SEED;
    hl_py_seed(&g.random, o->seed >= 0 ? (uint64_t)o->seed : g.nvidia ? 42 : 0);
    hl_np_seed(&g.numpy, o->seed >= 0 ? (uint32_t)o->seed : g.nvidia ? 42 : 1234);
    hola_status s = k->open(&g);
    if (s == HOLA_OK) s = k->make ? k->make(&g, out) : make(&g, k, out);
    k->close(&g);
    return s;
}
