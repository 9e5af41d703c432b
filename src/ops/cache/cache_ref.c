/* cache_ref.c -- the exact memory of cache.h in streaming form: a row is appended to the open block and reads; a full
 * block is merged into the kept rows. Training runs the same code on a temporary state, so both forms agree by
 * construction. */
#include "ops/ops.h"
#include <stdlib.h>
#include <string.h>

void HL_OP(cache_score)(struct hl_backend *backend, const struct hl_score *a) {
    const real *v = a->v;
    (void)backend;
    for (int64_t i = 0; i < a->T * a->HV; i++) {
        real sum = 0;
        if (a->policy.score == HL_SCORE_WRITE) a->score[i] = a->m[i];
        if (a->policy.score == HL_SCORE_RESIDUAL) a->score[i] = a->m[i] / a->beta[i];
        if (a->policy.score != HL_SCORE_VALUE) continue;
        for (int64_t j = 0; j < a->V; j++) sum += v[i * a->V + j] * v[i * a->V + j];
        a->score[i] = a->beta[i] * R_SQRT(sum);
    }
    for (int64_t t = 0; t < a->T && a->policy.layer_set; t++) hl_score_of_layer(a->score + t * a->HV, a->HV);
}

/* One value head of a sequence: the kept rows in slots [0, kept), the block from slot `window` on. */
struct cache_head {
    char *k, *v; /* rows of a->row_dtype */
    real *score;
    int64_t *pos; /* of the kept rows */
    real *factor; /* if there are factors */
    int64_t kept, window;
    real *row[2]; /* scratch: rows as reals */
};

static struct hl_cache_layout layout_of(const struct hl_cache *a) {
    return hl_cache_layout(a->K, a->V, a->window, a->chunk, hl_cache_row_size(a->row_dtype), hl_cache_factors(a));
}

static struct cache_head head_at(const struct hl_cache *a, char *state, int64_t pos) {
    struct hl_cache_layout l = layout_of(a);
    int64_t before = pos / a->chunk * a->chunk;
    return (struct cache_head){.k = state + l.k,
                               .v = state + l.v,
                               .score = (real *)(state + l.score),
                               .pos = (int64_t *)(state + l.pos),
                               .factor = (real *)(state + l.factor),
                               .kept = before < a->window ? before : a->window,
                               .window = a->window};
}

/* Slot of the j-th visible row: kept rows, then the block's. */
static int64_t slot_of(const struct cache_head *m, int64_t j) { return j < m->kept ? j : m->window + j - m->kept; }

/* Row `slot` of n numbers; `as`: room for them. */
static const real *row_of(const struct hl_cache *a, const char *rows, int64_t slot, int64_t n, real *as) {
    const uint16_t *half = (const uint16_t *)rows + slot * n;
    if (a->row_dtype != HOLA_F16) return (const real *)rows + slot * n;
    for (int64_t i = 0; i < n; i++) as[i] = hl_from_f16(half[i]);
    return as;
}
static void put_row(const struct hl_cache *a, char *rows, int64_t slot, int64_t n, const real *from) {
    uint16_t *half = (uint16_t *)rows + slot * n;
    if (a->row_dtype != HOLA_F16) memcpy((real *)rows + slot * n, from, (size_t)n * sizeof(real));
    else
        for (int64_t i = 0; i < n; i++) half[i] = hl_cache_to_f16(from[i]);
}

static real dot(const real *x, const real *y, int64_t n) {
    real s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i] * y[i];
    return s;
}

