/* mqar.c -- see mqar.h. */
#include "data/mqar.h"
#include "core/rng_stream.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hl_mqar hl_mqar_default(void) {
    return (struct hl_mqar){.vocab = 8192, .length = 256, .pairs = 16, .power = 0.01, .random_non_queries = true};
}

hola_status hl_mqar_check(const struct hl_mqar *m) {
    if (m->length < 2 || m->length % 2 || m->pairs < 1 || 4 * m->pairs > m->length || m->pairs > 1 << 28)
        return hl_fail(HOLA_EINVAL,
                       "mqar: %" PRId64 " pairs in %" PRId64 " tokens; needs an even length of at least 4 pairs",
                       m->pairs, m->length);
    if (m->vocab <= m->length || m->vocab > 1 << 28)
        return hl_fail(HOLA_EINVAL, "mqar: a vocabulary of %" PRId64 " must be larger than the length %" PRId64,
                       m->vocab, m->length);
    if (!(m->power > 0)) return hl_fail(HOLA_EINVAL, "mqar: a power of %g", m->power);
    return HOLA_OK;
}

struct slot {
    double key;
    int64_t i;
};
static int by_key(const void *a, const void *b) {
    const struct slot *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->i > y->i) - (x->i < y->i);
}

/* Slots in the order of weighted drawing without replacement: each gets an exponential time with its weight as the
 * rate. */
static void draw_slots(struct hl_rng_stream *d, struct slot *slot, int64_t n, double a) {
    for (int64_t i = 0; i < n; i++) {
        double rate = pow((double)(i + 1), a - 1);
        slot[i] = (struct slot){-log(1 - hl_rng_stream_uniform(d)) / rate, i};
    }
    qsort(slot, (size_t)n, sizeof *slot, by_key);
}

static void fill(const struct hl_mqar *m, struct hl_rng_stream *d, int32_t *key, int32_t *value, struct slot *slot,
                 int32_t *inputs, int32_t *labels) {
    const int64_t half = m->vocab / 2, context = 2 * m->pairs;
    hl_rng_stream_distinct(d, key, half - 1, m->pairs);
    hl_rng_stream_distinct(d, value, m->vocab - half, m->pairs);
    draw_slots(d, slot, (m->length - context) / 2, m->power);
    memset(inputs, 0, (size_t)m->length * sizeof *inputs);
    for (int64_t i = 0; labels && i < m->length; i++) labels[i] = HL_MQAR_NONE;
    for (int64_t j = 0; j < m->pairs; j++) {
        int64_t at = context + 2 * slot[j].i;
        int32_t k = 1 + key[j], v = (int32_t)half + value[j];
        inputs[2 * j] = inputs[at] = k;
        inputs[2 * j + 1] = v;
        if (m->answers) inputs[at + 1] = v;
        if (labels) labels[at] = v;
    }
    for (int64_t i = 0; m->random_non_queries && i < m->length; i++)
        if (inputs[i] == 0) inputs[i] = hl_rng_stream_below(d, m->vocab);
}

hola_status hl_mqar_make(const struct hl_mqar *m, uint64_t seed, int64_t index, int32_t *inputs, int32_t *labels) {
    struct hl_rng_stream d = {.seed = seed ^ hl_fnv1a("mqar"), .stream = (uint64_t)index};
    int32_t *key = malloc((size_t)m->vocab * sizeof *key), *value = malloc((size_t)m->vocab * sizeof *value);
    struct slot *slot = malloc((size_t)m->length * sizeof *slot);
    hola_status s = key && value && slot ? HOLA_OK : hl_fail(HOLA_ENOMEM, "mqar: no memory");
    if (s == HOLA_OK) fill(m, &d, key, value, slot, inputs, labels);
    free(key);
    free(value);
    free(slot);
    return s;
}
