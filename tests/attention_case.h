/* attention_case.h -- one batch for softmax attention with all its buffers; test_attention.c (float) and
 * grad_attention.c (double) run the same cases. */
#ifndef HL_ATTENTION_CASE_H
#define HL_ATTENTION_CASE_H
#include "check.h"

enum { CASE_SEGS = 24, CASE_OFF = 8 }; /* CASE_OFF: numbers before the keys in a page or state */

struct attention_shape {
    int64_t H, HK, D, window;
    double size; /* of q and k: how sharp the softmax is */
};
#define SHAPE_FMT "%d heads of %d keys' x %d, window %d"
#define SHAPE_ARG(f) (int)(f)->H, (int)(f)->HK, (int)(f)->D, (int)(f)->window

struct attention_case {
    struct hl_attention a; /* out and everything after it belong to the run */
    struct hl_rows rows;
    struct hl_seg seg[CASE_SEGS];
    int64_t T, q, kv; /* rows; numbers of q, of k */
};

static inline struct attention_case *case_new(const struct attention_shape *f, const int64_t *len, int64_t n,
                                              uint64_t seed) {
    struct attention_case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    assert_true(n <= CASE_SEGS);
    for (int64_t s = 0; s < n; s++) {
        c->seg[s] = (struct hl_seg){.row = c->T, .len = len[s]};
        c->T += len[s];
    }
    c->rows = (struct hl_rows){.T = c->T, .n = n, .seg = c->seg};
    c->q = c->T * f->H * f->D;
    c->kv = c->T * f->HK * f->D;
    c->a = (struct hl_attention){.rows = &c->rows, .H = f->H, .HK = f->HK, .D = f->D, .window = f->window};
    c->a.scale = 1 / R_SQRT((real)f->D);
    c->a.q = check_random(c->q, -f->size, f->size, seed);
    c->a.k = check_random(c->kv, -f->size, f->size, seed + 1);
    c->a.v = check_random(c->kv, -1, 1, seed + 2);
    c->a.dout = check_random(c->q, -1, 1, seed + 3);
    return c;
}
static inline void case_free(struct attention_case *c) {
    check_free((real *)c->a.q, c->q);
    check_free((real *)c->a.k, c->kv);
    check_free((real *)c->a.v, c->kv);
    check_free((real *)c->a.dout, c->q);
    free(c);
}

struct attention_result {
    real *out, *lse, *dq, *dk, *dv;
};
static inline struct attention_result result_new(const struct attention_case *c) {
    return (struct attention_result){check_new(c->q), check_new(c->T * c->a.H), check_new(c->q), check_new(c->kv),
                                     check_new(c->kv)};
}
static inline void result_free(const struct attention_case *c, struct attention_result *r) {
    check_free(r->out, c->q);
    check_free(r->lse, c->T * c->a.H);
    check_free(r->dq, c->q);
    check_free(r->dk, c->kv);
    check_free(r->dv, c->kv);
}

static inline void run_training(const struct hl_ops *ops, struct hl_backend *backend, const struct attention_case *c,
                                struct attention_result *r, bool backward) {
    struct hl_attention a = c->a;
    a.out = r->out, a.lse = r->lse, a.dq = r->dq, a.dk = r->dk, a.dv = r->dv;
    ops->attention_forward(backend, &a);
    if (backward) ops->attention_backward(backend, &a);
}

/* ---- the same rows as sessions, in pieces ---- */

/* The session states of a case: a ring buffer each, or pages. */
struct attention_sessions {
    real *ring[CASE_SEGS];
    char **pages[CASE_SEGS];
    int64_t count[CASE_SEGS], ring_size, page_size;
};
static inline struct attention_sessions sessions_new(const struct attention_case *c) {
    const int64_t width = c->a.HK * c->a.D;
    struct attention_sessions k = {.ring_size = CASE_OFF + 2 * c->a.window * width,
                                   .page_size = CASE_OFF + 2 * HL_PAGE_TOKENS * width};
    for (int64_t s = 0; s < c->rows.n; s++) {
        k.ring[s] = check_new(k.ring_size);
        k.count[s] = c->a.window ? 0 : hl_pieces(c->seg[s].len, HL_PAGE_TOKENS);
        k.pages[s] = calloc((size_t)k.count[s] + 1, sizeof **k.pages);
        for (int64_t i = 0; i < k.count[s]; i++) k.pages[s][i] = (char *)check_new(k.page_size);
    }
    return k;
}
static inline void sessions_free(const struct attention_case *c, struct attention_sessions *k) {
    for (int64_t s = 0; s < c->rows.n; s++) {
        check_free(k->ring[s], k->ring_size);
        for (int64_t i = 0; i < k->count[s]; i++) check_free((real *)k->pages[s][i], k->page_size);
        free(k->pages[s]);
    }
}

/* Every sequence in pieces: first `first` rows, then `each` at a time; the pieces of all sequences are one call. */
static inline void run_sessions(const struct hl_ops *ops, struct hl_backend *backend, const struct attention_case *c,
                                struct attention_result *r, int64_t first, int64_t each) {
    struct attention_sessions kept = sessions_new(c);
    const int64_t width = c->a.HK * c->a.D;
    int64_t done[CASE_SEGS] = {0};
    for (;;) {
        struct hl_seg seg[CASE_SEGS];
        char *const *pages[CASE_SEGS];
        int64_t n = 0;
        for (int64_t s = 0; s < c->rows.n; s++) {
            const int64_t left = c->seg[s].len - done[s], want = done[s] == 0 ? first : each;
            if (left == 0) continue;
            seg[n] = (struct hl_seg){.row = c->seg[s].row + done[s],
                                     .len = left < want ? left : want,
                                     .pos = done[s],
                                     .state = (char *)kept.ring[s]};
            done[s] += seg[n].len;
            pages[n++] = kept.pages[s];
        }
        if (n == 0) break;
        struct hl_rows rows = {.T = c->T, .n = n, .seg = seg, .pages = pages};
        struct hl_attention a = c->a;
        a.rows = &rows, a.out = r->out;
        a.k_off = CASE_OFF * (int64_t)sizeof(real);
        a.v_off = a.k_off + (a.window ? a.window : HL_PAGE_TOKENS) * width * (int64_t)sizeof(real);
        ops->attention_forward(backend, &a);
    }
    sessions_free(c, &kept);
}

#endif