/* Row `row` of the batch reads the kept rows and the first `open` rows of the block; p: scratch for all of them. */
static void read_row(const struct hl_cache *a, struct cache_head *m, int64_t h, int64_t row, int64_t open, real *p) {
    const real *q = (const real *)a->q + (row * a->H + h / (a->HV / a->H)) * a->K;
    real *out = (real *)a->out + (row * a->HV + h) * a->V;
    real lam = hl_cache_lambda(a, row, h), max = a->sink[h], sum;
    int64_t n = m->kept + open;
    for (int64_t j = 0; j < n; j++) {
        p[j] = a->tau[h] * dot(q, row_of(a, m->k, slot_of(m, j), a->K, m->row[0]), a->K) / R_SQRT((real)a->K);
        if (a->policy.score == HL_SCORE_LEARNED && j < m->kept) p[j] += hl_logsigmoid(m->score[j]);
        if (p[j] > max) max = p[j];
    }
    sum = R_EXP(a->sink[h] - max);
    for (int64_t j = 0; j < n; j++) sum += R_EXP(p[j] - max);
    for (int64_t j = 0; j < n; j++) p[j] = R_EXP(p[j] - max) / sum;
    memset(m->row[1], 0, (size_t)a->V * sizeof(real));
    for (int64_t j = 0; j < n; j++) {
        const real *v = row_of(a, m->v, slot_of(m, j), a->V, m->row[0]);
        for (int64_t i = 0; i < a->V; i++) m->row[1][i] += p[j] * v[i];
    }
    for (int64_t i = 0; i < a->V; i++) {
        out[i] += lam * m->row[1][i];
        if (a->read) ((real *)a->read)[(row * a->HV + h) * a->V + i] = m->row[1][i];
    }
    if (a->lse) a->lse[row * a->HV + h] = max + R_LOG(sum);
    if (a->policy.moves_with_reads)
        for (int64_t j = 0; j < n; j++) m->score[slot_of(m, j)] += p[j];
}

/* Whether a row with score x at position i beats one with score y at j. NaN counts as -inf. */
static bool beats(const struct hl_policy *p, real x, int64_t i, real y, int64_t j) {
    if (p->by_position) return i < p->sinks || j < p->sinks ? i < j : i > j;
    x = x == x ? x : -(real)INFINITY;
    y = y == y ? y : -(real)INFINITY;
    return x > y || (x == y && i < j);
}

/* The state of value head h after row t of segment s, the last of its block. */
static const real *state_after(const struct hl_cache *a, int64_t s, int64_t t, int64_t h) {
    const struct hl_seg *g = &a->rows->seg[s];
    const int64_t block = (g->pos + t) / a->chunk - g->pos / a->chunk;
    if (t + 1 == g->len) return g->state ? (const real *)(g->state + a->S_off) + h * a->K * a->V : NULL;
    return a->block_S + ((hl_blocks_before(a->rows, s, a->chunk) + block) * a->HV + h) * a->K * a->V;
}

/* The scores of all rows, kept ones and the block's, against the state S. */
static void measure(const struct hl_cache *a, struct cache_head *m, const real *S) {
    for (int64_t j = 0; j < m->kept + a->chunk; j++) {
        const int64_t slot = slot_of(m, j);
        const real *k = row_of(a, m->k, slot, a->K, m->row[0]), *v = row_of(a, m->v, slot, a->V, m->row[1]);
        const real f = a->r_state ? m->factor[slot] : 1;
        real sum = 0;
        for (int64_t x = 0; x < a->V; x++) {
            real e = v[x];
            for (int64_t i = 0; i < a->K; i++) e -= hl_cache_unweighted(k[i] * f, a->k_weight, i) * S[i * a->V + x];
            sum += e * e;
        }
        m->score[slot] = R_SQRT(sum);
    }
}

/* Marks which of the n visible rows are kept: by rank, near-duplicates last. pos: their positions. */
static void choose(const struct hl_cache *a, const struct cache_head *m, const int64_t *pos, int64_t n, bool *keep) {
    int64_t *ranked = malloc((size_t)n * sizeof *ranked), kept = 0;
    HL_ASSERT(ranked);
    for (int64_t j = 0; j < n; j++) {
        int64_t better = 0;
        for (int64_t i = 0; i < n; i++)
            better += beats(&a->policy, m->score[slot_of(m, i)], pos[i], m->score[slot_of(m, j)], pos[j]);
        ranked[better] = j;
        keep[j] = false;
    }
    for (int64_t r = 0; r < n && kept < a->window; r++) {
        const real *k = row_of(a, m->k, slot_of(m, ranked[r]), a->K, m->row[0]);
        bool redundant = false;
        for (int64_t i = 0; i < n && a->policy.redundancy > 0; i++) {
            const real *other = row_of(a, m->k, slot_of(m, i), a->K, m->row[1]);
            redundant |=
                keep[i] && hl_cache_alike(dot(k, other, a->K), dot(k, k, a->K), dot(other, other, a->K), &a->policy);
        }
        keep[ranked[r]] = !redundant;
        kept += !redundant;
    }
    for (int64_t r = 0; r < n && kept < a->window; r++) {
        kept += !keep[ranked[r]];
        keep[ranked[r]] = true;
    }
    free(ranked);
}

