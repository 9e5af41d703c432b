/* models.h -- small models for the tests: every type and every variant of the exact memory. */
#include "check.h"
#include "model/config.h"
#include "model/model.h"

struct variant {
    const char *name, *json;
};
#define TINY                                                                                               \
    "\"hidden_size\":48,\"num_hidden_layers\":2,\"vocab_size\":97,\"intermediate_size\":80,\"initializer_" \
    "range\":0.2,"
#define HOLA                                                                                                 \
    "\"model_type\":\"hola\",\"num_heads\":2,\"head_dim\":16,\"cache_window\":8,\"cache_chunk\":32,\"cache_" \
    "gate_init\":0.5,"
static const struct variant variants[] = {
    {"hola", "{" TINY HOLA "\"expand_v\":1}"},
    {"hola without gate, tied", "{" TINY HOLA "\"expand_v\":1,\"use_gate\":false,\"tie_word_embeddings\":true}"},
    {"hola e", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"e\"}"},
    {"hola betav", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"betav\"}"},
    {"hola recency", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"recency\"}"},
    {"hola h2o", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"h2o\"}"},
    {"hola none", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"none\"}"},
    {"hola l2, tau learned",
     "{" TINY HOLA "\"expand_v\":1,\"cache_norm\":\"l2\",\"cache_tau_init\":3,\"cache_tau_freeze\":false}"},
    {"hola, value heads 4", "{" TINY HOLA "\"num_v_heads\":4,\"expand_v\":2,\"allow_neg_eigval\":true}"},
    {"hola window 0", "{" TINY "\"model_type\":\"hola\",\"num_heads\":2,\"head_dim\":16,\"expand_v\":1,"
                      "\"cache_window\":0,\"cache_chunk\":32}"},
    {"hola default block",
     "{" TINY "\"model_type\":\"hola\",\"num_heads\":2,\"head_dim\":16,\"expand_v\":1,\"cache_gate_init\":0}"},
    {"gated_deltanet", "{" TINY "\"model_type\":\"gated_deltanet\",\"num_heads\":2,\"head_dim\":16,\"expand_v\":2}"},
    {"delta_net", "{" TINY "\"model_type\":\"delta_net\",\"num_heads\":3}"},
    {"hola lola", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"lola\"}"},
    {"hola lola, l2, value heads 4",
     "{" TINY HOLA "\"num_v_heads\":4,\"expand_v\":2,\"cache_evict\":\"lola\",\"cache_norm\":\"l2\"}"},
    {"hola lte, value heads 4", "{" TINY HOLA "\"num_v_heads\":4,\"expand_v\":1,\"cache_evict\":\"lte\"}"},
    {"hola lte, l2", "{" TINY HOLA "\"expand_v\":2,\"cache_evict\":\"lte\",\"cache_norm\":\"l2\",\"cache_lte_dim\":5}"},
    {"hola streaming", "{" TINY HOLA "\"expand_v\":1,\"cache_evict\":\"streaming\",\"cache_sinks\":3}"},
    {"transformer", "{" TINY "\"model_type\":\"transformer\",\"num_heads\":3}"},
    {"transformer, window", "{" TINY "\"model_type\":\"transformer\",\"num_heads\":4,\"num_kv_heads\":2,"
                            "\"qkv_bias\":true,\"qk_norm\":true,\"window_size\":20,\"rope_theta\":1000.0}"},
    {"gla", "{" TINY "\"model_type\":\"gla\",\"num_heads\":2,\"tie_word_embeddings\":true}"},
    {"gla, convolutions, grouped heads",
     "{" TINY "\"model_type\":\"gla\",\"num_heads\":4,\"num_kv_heads\":2,\"expand_k\":1,\"use_short_conv\":true,"
     "\"feature_map\":\"relu\",\"clamp_min\":-0.1,\"use_output_gate\":false,\"elementwise_affine\":false}"},
    {"gsa", "{" TINY "\"model_type\":\"gsa\",\"num_heads\":2,\"num_slots\":12}"},
    {"gsa, convolutions, grouped heads",
     "{" TINY "\"model_type\":\"gsa\",\"num_heads\":4,\"num_kv_heads\":2,\"num_slots\":null,\"expand_k\":0.5,"
     "\"use_short_conv\":true,\"conv_size\":3,\"feature_map\":\"relu\",\"elementwise_affine\":false}"},
    {"hola, one set per layer", "{" TINY HOLA "\"expand_v\":1,\"cache_layer_set\":true,\"num_v_heads\":4}"},
    {"kda with exact memory e, one set per layer, a gate per token",
     "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"head_dim\":16,\"cache_evict\":\"e\",\"cache_window\":8,"
     "\"cache_chunk\":32,\"cache_gate_init\":0.5,\"cache_gate_token\":true,\"cache_layer_set\":true}"},
    {"kda", "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"head_dim\":16}"},
    {"kda, value heads 4, lower bound",
     "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"num_v_heads\":4,\"head_dim\":16,\"expand_v\":0.5,"
     "\"lower_bound\":-5.0,\"safe_gate\":true,\"allow_neg_eigval\":true,\"use_short_conv\":false}"},
    {"kda with exact memory",
     "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"head_dim\":16,\"cache_evict\":\"betae\","
     "\"cache_window\":8,\"cache_chunk\":32,\"cache_gate_init\":0.5}"},
    {"kda with exact memory h2o, l2",
     "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"head_dim\":16,\"cache_evict\":\"h2o\","
     "\"cache_norm\":\"l2\",\"cache_window\":8,\"cache_chunk\":32,\"cache_gate_init\":0.5}"},
    {"hola, linear gates", "{" TINY HOLA "\"expand_v\":1,\"cache_gate_linear\":true}"},
    {"hola, a gate per token", "{" TINY HOLA "\"expand_v\":1,\"cache_gate_token\":true,\"num_v_heads\":4}"},
    {"hola, near-duplicates last", "{" TINY HOLA "\"expand_v\":1,\"cache_redundancy\":0.4}"},
    {"kda with exact memory, a gate per token, near-duplicates last",
     "{" TINY "\"model_type\":\"kda\",\"num_heads\":2,\"head_dim\":16,\"cache_evict\":\"betae\",\"cache_window\":8,"
     "\"cache_chunk\":32,\"cache_gate_init\":0.5,\"cache_gate_token\":true,\"cache_redundancy\":0.4}"},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static inline hola_config variant_config(int i) {
    hola_config cfg;
    CHECK_OK(hl_config_parse(&cfg, variants[i].json, (int64_t)strlen(variants[i].json), variants[i].name));
    return cfg;
}
/* Gates that differ from token to token: fresh ones do not. */
static inline void open_token_gates(hola_model *m) {
    for (int64_t i = 0; i < m->params.n; i++) {
        const struct hl_tensor *t = &m->params.tensor[i];
        for (int64_t j = 0; strstr(t->name, "cache_gate_proj") && j < t->count; j++)
            m->rows[t->offset + j] = (real)((double)(check_mix((uint64_t)(i * 1000 + j)) % 1000) / 1000 - 0.5);
    }
}
static inline hola_model *variant_model(int i, int threads, const char *backend) {
    hola_config cfg = variant_config(i);
    hola_options opt = {.threads = threads, .backend = backend};
    hola_model *m;
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    open_token_gates(m);
    return m;
}
static inline int32_t *random_ids(int64_t n, int64_t vocab, uint64_t seed) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(check_mix(seed + (uint64_t)i) % (uint64_t)vocab);
    return ids;
}
/* log-probabilities of ids[1..n-1], fed in pieces of `piece` tokens */
static inline double *scores(hola_model *m, const int32_t *ids, int64_t n, int64_t piece) {
    double *lp = calloc((size_t)n, sizeof *lp);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    for (int64_t i = 0; i < n - 1; i += piece) {
        int64_t k = i + piece < n - 1 ? piece : n - 1 - i;
        CHECK_OK(hola_session_score(s, ids + i, ids + i + 1, k, lp + i));
    }
    hola_session_free(s);
    return lp;
}
static inline double farthest(const double *a, const double *b, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs(a[i] - b[i]);
        if (!(e <= worst)) worst = e == e ? e : 1e30;
    }
    return worst;
}

/* Sessions in one batch have the bits of one alone; ids: 130 of them. */
static inline void check_side_by_side(hola_model *m, const int32_t *ids) {
    enum { SIDE = 3, VOCABULARY = 97 };
    hola_session *s[SIDE], *alone;
    float side[SIDE * VOCABULARY], one[VOCABULARY];
    assert_int_equal(m->cfg.vocab_size, VOCABULARY);
    for (int i = 0; i < SIDE; i++) CHECK_OK(hola_session_new(&s[i], m));
    CHECK_OK(hola_session_new(&alone, m));
    for (int k = 0; k < 40; k++) {
        const int32_t step[SIDE] = {ids[k], ids[k + 50], ids[k + 90]};
        CHECK_OK(hola_session_step(s, SIDE, step, side));
        CHECK_OK(hola_session_feed(alone, &ids[k + 50], 1, one));
        assert_memory_equal(one, side + VOCABULARY, sizeof one);
    }
    for (int i = 0; i < SIDE; i++) hola_session_free(s[i]);
    hola_session_free(alone);
}
