/* mqar_numpy.c -- see mqar_numpy.h. */
#include "eval/mqar_numpy.h"
#include "eval/pyrandom.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one row of numpy's draws needs. */
struct row {
    int32_t *perm, *slot;
    double *p, *weight, *cdf;
};

static void draw_pairs(struct hl_mt *m, const struct hl_mqar *q, struct row *r, bool values, int64_t examples,
                       int32_t *inputs) {
    const int64_t half = q->vocab / 2, n = values ? q->vocab - half : half - 1;
    for (int64_t e = 0; e < examples; e++) {
        hl_np_choice(m, r->perm, n);
        for (int64_t j = 0; j < q->pairs; j++)
            inputs[e * q->length + 2 * j + values] = r->perm[j] + (int32_t)(values ? half : 1);
    }
}

static void draw_queries(struct hl_mt *m, const struct hl_mqar *q, struct row *r, int64_t examples, int32_t *inputs,
                         int32_t *labels) {
    const int64_t context = 2 * q->pairs, space = (q->length - context) / 2;
    double sum = 0;
    for (int64_t i = 0; i < space; i++) sum += r->weight[i] = q->power * pow((double)(i + 1), q->power - 1);
    for (int64_t i = 0; i < space; i++) r->weight[i] /= sum;
    for (int64_t e = 0; e < examples; e++) {
        int32_t *in = inputs + e * q->length, *label = labels + e * q->length;
        memcpy(r->p, r->weight, (size_t)space * sizeof *r->p);
        hl_np_choice_p(m, r->p, r->cdf, space, r->slot, q->pairs);
        for (int64_t j = 0; j < q->pairs; j++) {
            in[context + 2 * r->slot[j]] = in[2 * j];
            label[context + 2 * r->slot[j]] = in[2 * j + 1];
        }
    }
}

hola_status hl_mqar_numpy_make(const struct hl_mqar *m, uint32_t seed, uint32_t torch_seed, int64_t examples,
                               int32_t *inputs, int32_t *labels) {
    struct hl_mt numpy, torch;
    hola_status s = hl_mqar_check(m);
    if (s == HOLA_OK && m->answers) s = hl_fail(HOLA_EINVAL, "mqar: zoology's examples have no answers in them");
    if (s != HOLA_OK) return s;
    struct row r = {malloc((size_t)m->vocab * sizeof *r.perm), malloc((size_t)m->length * sizeof *r.slot),
                    malloc((size_t)m->length * sizeof *r.p), malloc((size_t)m->length * sizeof *r.weight),
                    malloc((size_t)m->length * sizeof *r.cdf)};
    if (!r.perm || !r.slot || !r.p || !r.weight || !r.cdf) s = hl_fail(HOLA_ENOMEM, "mqar: no memory");
    if (s == HOLA_OK) {
        hl_np_seed(&numpy, seed);
        hl_np_seed(&torch, torch_seed); /* the same generator, seeded in the same way */
        memset(inputs, 0, (size_t)(examples * m->length) * sizeof *inputs);
        for (int64_t i = 0; i < examples * m->length; i++) labels[i] = HL_MQAR_NONE;
        draw_pairs(&numpy, m, &r, false, examples, inputs);
        draw_pairs(&numpy, m, &r, true, examples, inputs);
        draw_queries(&numpy, m, &r, examples, inputs, labels);
        for (int64_t i = 0; m->random_non_queries && i < examples * m->length; i++) {
            int32_t x = (int32_t)(hl_py_bits(&torch, 32) % (uint32_t)m->vocab); /* one for every position */
            if (inputs[i] == 0) inputs[i] = x;
        }
    }
    free(r.perm), free(r.slot), free(r.p), free(r.weight), free(r.cdf);
    return s;
}