/* kept = top_w(kept + block), in order of position; `first` is the position of the block's first row. */
static void merge_block(const struct hl_cache *a, struct cache_head *m, int64_t first) {
    const int64_t bk = a->K * hl_cache_row_size(a->row_dtype), bv = a->V * hl_cache_row_size(a->row_dtype);
    int64_t n = m->kept + a->chunk, to = 0;
    HL_ASSERT(n > 0);
    int64_t *pos = malloc((size_t)n * sizeof *pos);
    bool *keep = malloc((size_t)n * sizeof *keep);
    HL_ASSERT(pos && keep);
    for (int64_t j = 0; j < n; j++) pos[j] = j < m->kept ? m->pos[j] : first + j - m->kept;
    choose(a, m, pos, n, keep);
    for (int64_t j = 0; j < n; j++) { /* rows only move down, in order: nothing is lost */
        int64_t from = slot_of(m, j);
        if (!keep[j]) continue;
        memmove(m->k + to * bk, m->k + from * bk, (size_t)bk);
        memmove(m->v + to * bv, m->v + from * bv, (size_t)bv);
        m->score[to] = m->score[from];
        if (hl_cache_factors(a)) m->factor[to] = m->factor[from];
        m->pos[to++] = pos[j];
    }
    m->kept = to;
    free(pos);
    free(keep);
}

static void run_head(const struct hl_cache *a, int64_t n, char *state, int64_t h, int64_t *sel) {
    const struct hl_seg *s = &a->rows->seg[n];
    struct cache_head m = head_at(a, state, s->pos);
    const int64_t wide = a->K > a->V ? a->K : a->V;
    real *p = malloc((size_t)(a->window + a->chunk + 2 * wide) * sizeof *p);
    HL_ASSERT(p);
    m.row[0] = p + a->window + a->chunk, m.row[1] = m.row[0] + wide;
    for (int64_t t = 0; t < s->len; t++) {
        int64_t row = s->row + t, pos = s->pos + t, open = pos % a->chunk, slot = a->window + open;
        for (int64_t j = 0; sel && open == 0 && j < a->window; j++)
            sel[(pos / a->chunk * a->HV + h) * a->window + j] = j < m.kept ? s->row + m.pos[j] : -1;
        put_row(a, m.k, slot, a->K, (const real *)a->k + (row * a->H + h / (a->HV / a->H)) * a->K);
        put_row(a, m.v, slot, a->V, (const real *)a->v + (row * a->HV + h) * a->V);
        m.score[slot] = hl_cache_scored(&a->policy) ? a->score[row * a->HV + h] : 0;
        if (hl_cache_factors(a)) m.factor[slot] = hl_cache_factor(a->r_state[row * a->H + h / (a->HV / a->H)], a->K);
        read_row(a, &m, h, row, open + 1, p);
        if (open + 1 < a->chunk) continue;
        if (a->policy.score == HL_SCORE_RECALL) {
            const real *S = state_after(a, n, t, h);
            if (!S) break; /* no later row could read what is kept */
            measure(a, &m, S);
        }
        merge_block(a, &m, pos + 1 - a->chunk);
    }
    free(p);
}

