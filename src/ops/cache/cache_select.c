/* cache_select.c -- which rows a block sees: the kept ones, selected block by block. */
#include "ops/cache/cache_cpu.h"
#include <string.h>

const real *hl_cache_state_after(const struct hl_cache_head *d, int64_t b) {
    const struct hl_cache *a = d->a;
    if ((b + 1) * a->chunk - d->open == d->len && d->last) return d->S;
    return a->block_S + ((d->block + b) * a->HV + d->h) * a->K * a->V;
}

struct hl_cache_head hl_cache_head(const struct hl_cache *a, const struct hl_seg *s, int64_t h) {
    struct hl_cache_head d = {.a = a, .h = h, .hk = h / (a->HV / a->H), .row = s->row, .len = s->len, .pos = s->pos};
    HL_ASSERT(s->state ? !a->sel : s->pos == 0);
    if (s->state) {
        struct hl_cache_layout l =
            hl_cache_layout(a->K, a->V, a->window, a->chunk, hl_cache_row_size(a->row_dtype), hl_cache_factors(a));
        char *state = s->state + a->state_off + h * l.bytes;
        d.open = s->pos % a->chunk;
        d.kept = s->pos - d.open < a->window ? s->pos - d.open : a->window;
        d.k = state + l.k;
        d.v = state + l.v;
        d.score = (real *)(state + l.score);
        d.at = (int64_t *)(state + l.pos);
        if (hl_cache_factors(a)) d.factor = (real *)(state + l.factor);
        d.S = (const real *)(s->state + a->S_off) + h * a->K * a->V;
    }
    d.last = true;
    return d;
}

void hl_cache_select_start(struct hl_cache_selection *p, const struct hl_cache_head *d) {
    p->n = d->kept;
    for (int64_t i = 0; i < d->kept; i++) {
        p->id[i] = -1 - i;
        p->score[i] = d->score[i];
    }
}

int64_t hl_cache_select_block(struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t b) {
    const struct hl_cache *a = d->a;
    int64_t first = b * a->chunk - d->open, m = d->len - first < a->chunk ? d->len - first : a->chunk;
    const bool scored = hl_cache_scored(&a->policy);
    for (int64_t c = 0; c < m; c++) {
        int64_t i = first + c, slot = a->window + c; /* rows before the segment are in the state */
        p->id[p->n + c] = i < 0 ? -1 - slot : i;
        p->score[p->n + c] = i < 0 ? d->score[slot] : scored ? a->score[(d->row + i) * a->HV + d->h] : 0;
    }
    return m;
}

/* Integers in the order of the scores. NaN counts as -inf; adding 0 makes -0 equal to 0. */
static uint64_t rank_of(real x) {
    const uint64_t sign = (uint64_t)1 << (8 * sizeof(real) - 1);
    uint64_t u = 0;
    x = x == x ? x + 0 : -(real)INFINITY;
#ifdef HL_DOUBLE
    memcpy(&u, &x, sizeof x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof x);
    u = bits;
#endif
    return u & sign ? ~u & (2 * sign - 1) : u | sign;
}

void hl_cache_select_keys(struct hl_cache_selection *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) p->key[i] = rank_of(p->score[i]);
}

/* Radix select: the w-th largest of n >= w >= 1 keys, byte by byte from the top. *equal: how many of the keys
 * equal to it are among the w largest. */
static uint64_t radix_select(const uint64_t *key, int64_t n, int64_t w, int64_t *equal) {
    uint64_t prefix = 0, mask = 0;
    for (int shift = 8 * (int)sizeof(real) - 8; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        int byte = 255;
        for (int64_t i = 0; i < n; i++)
            if ((key[i] & mask) == prefix) count[(key[i] >> shift) & 255]++;
        while (count[byte] < w) w -= count[byte--];
        prefix |= (uint64_t)byte << shift;
        mask |= (uint64_t)255 << shift;
    }
    *equal = w;
    return prefix;
}

/* With w rows kept, a new row with at most the least kept score cannot enter: ties go to the older row. Drops
 * such rows of the block's m and returns how many columns are left: late in a sequence few more than w. */
static int64_t drop_losers(struct hl_cache_selection *p, int64_t m) {
    uint64_t least = UINT64_MAX;
    int64_t to = p->n;
    for (int64_t i = 0; i < p->n; i++) least = p->key[i] < least ? p->key[i] : least;
    for (int64_t i = p->n; i < p->n + m; i++) {
        if (p->key[i] <= least) continue;
        p->id[to] = p->id[i];
        p->score[to] = p->score[i];
        p->key[to++] = p->key[i];
    }
    return to;
}

void hl_cache_select_merge(struct hl_cache_selection *p, const struct hl_cache_head *d, int64_t m) {
    const int64_t w = d->a->window;
    int64_t n = p->n + m, to = 0, equal;
    uint64_t nth;
    if (n <= w || w == 0) {
        p->n = n <= w ? n : 0;
        return;
    }
    if (d->a->policy.by_position) { /* columns stand in order of position, from the sequence's first row on */
        const int64_t first = d->a->policy.sinks < w ? d->a->policy.sinks : w, last = w - first;
        memmove(p->id + first, p->id + n - last, (size_t)last * sizeof *p->id);
        memmove(p->score + first, p->score + n - last, (size_t)last * sizeof *p->score);
        p->n = w;
        return;
    }
    hl_cache_select_keys(p, n);
    if (p->n == w) n = drop_losers(p, m);
    nth = radix_select(p->key, n, w, &equal);
    for (int64_t i = 0; i < n; i++) { /* ties: the first, which are the older ones */
        if (p->key[i] < nth || (p->key[i] == nth && equal-- <= 0)) continue;
        p->id[to] = p->id[i];
        p->score[to++] = p->score[i];
    }
    p->n = w;
}

real hl_cache_factor_of(const struct hl_cache_head *d, int64_t id) {
    const struct hl_cache *a = d->a;
    if (!a->r_state) return 1;
    return id < 0 ? d->factor[-1 - id] : hl_cache_factor(a->r_state[(d->row + id) * a->H + d->hk], a->K);
}
