/* test_params.c -- the table of tensors, and fresh weights. */
#define _GNU_SOURCE
#include "params_case.h"
#include "mixers/gdn/gdn_layer.h"
#include "temp.h"

/* ---- the table ---- */

struct expect {
    const char *name; /* after model.layers.1. */
    int ndim;
    int64_t dim[3];
};

static void check_layer(const hola_config *c, const struct expect *e, int count) {
    struct hl_params p;
    CHECK_OK(hl_params_new(&p, c));
    for (int i = 0; i < count; i++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.1.%s", e[i].name);
        int64_t at = hl_params_find(&p, name);
        if (at < 0) fail_msg("%s: not in the table", name);
        assert_int_equal(p.tensor[at].ndim, e[i].ndim);
        assert_memory_equal(p.tensor[at].dim, e[i].dim, (size_t)e[i].ndim * 8);
        assert_int_equal(p.tensor[at].layer, 1);
    }
    int64_t in_layer = 0;
    for (int64_t i = 0; i < p.n; i++) in_layer += p.tensor[i].layer == 1;
    assert_int_equal(in_layer, count); /* and no others */
    hl_params_free(&p);
}

#define COMMON                                                                                          \
    {"attn_norm.weight", 1, {32}}, {"mlp_norm.weight", 1, {32}}, {"mlp.gate_proj.weight", 2, {64, 32}}, \
        {"mlp.up_proj.weight", 2, {64, 32}}, {"mlp.down_proj.weight", 2, {32, 64}},                     \
        {"attn.q_proj.weight", 2, {32, 32}}, {"attn.k_proj.weight", 2, {32, 32}},                       \
        {"attn.q_conv1d.weight", 3, {32, 1, 4}}, {                                                      \
        "attn.k_conv1d.weight", 3, { 32, 1, 4 }                                                         \
    }

static void test_table(void **state) {
    static const struct expect hola[] = {COMMON,
                                         {"attn.v_proj.weight", 2, {96, 32}},
                                         {"attn.a_proj.weight", 2, {4, 32}},
                                         {"attn.b_proj.weight", 2, {4, 32}},
                                         {"attn.g_proj.weight", 2, {96, 32}},
                                         {"attn.o_proj.weight", 2, {32, 96}},
                                         {"attn.v_conv1d.weight", 3, {96, 1, 4}},
                                         {"attn.A_log", 1, {4}},
                                         {"attn.dt_bias", 1, {4}},
                                         {"attn.o_norm.weight", 1, {24}},
                                         {"attn.cache_sink", 1, {4}},
                                         {"attn.cache_gate", 1, {4}},
                                         {"attn.cache_tau", 1, {4}},
                                         {"attn.cache_q_norm.weight", 1, {16}},
                                         {"attn.cache_k_norm.weight", 1, {16}}};
    static const struct expect delta[] = {COMMON,
                                          {"attn.v_proj.weight", 2, {32, 32}},
                                          {"attn.b_proj.weight", 2, {2, 32}},
                                          {"attn.o_proj.weight", 2, {32, 32}},
                                          {"attn.v_conv1d.weight", 3, {32, 1, 4}},
                                          {"attn.o_norm.weight", 1, {16}}};
    hola_config c = small(HOLA_TYPE_HOLA), d = small(HOLA_TYPE_DELTA_NET);
    (void)state;
    c.num_v_heads = 4;
    c.head_v_dim = 24;
    check_layer(&c, hola, 23);
    c.cache_evict = HOLA_EVICT_NONE; /* the tensors stay */
    check_layer(&c, hola, 23);
    c.cache_norm = HOLA_NORM_L2;
    check_layer(&c, hola, 21);
    c.model_type = HOLA_TYPE_GATED_DELTANET;
    check_layer(&c, hola, 18);
    check_layer(&d, delta, 14);
}

static void check_name(const struct hl_params *p, int64_t i, int64_t layer, const char *name) {
    char full[100];
    snprintf(full, sizeof full, "model.layers.%lld.%s", (long long)layer, name);
    assert_true(i >= 0 && i < p->n);
    assert_string_equal(p->tensor[i].name, full);
}

