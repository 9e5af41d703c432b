/* cache_distinct_cpu.c -- the merge of a finished block if near-duplicate keys come last (cache.h). Rows are taken from
 * a heap, best first, so that few more are compared than kept. */
#include "ops/cache/cache_cpu.h"
#include "ops/gdn/gdn_cpu.h"

/* Whether column i ranks before column j. Columns are in order of position, so ties go to the older one. */
static bool before(const uint64_t *key, int64_t i, int64_t j) { return key[i] > key[j] || (key[i] == key[j] && i < j); }

/* Sifts heap[at] down among n. */
static void sift(int64_t *heap, int64_t n, int64_t at, const uint64_t *key) {
    const int64_t x = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(key, heap[child + 1], heap[child])) child++;
        if (before(key, x, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Whether column i has a larger cosine than allowed with one of the n columns `with`; *norm becomes its |k|^2. */
static bool is_redundant(const struct hl_cache_head *d, struct hl_cache_work *w, int64_t i, const int64_t *with,
                         int64_t n, real *norm) {
    const struct hl_cache_selection *p = &w->chosen;
    const int64_t K = d->a->K;
    real *other = w->rows + hl_cache_ld(K);
    int64_t ld;
    const real *k = HL_OP(cache_keys)(d, &p->id[i], 1, w->rows, &ld);
    *norm = row_dot(k, k, K);
    for (int64_t j = 0; j < n; j++) {
        const real *chosen = HL_OP(cache_keys)(d, &p->id[with[j]], 1, other, &ld);
        if (hl_cache_alike(row_dot(k, chosen, K), *norm, p->norm[j], &d->a->policy)) return true;
    }
    return false;
}

void HL_OP(cache_merge)(const struct hl_cache_head *d, struct hl_cache_work *work, int64_t m) {
    struct hl_cache_selection *p = &work->chosen;
    const int64_t n = p->n + m, w = d->a->window;
    int64_t *heap = p->order, *distinct = p->order + n, *redundant = p->order + 2 * n; /* filled from the end */
    int64_t left = n, a = 0, b = 0, to = 0;
    if (!d->a->policy.redundancy || n <= w || w == 0) {
        hl_cache_select_merge(p, d, m);
        return;
    }
    hl_cache_select_keys(p, n);
    for (int64_t i = 0; i < n; i++) heap[i] = i;
    for (int64_t i = n / 2; i-- > 0;) sift(heap, n, i, p->key);
    while (left > 0 && a < w) {
        const int64_t best = heap[0];
        heap[0] = heap[--left];
        sift(heap, left, 0, p->key);
        if (is_redundant(d, work, best, distinct, a, &p->norm[a])) redundant[-++b] = best;
        else distinct[a++] = best;
    }
    for (int64_t i = 0; i < n; i++) p->key[i] = 0;
    for (int64_t i = 0; i < a; i++) p->key[distinct[i]] = 1;
    for (int64_t i = 1; i <= w - a; i++) p->key[redundant[-i]] = 1;
    for (int64_t i = 0; i < n; i++) {
        if (!p->key[i]) continue;
        p->id[to] = p->id[i];
        p->score[to++] = p->score[i];
    }
    p->n = to;
}
