/* attention.c -- scratch memory of CPU attention. */
#include "ops/attention/attention_cpu.h"
#include "core/carve.h"

static struct hl_attention_work lay_out(void *scratch, int64_t D) {
    struct hl_attention_work w = {.ldd = hl_small_gemm_ld(D), .ldk = hl_small_gemm_ld(ATTENTION_KEYS)};
    struct hl_carve c = {scratch, 0, 64};
    const int64_t rows = ATTENTION_ROWS, size = (int64_t)sizeof(real);
    _Static_assert((int)ATTENTION_ROWS == (int)ATTENTION_KEYS, "transposes of both have one leading dimension");
    w.mm = hl_carve(&c, HL_SMALL_GEMM_SCRATCH, size);
    w.q = hl_carve(&c, rows * w.ldd, size);
    w.v = hl_carve(&c, rows * w.ldd, size);
    w.O = hl_carve(&c, rows * w.ldd, size);
    w.max = hl_carve(&c, rows, size);
    w.sum = hl_carve(&c, rows, size);
    w.S = hl_carve(&c, rows * w.ldk, size);
    w.dS = hl_carve(&c, rows * w.ldk, size);
    w.dout = w.O, w.k = w.v; /* of the other direction */
    w.qT = hl_carve(&c, D * w.ldk, size);
    w.doutT = hl_carve(&c, D * w.ldk, size);
    w.kT = hl_carve(&c, D * w.ldk, size);
    w.vT = hl_carve(&c, D * w.ldk, size);
    w.R = hl_carve(&c, rows, size);
    w.bytes = c.used;
    return w;
}

struct hl_attention_work hl_attention_worker(struct hl_pool *pool, int worker, int64_t D) {
    return lay_out(hl_pool_scratch(pool, worker, lay_out(NULL, D).bytes), D);
}
int64_t hl_attention_scratch(int64_t H, int64_t HK, int64_t D) {
    (void)H, (void)HK;
    return lay_out(NULL, D).bytes;
}