void HL_OP(cache_forward)(struct hl_backend *backend, const struct hl_cache *a) {
    struct hl_cache_layout l = layout_of(a);
    char *own = malloc((size_t)l.bytes);
    (void)backend;
    HL_ASSERT(own);
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        int64_t *sel = a->sel;
        HL_ASSERT(s->state ? !sel : s->pos == 0);
        if (sel) sel += hl_blocks_before(a->rows, n, a->chunk) * a->HV * a->window;
        for (int64_t h = 0; h < a->HV; h++)
            run_head(a, n, s->state ? s->state + a->state_off + h * l.bytes : own, h, sel);
    }
    free(own);
}

/* The contribution of row `row` (the t-th of its block) of value head h to every gradient. */
static void back_row(const struct hl_cache *a, int64_t h, int64_t row, int64_t t, const int64_t *sel) {
    const int64_t hk = h / (a->HV / a->H);
    const real *dout = (const real *)a->dout + (row * a->HV + h) * a->V;
    const real *q = (const real *)a->q + (row * a->H + hk) * a->K;
    real *dq = (real *)a->dq + (row * a->H + hk) * a->K;
    real lam = hl_cache_lambda(a, row, h), lse = a->lse[row * a->HV + h], scale = 1 / R_SQRT((real)a->K);
    real along = dot(dout, (const real *)a->read + (row * a->HV + h) * a->V, a->V), R = lam * along;
    a->dgate[h] += hl_cache_slope(a, lam) * along;
    if (a->dtoken_gate) ((real *)a->dtoken_gate)[row * a->HV + h] = hl_cache_slope(a, lam) * along;
    a->dsink[h] -= R_EXP(a->sink[h] - lse) * R;
    for (int64_t j = 0; j < a->window + t + 1; j++) {
        int64_t from = j < a->window ? sel[j] : row - t + j - a->window;
        if (from < 0) continue;
        const real *k = (const real *)a->k + (from * a->H + hk) * a->K;
        const real *v = (const real *)a->v + (from * a->HV + h) * a->V;
        real *dk = (real *)a->dk + (from * a->H + hk) * a->K, *dv = (real *)a->dv + (from * a->HV + h) * a->V;
        const bool biased = a->policy.score == HL_SCORE_LEARNED && j < a->window;
        real bias = biased ? hl_logsigmoid(a->score[from * a->HV + h]) : 0;
        real s = dot(q, k, a->K) * scale, p = R_EXP(a->tau[h] * s + bias - lse);
        real ds = p * (lam * dot(dout, v, a->V) - R);
        if (biased) a->dscore[from * a->HV + h] += hl_sigmoid(-a->score[from * a->HV + h]) * ds;
        for (int64_t i = 0; i < a->K; i++) {
            dq[i] += a->tau[h] * scale * ds * k[i];
            dk[i] += a->tau[h] * scale * ds * q[i];
        }
        for (int64_t i = 0; i < a->V; i++) dv[i] += p * lam * dout[i];
        if (a->dtau) a->dtau[h] += ds * s;
    }
}

void HL_OP(cache_backward)(struct hl_backend *backend, const struct hl_cache *a) {
    (void)backend;
    HL_ASSERT(a->row_dtype != HOLA_F16);
    memset(a->dq, 0, (size_t)(a->rows->T * a->H * a->K) * sizeof(real));
    memset(a->dk, 0, (size_t)(a->rows->T * a->H * a->K) * sizeof(real));
    if (a->policy.score == HL_SCORE_LEARNED) memset(a->dscore, 0, (size_t)(a->rows->T * a->HV) * sizeof(real));
    for (int64_t n = 0; n < a->rows->n; n++) {
        const struct hl_seg *s = &a->rows->seg[n];
        const int64_t *sel = a->window ? a->sel + hl_blocks_before(a->rows, n, a->chunk) * a->HV * a->window : NULL;
        HL_ASSERT(!s->state && s->pos == 0);
        for (int64_t h = 0; h < a->HV; h++)
            for (int64_t t = 0; t < s->len; t++)
                back_row(a, h, s->row + t, t % a->chunk, sel ? sel + (t / a->chunk * a->HV + h) * a->window : NULL);
    }
}
