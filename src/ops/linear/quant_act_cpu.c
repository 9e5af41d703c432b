/* quant_act_cpu.c -- quantises rows of x to 16-bit integers, strip by strip, and multiplies them by a block's panels
 * (quant_dot.h). */
#include "ops/linear/quant_dot.h"
#ifdef HL_NEON
#include <sys/auxv.h>
#endif

enum { PIECE = 1024 }; /* columns at a time with many rows: the block's weights stay in cache */

typedef int16_t vs __attribute__((vector_size(2 * VL)));

static int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* n <= HL_GROUP_MAX numbers of x; out has space for whole vectors. Returns the scale: NaN if x is not finite, so that
 * out becomes NaN. */
static real quantise_group(const real *x, int64_t n, int16_t *out, int32_t *sum) {
    const real magic = sizeof(real) == 4 ? (real)12582912 : (real)6755399441055744; /* adding it rounds to an integer */
    vr most = {0}, bad = {0}, total = {0}; /* exact: a sum of integers below 2^24 */
    real peak = 0;
    vr v[HL_GROUP_MAX / VL];
    const int64_t vectors = hl_pieces(round_up(n, HL_CODE_STEP), VL);
    for (int64_t i = 0, left = n; i < vectors; i++, left -= VL) {
        v[i] = left >= VL ? v_load(x + i * VL) : left > 0 ? v_load_n(x + i * VL, left) : (vr){0};
        most = v_max(most, v_max(v[i], -v[i]));
        bad += v[i] - v[i];
    }
    peak = v_hmax(most);
    const vr inverse = v_set(peak > 0 ? HL_DOT_MOST / peak : 0);
    for (int64_t i = 0; i < vectors; i++) {
        const vr rounded = v[i] * inverse + magic;
        const vs narrow = __builtin_convertvector((vi)rounded - (vi)v_set(magic), vs);
        total += rounded - magic;
        memcpy(out + i * VL, &narrow, sizeof narrow);
    }
    *sum = (int32_t)v_sum(total);
    return peak / HL_DOT_MOST + v_sum(bad);
}

struct strip {
    int16_t *x;
    real *scale;
    int32_t *sum;
    int64_t xs, gs;
};

/* a strip of m rows and K columns in scratch memory, K a multiple of the group or all columns */
static struct strip strip_in(void *scratch, int64_t m, int64_t K, int64_t G) {
    struct strip s = {.xs = round_up(K, HL_GROUP_MAX), .gs = hl_pieces(K, G)};
    s.x = scratch;
    s.scale = (real *)(s.x + m * s.xs);
    s.sum = (int32_t *)(s.scale + round_up(m * s.gs, 16));
    return s;
}
/* the most columns that fit in this many bytes */
static int64_t columns_in(int64_t bytes, int64_t m, int64_t G) {
    const int64_t group = m * (G * 2 + (int64_t)sizeof(real) + 4);
    return (bytes - 256 - m * 2 * HL_GROUP_MAX) / group * G / HL_GROUP_MAX * HL_GROUP_MAX;
}

/* rows x[0, m), from a group's first column on */
static void quantise_rows(const struct strip *s, const real *x, int64_t xs, int64_t m, int64_t K, int64_t G) {
    for (int64_t r = 0; r < m; r++)
        for (int64_t g = 0; g < s->gs; g++)
            s->scale[r * s->gs + g] = quantise_group(x + r * xs + g * G, min64(K - g * G, G), s->x + r * s->xs + g * G,
                                                     &s->sum[r * s->gs + g]);
}

bool HL_OP(dot_strip)(void *strip, int64_t bytes, hola_dtype dtype, const real *x, int64_t xs, int64_t m, int64_t K) {
    const int64_t G = hl_group_size(dtype);
    const struct strip s = strip_in(strip, m, K, G);
    if ((const char *)(s.sum + m * s.gs) - (const char *)strip > bytes) return false;
    quantise_rows(&s, x, xs, m, K, G);
    return true;
}

static void (*dot_of(void))(const struct hl_dot *) {
#if defined(__AVX512F__)
    if (__builtin_cpu_supports("avx512vnni")) return hl_avx512vnni_dot;
#elif defined(HL_NEON)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return hl_dotprod_dot;
#endif
    return HL_OP(dot);
}

void HL_OP(dot_block)(const struct hl_dot_block *b, void *scratch, int64_t bytes) {
    void (*const dot)(const struct hl_dot *) = dot_of();
    const int64_t G = hl_group_size(b->dtype), panel = hl_quant_panel(b->dtype, b->K);
    const int64_t rows = min64(b->m, HL_DOT_ROWS);
    int64_t piece = columns_in(bytes, rows, G);
    if (b->strip) piece = b->K;
    else if (b->m > HL_DOT_ROWS) piece = min64(piece, PIECE);
    for (int64_t k = 0; k < b->K; k += piece) {
        const int64_t K = min64(b->K - k, piece);
        const struct strip s = strip_in(b->strip ? (void *)(uintptr_t)b->strip : scratch, rows, K, G);
        const char *B = (const char *)b->panels + b->n0 / HL_PANEL * panel + k / G * hl_quant_block(b->dtype, G);
        struct hl_dot d = {.dtype = b->dtype, .K = K, .x = s.x, .scale = s.scale, .sum = s.sum};
        d.xs = s.xs;
        d.gs = s.gs;
        d.ldc = b->ldc;
        d.add = b->add || k > 0;
        for (int64_t i = 0; i < b->m; i += HL_DOT_ROWS) {
            d.mr = (int)min64(b->m - i, HL_DOT_ROWS);
            if (!b->strip) quantise_rows(&s, b->x + i * b->xs + k, b->xs, d.mr, K, G);
            for (int64_t j = 0; j < b->n; j += HL_PANEL) {
                d.B = B + j / HL_PANEL * panel;
                d.n = (int)min64(b->n - j, HL_PANEL);
                d.C = b->C + i * b->ldc + j;
                dot(&d);
            }
        }
    }
}
