/* cuda_aside.c -- weight gradients on the side stream: training has the same bits with and without it. In the emulator
 * its work runs at once, as late as the waits allow, or in between, and each missing wait gives other bits. */
#define _GNU_SOURCE
#include "cuda.h"
#include "model/trainer.h"
#include "models.h"

/* the emulated device's (tests/emu/device.c) */
enum { EARLY, LATE, MIXED, OFF, MODES };
static const char *const mode_name[] = {"early", "late", "mixed", "off"};
extern int hl_emu_side __attribute__((weak));
extern int hl_emu_deaf __attribute__((weak));

static bool slow;
#define NEEDS_DEVICE() \
    if (!dev_there(&slow)) skip()

/* Which order; on a real device there is only with and without. */
static void choose(int mode) {
    if (&hl_emu_side) hl_emu_side = mode;
    else if (mode == OFF) setenv("HOLA_STREAMS", "1", 1);
    else unsetenv("HOLA_STREAMS");
}

/* ---- training ---- */

/* Enough layers that a buffer is used again before the backward pass ends; small ones, and as large as the kernels of
 * tensor cores need. */
#define SMALL "\"hidden_size\":32,\"num_hidden_layers\":5,\"vocab_size\":67,\"intermediate_size\":48,"
#define LARGE "\"hidden_size\":512,\"num_hidden_layers\":6,\"vocab_size\":4000,\"intermediate_size\":768,"
#define MEMORY "\"cache_window\":8,\"cache_chunk\":32,\"cache_gate_init\":0.5,"
#define TYPES(X, sizes, heads)                                                                              \
    X("{" sizes heads MEMORY "\"model_type\":\"hola\",\"expand_v\":1}")                                     \
    X("{" sizes heads "\"model_type\":\"gated_deltanet\",\"expand_v\":1,\"tie_word_embeddings\":true}")     \
    X("{" sizes heads MEMORY "\"model_type\":\"kda\",\"cache_evict\":\"betae\",\"cache_gate_token\":true}") \
    X("{" sizes "\"model_type\":\"transformer\",\"num_heads\":4}")                                          \
    X("{" sizes "\"model_type\":\"transformer\",\"num_heads\":4,\"qkv_bias\":true,\"qk_norm\":true}")       \
    X("{" sizes "\"model_type\":\"gla\",\"num_heads\":2}")                                                  \
    X("{" sizes "\"model_type\":\"gsa\",\"num_heads\":2,\"num_slots\":16,\"use_short_conv\":true}")
#define LINE(json) json,
static const char *const small[] = {TYPES(LINE, SMALL, "\"num_heads\":2,\"head_dim\":16,")};
static const char *const large[] = {TYPES(LINE, LARGE, "\"num_heads\":4,\"head_dim\":128,")};
enum { COUNT = sizeof small / sizeof *small, DOCS = 3 };

/* The gradients of each step, then the weights. */
struct run {
    int64_t n, total; /* numbers */
    float *x;
};
static struct run train(const char *json, int mode, int steps, int64_t tokens) {
    const int64_t starts[DOCS] = {0, tokens / 3, tokens / 3 + 1};
    hola_options opt = {.threads = 2, .backend = "cuda"};
    hola_train_opts how = {.max_tokens = tokens};
    hola_config cfg;
    hola_model *m;
    hola_trainer *t;
    CHECK_OK(hl_config_parse(&cfg, json, (int64_t)strlen(json), "aside"));
    choose(mode);
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    CHECK_OK(hola_trainer_new(&t, m, &how));
    struct run r = {.n = m->params.total, .total = (steps + 1) * m->params.total};
    assert_non_null(r.x = malloc((size_t)r.total * sizeof *r.x));
    for (int s = 0; s < steps; s++) {
        int32_t *ids = random_ids(tokens, m->cfg.vocab_size, (uint64_t)s);
        for (int half = 0; half < 2; half++) /* the second adds to the gradients of the first */
            CHECK_OK(hola_trainer_accumulate(t, ids, tokens - half, starts, DOCS, 0.5 / (double)tokens, NULL, NULL));
        CHECK_OK(hl_trainer_fetch(t, HL_GRADS));
        memcpy(r.x + s * r.n, hl_trainer_view(t).grads, (size_t)r.n * sizeof *r.x);
        CHECK_OK(hola_trainer_update(t, 3e-3, NULL));
        free(ids);
    }
    CHECK_OK(hl_trainer_fetch(t, HL_PARAMS));
    memcpy(r.x + steps * r.n, hl_trainer_view(t).params, (size_t)r.n * sizeof *r.x);
    hola_trainer_free(t);
    hola_model_free(m);
    return r;
}
static bool same(const struct run *a, const struct run *b) {
    return !memcmp(a->x, b->x, (size_t)a->total * sizeof *a->x);
}

