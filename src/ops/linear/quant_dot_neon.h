/* quant_dot_neon.h -- group sums of quantised columns on 64-bit ARM; included by quant_dot_cpu.c.
 *
 * NEON: codes are widened to 16 bits and multiplied by a lane of x. Dot-product instructions sum four 8-bit products: x
 * is split as 256 hi + lo, two 8-bit numbers, summed separately and combined at the end; hi must be below 128, which is
 * why HL_DOT_MOST is less than 32767. Both read a panel in halves of 16 rows, because the sums of several rows of x
 * fill the registers. */
enum { HALF = NV / 2 };

#ifdef __ARM_FEATURE_DOTPROD
/* The low bytes of 8 columns of x, then the high ones, in the order in which four_columns() returns the codes. */
INLINE int8x16_t split_bytes(hola_dtype dtype, const int16_t *x) {
    static const uint8_t order[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    const int16x8_t v = vld1q_s16(x);
    const int8x16_t b = vcombine_s8(vmovn_s16(v), vrshrn_n_s16(v, 8)); /* rounded: the low byte is signed */
    return dtype == HOLA_INT8 ? b : vqtbl1q_s8(b, vld1q_u8(order));
}

/* One half (q) of the 8 columns of a step, for two vectors of rows. INT8: columns 4q to 4q + 3. INT4: 0 4 1 5, then
 * 2 6 3 7. */
INLINE int8x16x2_t four_columns(hola_dtype dtype, const uint8_t *w, int v, int q) {
    int8x16x2_t out;
    if (dtype == HOLA_INT8) {
        const uint8_t *p = w + (2 * q * HL_PANEL + v * VL) * 2;
        const uint16x8_t a = vreinterpretq_u16_u8(vld1q_u8(p)), b = vreinterpretq_u16_u8(vld1q_u8(p + HL_PANEL * 2));
        out.val[0] = vreinterpretq_s8_u16(vzip1q_u16(a, b));
        out.val[1] = vreinterpretq_s8_u16(vzip2q_u16(a, b));
        return out;
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint8x16_t eight = vld1q_u8(w + (v + i) * VL * 4);
        out.val[i] = vreinterpretq_s8_u8(q ? vshrq_n_u8(eight, 4) : vandq_u8(eight, vdupq_n_u8(15)));
    }
    return out;
}

/* HL_CODE_STEP columns of half a panel */
INLINE void step(int mr, hola_dtype dtype, const struct hl_dot *d, const uint8_t *w, int64_t k, int half,
                 vq low[HL_DOT_ROWS][NV], vq high[HL_DOT_ROWS][NV]) {
    UNROLL
    for (int v = half * HALF; v < (half + 1) * HALF; v += 2) {
        const int8x16x2_t c0 = four_columns(dtype, w, v, 0), c1 = four_columns(dtype, w, v, 1);
        UNROLL
        for (int i = 0; i < mr; i++) {
            const int8x16_t x = split_bytes(dtype, d->x + i * d->xs + k);
            UNROLL
            for (int j = 0; j < 2; j++) {
                low[i][v + j] = (vq)vdotq_laneq_s32((int32x4_t)low[i][v + j], c0.val[j], x, 0);
                high[i][v + j] = (vq)vdotq_laneq_s32((int32x4_t)high[i][v + j], c0.val[j], x, 2);
                low[i][v + j] = (vq)vdotq_laneq_s32((int32x4_t)low[i][v + j], c1.val[j], x, 1);
                high[i][v + j] = (vq)vdotq_laneq_s32((int32x4_t)high[i][v + j], c1.val[j], x, 3);
            }
        }
    }
}
#else
/* 8 columns of 16 rows. ld2 and ld4 deinterleave (quant.h). */
INLINE void eight_columns(hola_dtype dtype, const uint8_t *w, int half, int8x16_t column[HL_CODE_STEP]) {
    if (dtype == HOLA_INT8) {
        UNROLL
        for (int p = 0; p < HL_CODE_STEP / 2; p++) {
            const uint8x16x2_t two = vld2q_u8(w + (p * HL_PANEL + half * HL_PANEL / 2) * 2);
            column[2 * p] = vreinterpretq_s8_u8(two.val[0]);
            column[2 * p + 1] = vreinterpretq_s8_u8(two.val[1]);
        }
        return;
    }
    const uint8x16x4_t all = vld4q_u8(w + half * HL_PANEL / 2 * 4);
    UNROLL
    for (int j = 0; j < 4; j++) { /* the byte of columns 0 2, 4 6, 1 3, 5 7 */
        const int c = j % 2 * 4 + j / 2;
        column[c] = vreinterpretq_s8_u8(vandq_u8(all.val[j], vdupq_n_u8(15)));
        column[c + 2] = vreinterpretq_s8_u8(vshrq_n_u8(all.val[j], 4));
    }
}

INLINE void step(int mr, hola_dtype dtype, const struct hl_dot *d, const uint8_t *w, int64_t k, int half,
                 vq acc[HL_DOT_ROWS][NV], vq high[HL_DOT_ROWS][NV]) {
    int8x16_t column[HL_CODE_STEP];
    (void)high;
    eight_columns(dtype, w, half, column);
#define COLUMN(c) /* a lane is a constant */                                                \
    {                                                                                       \
        const int16x8_t a = vmovl_s8(vget_low_s8(column[c])), b = vmovl_high_s8(column[c]); \
        UNROLL                                                                              \
        for (int i = 0; i < mr; i++) {                                                      \
            const int16x8_t x = vld1q_s16(d->x + i * d->xs + k);                            \
            vq *to = &acc[i][half * HALF];                                                  \
            to[0] = (vq)vmlal_laneq_s16((int32x4_t)to[0], vget_low_s16(a), x, c);           \
            to[1] = (vq)vmlal_high_laneq_s16((int32x4_t)to[1], a, x, c);                    \
            to[2] = (vq)vmlal_laneq_s16((int32x4_t)to[2], vget_low_s16(b), x, c);           \
            to[3] = (vq)vmlal_high_laneq_s16((int32x4_t)to[3], b, x, c);                    \
        }                                                                                   \
    }
    COLUMN(0)
    COLUMN(1)
    COLUMN(2)
    COLUMN(3)
    COLUMN(4)
    COLUMN(5)
    COLUMN(6)
    COLUMN(7)
#undef COLUMN
}
#endif

INLINE void sum_group(int mr, hola_dtype dtype, const struct hl_dot *d, const uint8_t *w, int64_t k, int64_t n,
                      vq acc[HL_DOT_ROWS][NV]) {
    _Static_assert(HALF == 4 && HL_CODE_STEP == 8, "a half is four vectors, a step eight columns");
    const int64_t bytes = HL_PANEL * HL_CODE_STEP / (dtype == HOLA_INT8 ? 1 : 2);
    const int together = mr == 1 ? 2 : 1; /* halves */
    UNROLL
    for (int h0 = 0; h0 < 2; h0 += together) {
        vq high[HL_DOT_ROWS][NV] = {{{0}}};
        for (int64_t j = 0; j < n; j += HL_CODE_STEP) {
            const uint8_t *at = w + j / HL_CODE_STEP * bytes;
            if (mr <= 2 && h0 == 0)
                for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(at + AHEAD + line);
            UNROLL
            for (int h = h0; h < h0 + together; h++) step(mr, dtype, d, at, k + j, h, acc, high);
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int v = h0 * HALF; v < (h0 + together) * HALF; v++) acc[i][v] += high[i][v] << 8;
        }
    }
}
