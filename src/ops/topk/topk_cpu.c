/* topk_cpu.c -- see topk.h: a row is read once as vectors, for the maximum of every group of adjacent logits. The k-th
 * largest of these maxima bounds the row's k-th largest logit from below, so that only the few groups that reach it are
 * scanned logit by logit, with a heap of the k largest so far. One task per row: a row of 32,000 takes a few
 * microseconds, less than it takes to wake another thread. */
#include "ops/ops.h"
#include "ops/simd.h"

enum { GROUPS = 512, GROUP = 4 * VL }; /* maximum number of groups, each a multiple of GROUP logits */

/* The maximum of x[0, n), or NaN unless all are finite. */
static real group_max(const real *x, int64_t n) {
    vr max[4], zero[4] = {v_set(0), v_set(0), v_set(0), v_set(0)}; /* 0 * x is NaN where x is not finite */
    int64_t i = 0;
    for (int j = 0; j < 4; j++) max[j] = v_set(-(real)INFINITY);
    for (; i + GROUP <= n; i += GROUP)
        for (int j = 0; j < 4; j++) {
            const vr y = v_load(x + i + j * VL);
            max[j] = v_max(max[j], y);
            zero[j] = y * 0 + zero[j];
        }
    real most = v_hmax(v_max(v_max(max[0], max[1]), v_max(max[2], max[3]))),
         rest = v_sum((zero[0] + zero[1]) + (zero[2] + zero[3]));
    for (; i < n; i++) most = x[i] > most ? x[i] : most, rest += x[i] * 0;
    return most + rest;
}

/* ---- a heap whose root is evicted first: the smallest, of equals the highest index ---- */

struct item {
    real x;
    int32_t at;
};
static inline bool before(struct item a, struct item b) { return a.x > b.x || (a.x == b.x && a.at < b.at); }
/* Replaces heap[i], whose two subtrees are heaps, with y. */
static void sift(struct item *heap, int64_t n, int64_t i, struct item y) {
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) child++;
        if (before(heap[child], y)) break;
        heap[i] = heap[child];
    }
    heap[i] = y;
}
/* Pushes x[0, n), whose indices start at `first`, into a heap of up to k items. */
static int64_t offer(struct item *heap, int64_t size, int64_t k, const real *x, int64_t n, int64_t first) {
    for (int64_t i = 0; i < n; i++) {
        const struct item y = {x[i], (int32_t)(first + i)};
        if (size == k) {
            if (x[i] > heap[0].x) sift(heap, k, 0, y); /* later equal ones are not inserted */
            continue;
        }
        heap[size++] = y;
        for (int64_t p = size / 2; size == k && p-- > 0;) sift(heap, k, p, heap[p]);
    }
    return size;
}

/* max[g] of all groups of `each`; false: one of the logits is not finite. */
static bool find_maxima(real *max, const real *x, int64_t V, int64_t each) {
    for (int64_t g = 0; g * each < V; g++) {
        max[g] = group_max(x + g * each, V - g * each < each ? V - g * each : each);
        if (max[g] - max[g] != 0) return false;
    }
    return true;
}

static void top_row(void *ctx, int64_t row, int worker) {
    const struct hl_topk *a = ctx;
    const real *x = a->logits + row * a->V;
    struct hl_candidate *out = a->out + row * a->k;
    const int64_t V = a->V, k = a->k, each = hl_pieces(V, (int64_t)GROUPS * GROUP) * GROUP, groups = hl_pieces(V, each);
    struct item heap[HL_TOPK_MOST];
    real max[GROUPS], least = -(real)INFINITY;
    int64_t size = 0;
    (void)worker;
    if (!find_maxima(max, x, V, each)) {
        out[0] = (struct hl_candidate){0, -1};
        return;
    }
    if (groups >= k) {
        offer(heap, 0, k, max, groups, 0);
        least = heap[0].x;
    }
    for (int64_t g = 0; g < groups; g++) {
        const int64_t n = V - g * each < each ? V - g * each : each;
        if (max[g] >= least && (size < k || max[g] > heap[0].x)) size = offer(heap, size, k, x + g * each, n, g * each);
    }
    while (size > 0) { /* the root is the last of the remaining */
        const struct item last = heap[0];
        out[--size] = (struct hl_candidate){(float)last.x, last.at};
        sift(heap, size, 0, heap[size]);
    }
}

void HL_OP(topk)(struct hl_backend *backend, const struct hl_topk *a) {
    HL_ASSERT(a->k >= 1 && a->k <= a->V && a->k <= HL_TOPK_MOST);
    hl_pool_run(hl_backend_pool(backend), a->M, top_row, (void *)a);
}