static void same_bits(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (int i = 0; i < COUNT; i++) {
        const char *json = slow ? small[i] : large[i];
        const int steps = slow ? 1 : 20;
        const int64_t tokens = slow ? 70 : 4096;
        struct run want = train(json, OFF, steps, tokens);
        for (int mode = 0; mode < (&hl_emu_side ? OFF : LATE); mode++) {
            struct run got = train(json, mode, steps, tokens);
            if (!same(&got, &want)) fail_msg("%s: other bits, %s", json, mode_name[mode]);
            free(got.x);
        }
        for (int64_t j = 0; j < want.total; j++) assert_true(isfinite(want.x[j]));
        free(want.x);
    }
    choose(EARLY);
}

/* Without one of the waits, or the join, some gradient is computed from what a later layer has written. */
static void missing_waits(void **state) {
    (void)state;
    NEEDS_DEVICE();
    if (!&hl_emu_side) skip();
    for (int i = 0; i < COUNT; i += 3) {
        const int marks[] = {HL_MARK_LAYER, HL_MARK_LAYER + 1, HL_MARKS};
        struct run want = train(small[i], LATE, 1, 70);
        for (size_t k = 0; k < sizeof marks / sizeof *marks; k++) {
            hl_emu_deaf = marks[k] + 1;
            struct run got = train(small[i], LATE, 1, 70);
            hl_emu_deaf = 0;
            if (same(&got, &want)) fail_msg("%s: not seen that wait %d is missing", small[i], marks[k]);
            free(got.x);
        }
        free(want.x);
    }
    choose(EARLY);
}

/* ---- the head ---- */

static void head_once(const struct dev *d, int mode, int deaf, int64_t M, real *dW, real *dx) {
    enum { V = 24, D = 16 };
    const int64_t most = HL_XENT_ROWS_CUDA * V;
    real *x = check_random(M * D, -1, 1, 1), *W = check_random(V * D, -1, 1, 2), *zero = calloc(V * D, sizeof *zero);
    int32_t *target = random_ids(M, V, 3);
    choose(mode);
    struct hl_xent a = {.M = M, .D = D, .W = {.rows = V, .cols = D}, .scale = (real)0.01};
    a.x = dev_act(d, x, M * D), a.W.data = dev_act(d, W, V * D), a.target = dev_put(d, target, M * 4);
    a.nll = hl_alloc(d->backend, M * 8), a.dx = dev_act(d, NULL, M * D), a.dW = dev_real(d, zero, V * D);
    a.logits = dev_act(d, NULL, most);
    if (mode != OFF) a.logits2 = dev_act(d, NULL, most);
    if (&hl_emu_deaf) hl_emu_deaf = deaf;
    d->ops->xent(d->backend, &a);
    if (&hl_emu_deaf) hl_emu_deaf = 0;
    hl_cuda_join(hl_cuda_of(d->backend));
    dev_act_take(d, a.dx, dx, M * D), dev_real_take(d, a.dW, dW, V * D);
    dev_drop(d, a.x), dev_drop(d, a.W.data), dev_drop(d, a.target), dev_drop(d, a.nll), dev_drop(d, a.logits);
    if (a.logits2) dev_drop(d, a.logits2);
    check_free(x, M * D), check_free(W, V * D), free(zero), free(target);
    choose(EARLY);
}
/* Slices of logits take turns with two workspaces, while the gradient of the weights reads the one before. */
static void head(void **state) {
    enum { SIZE = 24 * 16 };
    const int64_t M = 4 * HL_XENT_ROWS_CUDA - 100;
    real want[SIZE], got[SIZE], *dx[2] = {check_new(M * 16), check_new(M * 16)};
    (void)state;
    NEEDS_DEVICE();
    if (dev_least()) skip();
    struct dev d = dev_open(false);
    head_once(&d, OFF, 0, M, want, dx[0]);
    for (int mode = 0; mode < (&hl_emu_side ? OFF : LATE); mode++) {
        head_once(&d, mode, 0, M, got, dx[1]);
        assert_memory_equal(got, want, sizeof want);
        assert_memory_equal(dx[0], dx[1], (size_t)(M * 16) * sizeof(real));
    }
    for (int i = 0; &hl_emu_side && i < 2; i++) {
        head_once(&d, LATE, HL_MARK_LOGITS + i + 1, M, got, dx[1]);
        assert_true(memcmp(got, want, sizeof want) != 0);
    }
    dev_close(&d);
    check_free(dx[0], M * 16), check_free(dx[1], M * 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(missing_waits),
                                       cmocka_unit_test(head)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