static void test_indices(void **state) {
    hola_config c = small(HOLA_TYPE_HOLA);
    struct hl_params p;
    (void)state;
    CHECK_OK(hl_params_new(&p, &c));
    assert_string_equal(p.tensor[p.embed].name, "model.embeddings.weight");
    assert_string_equal(p.tensor[p.final_norm].name, "model.norm.weight");
    assert_true(p.head == p.embed && p.tensor[p.embed].matrix);
    for (int64_t i = 0; i < 2; i++) {
        const struct hl_layer_params *l = &p.layer[i];
        const struct {
            int64_t at;
            const char *name;
        } all[] = {{l->attn_norm, "attn_norm.weight"},
                   {l->mixer[Q_PROJ], "attn.q_proj.weight"},
                   {l->mixer[K_PROJ], "attn.k_proj.weight"},
                   {l->mixer[V_PROJ], "attn.v_proj.weight"},
                   {l->mixer[A_PROJ], "attn.a_proj.weight"},
                   {l->mixer[B_PROJ], "attn.b_proj.weight"},
                   {l->mixer[G_PROJ], "attn.g_proj.weight"},
                   {l->mixer[O_PROJ], "attn.o_proj.weight"},
                   {l->mixer[Q_CONV], "attn.q_conv1d.weight"},
                   {l->mixer[K_CONV], "attn.k_conv1d.weight"},
                   {l->mixer[V_CONV], "attn.v_conv1d.weight"},
                   {l->mixer[A_LOG], "attn.A_log"},
                   {l->mixer[DT_BIAS], "attn.dt_bias"},
                   {l->mixer[O_NORM], "attn.o_norm.weight"},
                   {l->mixer[MEMORY + HL_MEMORY_Q_NORM], "attn.cache_q_norm.weight"},
                   {l->mixer[MEMORY + HL_MEMORY_K_NORM], "attn.cache_k_norm.weight"},
                   {l->mixer[MEMORY + HL_MEMORY_SINK], "attn.cache_sink"},
                   {l->mixer[MEMORY + HL_MEMORY_GATE], "attn.cache_gate"},
                   {l->mixer[MEMORY + HL_MEMORY_TAU], "attn.cache_tau"},
                   {l->mlp_norm, "mlp_norm.weight"},
                   {l->gate_proj, "mlp.gate_proj.weight"},
                   {l->up_proj, "mlp.up_proj.weight"},
                   {l->down_proj, "mlp.down_proj.weight"}};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) check_name(&p, all[j].at, i, all[j].name);
        assert_false(p.tensor[l->mixer[MEMORY + HL_MEMORY_TAU]].trained);
        assert_true(p.tensor[l->mixer[Q_PROJ]].matrix && !p.tensor[l->mixer[Q_CONV]].matrix &&
                    !p.tensor[l->mixer[A_LOG]].matrix);
    }
    for (int64_t i = 0; i < p.n; i++) { /* aligned, in order, no overlap */
        const struct hl_tensor *t = &p.tensor[i];
        int64_t end = i + 1 < p.n ? t[1].offset : p.total;
        assert_int_equal(t->offset * (int64_t)sizeof(real) % 64, 0);
        assert_true(t->offset + t->count <= end && end - t->offset - t->count < 16);
    }
    assert_int_equal(p.total % 16, 0);
    assert_int_equal(hl_params_find(&p, "lm_head.weight"), -1);
    hl_params_free(&p);
    hl_params_free(&p);
    c.tie_word_embeddings = false;
    c.conv_size = 0;
    c.cache_evict = HOLA_EVICT_NONE;
    c.use_gate = false;
    CHECK_OK(hl_params_new(&p, &c));
    assert_string_equal(p.tensor[p.head].name, "lm_head.weight");
    assert_true(p.tensor[p.head].matrix && !p.tensor[p.embed].matrix);
    assert_true(p.layer[0].mixer[Q_CONV] == -1 && p.layer[1].mixer[V_CONV] == -1 && p.layer[0].mixer[G_PROJ] == -1);
    assert_false(p.tensor[p.layer[1].mixer[MEMORY + HL_MEMORY_GATE]].trained);
    hl_params_free(&p);
    c.head_dim = 0;
    CHECK_FAILS(hl_params_new(&p, &c), HOLA_EINVAL, "head_dim");
    assert_null(p.tensor);
}

/* ---- fresh weights ---- */

static void test_init(void **state) {
    hola_config c = small(HOLA_TYPE_HOLA);
    struct hl_params p;
    (void)state;
    c.num_heads = c.num_v_heads = 64;
    c.cache_tau_init = 2.5;
    CHECK_OK(hl_params_new(&p, &c));
    struct hl_pool *one = check_pool(1, 64), *three = check_pool(3, 64);
    real *x = block_new(&p), *y = block_new(&p);
    hl_params_init(&p, one, x, 7);
    for (int64_t i = 0; i < p.n; i++) {
        const struct hl_tensor *t = &p.tensor[i];
        const real *w = x + t->offset;
        double sum = 0, square = 0, lo = w[0], hi = w[0], n = (double)t->count;
        for (int64_t j = 0; j < t->count; j++) {
            sum += (double)w[j];
            square += (double)w[j] * (double)w[j];
            lo = fmin(lo, (double)w[j]);
            hi = fmax(hi, (double)w[j]);
        }
        if (strstr(t->name, "norm")) assert_true(lo == 1 && hi == 1);
        else if (strstr(t->name, "cache_gate")) assert_true(lo == -4 && hi == -4);
        else if (strstr(t->name, "cache_sink")) assert_true(lo == 0 && hi == 0);
        else if (strstr(t->name, "cache_tau")) assert_true(lo == 2.5 && hi == 2.5);
        else if (strstr(t->name, "A_log")) assert_true(hi <= log(16) && hi > log(13) && lo > -12 && lo < log(2));
        else if (strstr(t->name, "dt_bias"))
            assert_true(log1p(exp(lo)) > 0.00099 && log1p(exp(lo)) < 0.002 && log1p(exp(hi)) < 0.1001 &&
                        log1p(exp(hi)) > 0.06);
        else assert_true(fabs(square / n - 0.0004) < 0.0004 * 6 / sqrt(n) && fabs(sum / n) < 0.02 * 5 / sqrt(n));
        int64_t end = i + 1 < p.n ? t[1].offset : p.total;
        for (int64_t j = t->count; j < end - t->offset; j++) assert_true(w[j] == 0);
    }
    hl_params_init(&p, three, y, 7);
    assert_memory_equal(x, y, (size_t)p.total * sizeof(real));
    hl_params_init(&p, one, y, 8);
    CHECK_FAR(y, x, p.total, 1, 0.1);
    /* the same name and shape gives the same tensor in another model */
    struct hl_params q;
    c.num_hidden_layers = 1;
    CHECK_OK(hl_params_new(&q, &c));
    real *z = block_new(&q);
    hl_params_init(&q, one, z, 7);
    hl_pool_free(one);
    hl_pool_free(three);
    assert_memory_equal(z + q.tensor[q.layer[0].up_proj].offset, x + p.tensor[p.layer[0].up_proj].offset,
                        64 * 32 * sizeof(real));
    check_free(z, q.total);
    check_free(x, p.total);
    check_free(y, p.total);
    hl_params_free(&p);
    hl_params_free(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_init),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
