/* test_config.c -- presets, exact parameter counts, config.json read, everything wrong with it; the hash. */
#define _GNU_SOURCE
#include "temp.h"
#include "core/json.h"
#include "model/config.h"

static hola_status parse(hola_config *c, const char *text) {
    return hl_config_parse(c, text, (int64_t)strlen(text), "dir/config.json");
}

/* ---- counts ---- */

static void test_presets(void **state) {
    enum { H = HOLA_TYPE_HOLA, G = HOLA_TYPE_GATED_DELTANET, D = HOLA_TYPE_DELTA_NET, T = HOLA_TYPE_TRANSFORMER };
    static const struct {
        const char *name;
        int type;
        int64_t parameters;
    } cases[] = {
        {"340m", G, 341597376},
        {"340m-nogate", G, 341597376},
        {"340m-gate", G, 366763200},
        {"340m", H, 341609856},
        {"340m-gate", H, 366775680},
        {"170m", G, 187183200},
        {"170m-gate", G, 199766112},
        {"170m", H, 187189440},
        {"170m-gate", H, 199772352},
        {"46m", G, 46405728},
        {"46m-gate", G, 46405728},
        {"46m", H, 46405728 + 3168},
        {"340m", D, 341594112},
        {"340m-gate", D, 341594112 + 24 * 1024 * 1024},
        {"46m-nogate", G, 46405728 - 12 * 512 * 512},
        {"46m", T, 46674432},
        {"170m", T, 186934272},
        {"340m", T, 341099520},
    };
    hola_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hola_config_preset(&c, cases[i].name, (hola_model_type)cases[i].type));
        CHECK_OK(hola_config_check(&c));
        if (hola_config_parameters(&c) != cases[i].parameters)
            fail_msg("%s %s: %lld parameters, not %lld", hola_model_type_name(c.model_type), cases[i].name,
                     (long long)hola_config_parameters(&c), (long long)cases[i].parameters);
    }
    CHECK_OK(hola_config_preset(&c, "340m", HOLA_TYPE_HOLA));
    assert_true(c.tie_word_embeddings && !c.use_gate && c.intermediate_size == 2816);
    assert_true(c.cache_window == 64 && c.cache_chunk == 256 && c.cache_tau_freeze);
    c.tie_word_embeddings = false;
    assert_int_equal(hola_config_parameters(&c), 341609856 + 32000 * 1024);
    static const struct {
        const char *name;
        int64_t plain, learned;
    } evict[] = {{"46m", 46405728 + 3168, 46612464}, {"170m", 187189440, 187589616}, {"340m", 341609856, 342410208}};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hola_config_preset(&c, evict[i].name, HOLA_TYPE_HOLA));
        for (int e = 0; e < HOLA_EVICT_COUNT; e++) {
            c.cache_evict = (hola_evict)e;
            if (e == HOLA_EVICT_NONE) continue;
            assert_int_equal(hola_config_parameters(&c), e == HOLA_EVICT_LTE ? evict[i].learned : evict[i].plain);
        }
    }
    CHECK_OK(hola_config_preset(&c, "340m", HOLA_TYPE_DELTA_NET));
    assert_true(c.num_heads == 8 && c.head_dim == 128);
    CHECK_FAILS(hola_config_preset(&c, "341m", HOLA_TYPE_HOLA), HOLA_EINVAL, "preset 341m: not one of 46m");
    CHECK_FAILS(hola_config_preset(&c, "46m-", HOLA_TYPE_HOLA), HOLA_EINVAL, "46m-");
    CHECK_FAILS(hola_config_preset(&c, "46m-gate", HOLA_TYPE_TRANSFORMER), HOLA_EINVAL,
                "preset 46m-gate: transformer is not offered");
    CHECK_FAILS(hola_config_preset(&c, "", HOLA_TYPE_HOLA), HOLA_EINVAL, "preset");
    CHECK_FAILS(hola_config_preset(&c, "46m", HOLA_TYPE_COUNT), HOLA_EINVAL, "46m");
}

#define SMALL                                                                                             \
    "\"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_heads\": 2, \"vocab_size\": 61, \"norm_eps\": " \
    "1e-06, "                                                                                             \
    "\"intermediate_size\": 64, \"tie_word_embeddings\": true"
#define SMALL_HOLA "{" SMALL ", \"head_dim\": 16, \"expand_v\": 1.0, \"model_type\": \"hola\", \"cache_window\": 4"

/* Configs as the reference vectors have them: many fields left out. */
static void test_vector_configs(void **state) {
    static const struct {
        const char *text;
        int64_t parameters;
    } cases[] = {
        {"{" SMALL ", \"model_type\": \"delta_net\"}", 23520},
        {"{" SMALL ", \"head_dim\": 16, \"expand_v\": 2.0, \"model_type\": \"gated_deltanet\"}", 32136},
        {"{" SMALL ", \"head_dim\": 16, \"expand_v\": 1.0, \"model_type\": \"gated_deltanet\"}", 25704},
        {"{" SMALL ", \"head_dim\": 16, \"expand_v\": 1, \"use_gate\": false, \"model_type\": \"gated_deltanet\"}",
         23656},
        {SMALL_HOLA "}", 25776},
        {SMALL_HOLA ", \"use_gate\": false}", 23728},
        {SMALL_HOLA ", \"cache_norm\": \"l2\", \"cache_tau_freeze\": false}", 25716},
        {SMALL_HOLA ", \"cache_norm\": \"l2\"}", 25712},    /* tau not trained */
        {SMALL_HOLA ", \"cache_evict\": \"none\"}", 25704}, /* as gated_deltanet */
    };
    hola_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(parse(&c, cases[i].text));
        assert_int_equal(hola_config_parameters(&c), cases[i].parameters);
    }
}

static void test_defaults(void **state) {
    hola_config c;
    (void)state;
    CHECK_OK(parse(&c, "{\"model_type\": \"gated_deltanet\"}"));
    assert_true(c.hidden_size == 2048 && c.num_hidden_layers == 21 && c.num_heads == 6 && c.num_v_heads == 6);
    assert_true(c.head_dim == 256 && c.head_v_dim == 512 && c.intermediate_size == 5632 && c.conv_size == 4);
    assert_true(c.vocab_size == 32000 && !c.tie_word_embeddings && c.use_gate && !c.allow_neg_eigval);
    assert_true(c.norm_eps == 1e-6 && c.initializer_range == 0.02 && c.bos_token_id == 1 && c.eos_token_id == 2);
    assert_true(c.max_position_embeddings == 2048 && c.use_beta && c.hidden_ratio == 4);
    CHECK_OK(parse(&c, "{\"model_type\": \"hola\"}"));
    assert_true(c.cache_evict == HOLA_EVICT_BETAE && c.cache_norm == HOLA_NORM_RMS && c.cache_window == 64);
    assert_true(c.cache_chunk == 256 && c.cache_gate_init == -4 && c.cache_tau_init == 1 && c.cache_tau_freeze &&
                c.cache_sinks == 4 && c.cache_lte_dim == 16);
    CHECK_OK(parse(&c, "{\"model_type\": \"delta_net\", \"hidden_size\": 1024}"));
    assert_true(c.num_heads == 16 && c.head_dim == 64 && c.head_v_dim == 64 && !c.use_gate && c.use_beta);
    assert_true(c.num_hidden_layers == 24 && c.intermediate_size == 2816);
}

/* What null, lists and derived fields mean. */
static void test_meanings(void **state) {
    hola_config c;
    (void)state;
    CHECK_OK(parse(&c, SMALL_HOLA ", \"num_v_heads\": null, \"bos_token_id\": null, \"eos_token_id\": [5, 6], "
                                  "\"max_position_embeddings\": null, \"attn\": null, \"use_short_conv\": false}"));
    assert_true(c.num_v_heads == 2 && c.bos_token_id == -1 && c.eos_token_id == 5 && c.conv_size == 0);
    assert_int_equal(c.max_position_embeddings, 2048);
    CHECK_OK(parse(&c, SMALL_HOLA ", \"num_v_heads\": 6, \"bos_token_id\": 61, \"eos_token_id\": -1, "
                                  "\"conv_size\": 3, \"cache_evict\": \"h2o\", \"hidden_act\": \"silu\"}"));
    assert_true(c.num_v_heads == 6 && c.bos_token_id == -1 && c.eos_token_id == -1 && c.conv_size == 3);
    assert_int_equal(c.cache_evict, HOLA_EVICT_H2O);
    CHECK_OK(parse(&c, "{\"model_type\": \"hola\", \"hidden_size\": 512, \"hidden_ratio\": 2, "
                       "\"intermediate_size\": null}"));
    assert_int_equal(c.intermediate_size, 768);
    CHECK_OK(parse(&c, "{\"model_type\": \"hola\", \"hidden_size\": 512, \"hidden_ratio\": null}"));
    assert_int_equal(c.intermediate_size, 1536);
    CHECK_OK(parse(&c, "{\"model_type\": \"delta_net\", \"hidden_size\": 96, \"num_heads\": 3, \"expand_k\": 0.5, "
                       "\"expand_v\": 2, \"use_gate\": true, \"use_beta\": false}"));
    assert_true(c.head_dim == 16 && c.head_v_dim == 64 && c.use_gate && !c.use_beta);
    /* hola's fields mean nothing to the others, not even wrong ones */
    CHECK_OK(parse(&c, "{\"model_type\": \"gated_deltanet\", \"cache_window\": \"x\", \"cache_evict\": 3}"));
    assert_int_equal(c.cache_evict, HOLA_EVICT_NONE);
    assert_int_equal(hl_intermediate_size(2048, 4), 5632);
    assert_int_equal(hl_intermediate_size(512, 3.5), 1280);
    assert_int_equal(hl_intermediate_size(1, 1), 0);
}

/* ---- wrong configs ---- */

static void test_bad_fields(void **state) {
    static const char *const cases[][3] = {
        /* field, value, message after "dir/config.json: " */
        {"hidden_size", "0", "hidden_size: 0 is not between 1 and 65536"},
        {"hidden_size", "65537", "hidden_size: 65537 is not"},
        {"hidden_size", "-9223372036854775808", "hidden_size: -9223372036854775808 is not"},
        {"hidden_size", "32.0", "hidden_size: expected an integer, found a number"},
        {"hidden_size", "\"32\"", "hidden_size: expected an integer, found a string"},
        {"hidden_size", "null", "hidden_size: expected an integer, found null"},
        {"hidden_size", "[]", "hidden_size: expected an integer, found an array"},
        {"hidden_size", "true", "hidden_size: expected an integer, found true or false"},
        {"num_hidden_layers", "0", "num_hidden_layers: 0 is not between 1 and 1024"},
        {"num_hidden_layers", "1025", "num_hidden_layers: 1025 is not"},
        {"vocab_size", "0", "vocab_size: 0 is not between 1 and 16777216"},
        {"vocab_size", "16777217", "vocab_size: 16777217 is not"},
        {"num_heads", "0", "num_heads: 0 is not between 1 and 1024"},
        {"num_heads", "1025", "num_heads: 1025 is not"},
        {"num_v_heads", "0", "num_v_heads: 0 is not between 1 and 1024"},
        {"num_v_heads", "3", "num_v_heads: 3 is not a multiple of num_heads, 2"},
        {"num_v_heads", "1", "num_v_heads: 1 is not a multiple"},
        {"num_v_heads", "{}", "num_v_heads: expected an integer, found an object"},
        {"head_dim", "0", "head_dim: 0 is not between 1 and 512"},
        {"head_dim", "513", "head_dim: 513 is not"},
        {"expand_v", "65", "head_v_dim: 1040 is not between 1 and 1024"},
        {"expand_v", "0", "expand_v: 0 gives no whole head size"},
        {"expand_v", "-1", "expand_v: -1 gives no whole"},
        {"expand_v", "1.03", "expand_v: 1.03 gives no whole"},
        {"expand_v", "1e300", "expand_v: 1e+300 gives no whole"},
        {"expand_v", "null", "expand_v: expected a number, found null"},
        {"intermediate_size", "0", "intermediate_size: 0 is not between 1 and 1048576"},
        {"intermediate_size", "1048577", "intermediate_size: 1048577 is not"},
        {"intermediate_size", "64.5", "intermediate_size: expected an integer"},
        {"hidden_ratio", "-1", "hidden_ratio: -1 is not between"},
        {"hidden_ratio", "\"4\"", "hidden_ratio: expected a number, found a string"},
        {"conv_size", "0", "conv_size: 0 is not between 1 and 8"},
        {"conv_size", "9", "conv_size: 9 is not between"},
        {"conv_size", "null", "conv_size: expected an integer, found null"},
        {"use_short_conv", "1", "use_short_conv: expected true or false, found an integer"},
        {"use_gate", "null", "use_gate: expected true or false, found null"},
        {"tie_word_embeddings", "\"no\"", "tie_word_embeddings: expected true or false"},
        {"allow_neg_eigval", "0", "allow_neg_eigval: expected true or false"},
        {"norm_eps", "0", "norm_eps: 0 is not between 1e-30 and 1"},
        {"norm_eps", "-1e-6", "norm_eps: -1e-06 is not"},
        {"norm_eps", "\"1e-6\"", "norm_eps: expected a number"},
        {"initializer_range", "-0.1", "initializer_range: -0.1 is not between 0 and 100"},
        {"initializer_range", "1e308", "initializer_range: 1e+308 is not"},
        {"max_position_embeddings", "0", "max_position_embeddings: 0 is not between 1 and 2147483647"},
        {"bos_token_id", "-2", "bos_token_id: -2 is not between -1 and 16777215"},
        {"bos_token_id", "1.5", "bos_token_id: expected an integer"},
        {"eos_token_id", "\"</s>\"", "eos_token_id: expected an integer, found a string"},
        {"eos_token_id", "[]", "eos_token_id: expected an integer, found an array"},
        {"eos_token_id", "[[1]]", "eos_token_id: expected an integer, found an array"},
        {"cache_sinks", "4097", "cache_sinks: 4097 is not between 0 and 4096"},
        {"cache_redundancy", "2", "cache_redundancy: 2 is not between 0 and 1"},
        {"cache_redundancy", "true", "cache_redundancy: expected a number"},
        {"cache_gate_token", "1", "cache_gate_token: expected"},
        {"cache_layer_set", "1", "cache_layer_set: expected true or false, found an integer"},
        {"cache_layer_set", "null", "cache_layer_set: expected true or false, found null"},
        {"cache_layer_set", "\"layer\"", "cache_layer_set: expected true or false, found a string"},
        {"cache_lte_dim", "0", "cache_lte_dim: 0 is not between 1 and 64"},
        {"cache_lte_dim", "65", "cache_lte_dim: 65 is not"},
        {"cache_lte_dim", "null", "cache_lte_dim: expected an integer, found null"},
        {"cache_lte_dim", "1.5", "cache_lte_dim: expected an integer"},
        {"cache_window", "-1", "cache_window: -1 is not between 0 and 4096"},
        {"cache_window", "4097", "cache_window: 4097 is not"},
        {"cache_chunk", "0", "cache_chunk: 0 is not between 1 and 4096"},
        {"cache_chunk", "4097", "cache_chunk: 4097 is not"},
        {"cache_evict", "\"lru\"",
         "cache_evict: \"lru\" is not one of betae, e, betav, recency, h2o, none, streaming, "
         "lola, lte"},
        {"cache_evict", "null", "cache_evict: expected a string, found null"},
        {"cache_norm", "\"\"", "cache_norm: \"\" is not one of rms, l2"},
        {"cache_norm", "1", "cache_norm: expected a string, found an integer"},
        {"cache_gate_init", "1e7", "cache_gate_init: 1e+07 is not between"},
        {"cache_gate_init", "\"-4\"", "cache_gate_init: expected a number"},
        {"cache_tau_init", "-1e300", "cache_tau_init: -1e+300 is not between"},
        {"cache_tau_freeze", "\"yes\"", "cache_tau_freeze: expected true or false, found a string"},
        {"model_type", "3", "model_type: expected a string, found an integer"},
        {"model_type", "null", "model_type: expected a string, found null"},
    };
    char message[256];
    hola_config c;
    (void)state;
    CHECK_OK(parse(&c, SMALL_HOLA "}"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = json_loads(SMALL_HOLA "}", 0, NULL);
        json_object_set_new(root, cases[i][0], json_loads(cases[i][1], JSON_DECODE_ANY, NULL));
        char *text = json_dumps(root, 0);
        snprintf(message, sizeof message, "dir/config.json: %s", cases[i][2]);
        CHECK_FAILS(parse(&c, text), HOLA_EFORMAT, message);
        free(text);
        json_decref(root);
    }
    CHECK_OK(hola_config_check(&c)); /* a failed parse leaves the struct alone */
}

static void test_not_supported(void **state) {
    static const char *const cases[][2] = {
        {"\"attn\": {\"layers\": [1], \"num_heads\": 2}", "attn: hybrid"},
        {"\"attnres_block_size\": 4", "attnres_block_size"},
        {"\"quantization_config\": {}", "quantization_config"},
        {"\"conv_bias\": true", "conv_bias"},
        {"\"use_mamba_gate\": false", "use_mamba_gate"},
        {"\"hidden_act\": \"gelu\"", "hidden_act: only swish"},
        {"\"hidden_act\": 3", "hidden_act"},
        {"\"qk_activation\": \"relu\"", "qk_activation"},
        {"\"qk_norm\": \"sum\"", "qk_norm"},
    };
    hola_config c;
    char text[400];
    (void)state;
    for (int type = 0; type <= HOLA_TYPE_DELTA_NET; type++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", hola_model_type_name((hola_model_type)type),
                     cases[i][0]);
            CHECK_FAILS(parse(&c, text), HOLA_ENOTSUP, cases[i][1]);
        }
    CHECK_FAILS(parse(&c, "{\"model_type\": \"mamba\"}"), HOLA_ENOTSUP, "dir/config.json: model_type: mamba is not");
    CHECK_OK(parse(&c,
                   "{\"model_type\": \"hola\", \"attn\": null, \"attnres_block_size\": null, \"conv_bias\": false, "
                   "\"use_mamba_gate\": true, \"qk_norm\": \"l2\", \"qk_activation\": \"silu\", \"fuse_norm\": 7}"));
}

/* ---- transformer ---- */

#define TRANSFORMER "{" SMALL ", \"model_type\": \"transformer\""
static void test_transformer(void **state) {
    static const char *const wrong[][2] = {
        {"\"num_heads\": 3", "num_heads: 3 does not divide hidden_size, 32"},
        {"\"num_heads\": 32", "num_heads: 32 gives an odd head size, 1"},
        {"\"num_heads\": null", "num_heads: expected an integer, found null"},
        {"\"num_kv_heads\": 0", "num_kv_heads: 0 is not between 1 and 1024"},
        {"\"num_heads\": 4, \"num_kv_heads\": 3", "num_kv_heads: 3 does not divide num_heads, 4"},
        {"\"num_kv_heads\": 4", "num_kv_heads: 4 does not divide num_heads, 2"},
        {"\"num_kv_heads\": true", "num_kv_heads: expected an integer"},
        {"\"qkv_bias\": null", "qkv_bias: expected true or false, found null"},
        {"\"qkv_bias\": 1", "qkv_bias: expected true or false"},
        {"\"qk_norm\": null", "qk_norm: expected true or false, found null"},
        {"\"qk_norm\": \"l2\"", "qk_norm: expected true or false, found a string"},
        {"\"window_size\": 0", "window_size: 0 is not between 1 and 1048576"},
        {"\"window_size\": -1", "window_size: -1 is not between"},
        {"\"window_size\": 1048577", "window_size: 1048577 is not between"},
        {"\"window_size\": 20.5", "window_size: expected an integer"},
        {"\"rope_theta\": null", "rope_theta: expected a number, found null"},
        {"\"rope_theta\": 0", "rope_theta: 0 is not between"},
        {"\"rope_theta\": -1e4", "rope_theta: -10000 is not between"},
        {"\"rope_theta\": \"1e4\"", "rope_theta: expected a number, found a string"},
    };
    static const char *const not_supported[][2] = {
        {"\"attn\": {\"layers\": [1]}", "attn: hybrid"},
        {"\"attnres_block_size\": 4", "attnres_block_size"},
        {"\"hidden_act\": \"gelu\"", "hidden_act: only swish"},
    };
    char text[400];
    hola_config c, d;
    (void)state;
    snprintf(text, sizeof text, "{\"model_type\": \"transformer\", \"hidden_size\": 4096, \"num_heads\": 2}");
    CHECK_FAILS(parse(&c, text), HOLA_EFORMAT, "num_heads: 2 gives heads of 2048 channels, more than 1024");
    CHECK_OK(parse(&c, "{\"model_type\": \"transformer\"}"));
    assert_true(c.hidden_size == 2048 && c.num_hidden_layers == 24 && c.num_heads == 32 && c.num_kv_heads == 32);
    assert_true(c.intermediate_size == 5632 && !c.qkv_bias && !c.qk_norm && c.window_size == 0 && c.rope_theta == 1e4);
    CHECK_OK(parse(&c, TRANSFORMER ", \"num_kv_heads\": null, \"window_size\": null, \"elementwise_affine\": 3}"));
    assert_true(c.num_kv_heads == 2 && c.window_size == 0);
    assert_int_equal(hola_config_parameters(&c), 22592); /* as the vector's */
    CHECK_OK(parse(&d, "{" SMALL ", \"model_type\": \"transformer\", \"num_kv_heads\": 1, \"qkv_bias\": true, "
                       "\"qk_norm\": true, \"window_size\": 20, \"rope_theta\": 1000.0}"));
    assert_true(d.num_kv_heads == 1 && d.qkv_bias && d.qk_norm && d.window_size == 20 && d.rope_theta == 1000);
    assert_int_equal(hola_config_parameters(&d), 22592 + 2 * (-2 * 16 * 32 + 64 + 32));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const bool heads = strstr(wrong[i][0], "num_heads\"") != NULL; /* the small config's own must not come twice */
        snprintf(text, sizeof text, "{\"hidden_size\": 32, \"model_type\": \"transformer\", %s%s}",
                 heads ? "" : "\"num_heads\": 2, ", wrong[i][0]);
        CHECK_FAILS(parse(&c, text), HOLA_EFORMAT, wrong[i][1]);
    }
    for (size_t i = 0; i < sizeof not_supported / sizeof *not_supported; i++) {
        snprintf(text, sizeof text, TRANSFORMER ", %s}", not_supported[i][0]);
        CHECK_FAILS(parse(&c, text), HOLA_ENOTSUP, not_supported[i][1]);
    }
    /* every field of a session's numbers is in the hash */
    hola_config e[6] = {d, d, d, d, d, d};
    e[1].num_kv_heads = 2, e[2].qkv_bias = false, e[3].qk_norm = false, e[4].window_size = 0, e[5].rope_theta = 1e4;
    for (int i = 1; i < 6; i++) assert_true(hl_config_hash(&e[i]) != hl_config_hash(&e[0]));
    e[0].cache_window = 5, e[0].use_gate = !d.use_gate; /* fields of other types are not */
    assert_true(hl_config_hash(&e[0]) == hl_config_hash(&d));
    CHECK_OK(hola_config_preset(&c, "46m", HOLA_TYPE_TRANSFORMER));
    assert_true(hl_config_hash(&c) == 0x02b8adbcc4f57f68);
    /* a change of type takes the new type's defaults */
    CHECK_OK(hola_config_preset(&c, "46m", HOLA_TYPE_HOLA));
    hl_config_change_type(&c, HOLA_TYPE_TRANSFORMER);
    CHECK_OK(hola_config_check(&c));
    assert_true(c.num_heads == 4 && c.num_kv_heads == 4 && c.rope_theta == 1e4 && c.intermediate_size == 768);
    hl_config_change_type(&c, HOLA_TYPE_HOLA);
    CHECK_OK(hola_config_check(&c));
    assert_true(c.num_v_heads == 4 && c.cache_evict == HOLA_EVICT_BETAE && c.hidden_size == 512);
}

static void test_bad_texts(void **state) {
    static const char *const cases[][2] = {
        {"", "line"},
        {"[]", "not a JSON object"},
        {"{}", "model_type: missing"},
        {"{\"model_type\": \"hola\"} x", "line 1"},
        {"{\"model_type\": \"hola\", \"model_type\": \"hola\"}", "duplicate"},
        {"{\"model_type\": \"hola\", \"norm_eps\": NaN}", "line 1"},
        {"{\"model_type\": \"hola\", \"norm_eps\": 1e999}", "overflow"},
        {"{\"model_type\": \"hola\", \"head_dim\": 99999999999999999999}", "too big integer"},
        {"{\"model_type\": \"hola\", \"x\": \"\xff\"}", "decode byte 0xff"},
        {"{\"model_type\": \"hola\", \"x\": \"\\u0000\"}", "line 1"},
        {"{\"model_type\": \"hola\",\n\n \"x\": }", "line 3"},
        {"{\"model_type\": \"delta_net\", \"num_heads\": 7}", "expand_k: 1 gives no whole head size"},
        {"{\"model_type\": \"delta_net\", \"expand_k\": 1e12}", "expand_k"},
        {"{\"model_type\": \"delta_net\", \"num_heads\": 1}", "head_dim: 2048 is not between 1 and 512"},
        {"{\"model_type\": \"delta_net\", \"use_beta\": 1}", "use_beta"},
        {"{\"model_type\": \"hola\", \"hidden_ratio\": 1e300}", "hidden_ratio: 1e+300 is not between"},
        {"{\"model_type\": \"hola\", \"hidden_ratio\": 1e6}", "hidden_ratio: 1e+06 is out of range"},
        {"{\"model_type\": \"hola\", \"hidden_ratio\": 0}", "hidden_ratio"},
    };
    hola_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_FAILS(parse(&c, cases[i][0]), HOLA_EFORMAT, cases[i][1]);
    CHECK_FAILS(hl_config_parse(&c, "{\"model_type\": \"hola\"}\0", 23, "x"), HOLA_EFORMAT, "x: a NUL byte");
    CHECK_FAILS(hl_config_parse(&c, "{\"model_type\": \"hola\", \"x\": 1\0}", 31, "x"), HOLA_EFORMAT, "x: a NUL byte");
    /* cut at every byte */
    const char *good = SMALL_HOLA ", \"x\": [1.5, \"\xc3\xa9\", {\"y\": null}]}";
    CHECK_OK(parse(&c, good));
    for (int64_t n = 0; n < (int64_t)strlen(good); n++)
        CHECK_FAILS(hl_config_parse(&c, good, n, "f"), HOLA_EFORMAT, "f: ");
    /* nested deeper than any reader should follow */
    int64_t deep = 1000000;
    char *text = malloc((size_t)deep);
    memset(text, '[', (size_t)deep);
    memcpy(text, "{\"x\":", 5);
    CHECK_FAILS(hl_config_parse(&c, text, deep, "f"), HOLA_EFORMAT, "f: line");
    free(text);
    CHECK_FAILS(hl_config_parse(&c, "{", HL_MAX_CONFIG_TEXT + 1, "f"), HOLA_EFORMAT, "f: larger than");
}

static void test_check(void **state) {
    hola_config good, c;
    (void)state;
    CHECK_OK(hola_config_preset(&good, "46m", HOLA_TYPE_HOLA));
#define WRONG(field, value)                                                 \
    do {                                                                    \
        c = good;                                                           \
        c.field = value;                                                    \
        CHECK_FAILS(hola_config_check(&c), HOLA_EINVAL, "config: " #field); \
        assert_int_equal(hola_config_parameters(&c), 0);                    \
    } while (0)
    WRONG(model_type, HOLA_TYPE_COUNT);
    WRONG(hidden_size, 0);
    WRONG(num_hidden_layers, -1);
    WRONG(intermediate_size, (int64_t)1 << 62);
    WRONG(vocab_size, 0);
    WRONG(num_heads, 0);
    WRONG(num_v_heads, 5);
    WRONG(head_dim, 513);
    WRONG(head_v_dim, 1025);
    WRONG(conv_size, -1);
    WRONG(max_position_embeddings, 0);
    WRONG(bos_token_id, -2);
    WRONG(eos_token_id, 1 << 24);
    WRONG(norm_eps, NAN);
    WRONG(initializer_range, INFINITY);
    WRONG(hidden_ratio, 0);
    WRONG(cache_evict, HOLA_EVICT_COUNT);
    WRONG(cache_norm, HOLA_NORM_COUNT);
    WRONG(cache_window, 4097);
    WRONG(cache_chunk, 0);
    WRONG(cache_sinks, -1);
    WRONG(cache_lte_dim, 0);
    WRONG(cache_redundancy, 1.5);
    WRONG(cache_redundancy, NAN);
    WRONG(cache_gate_init, NAN);
    WRONG(cache_tau_init, -INFINITY);
    WRONG(use_beta, false);
#undef WRONG
    c = good;
    c.model_type = HOLA_TYPE_COUNT;
    CHECK_FAILS(hola_config_check(&c), HOLA_EINVAL, "is unknown");
    c = good;
    c.model_type = HOLA_TYPE_DELTA_NET;
    c.cache_chunk = 0; /* no matter there */
    CHECK_OK(hola_config_check(&c));
    c.num_v_heads *= 2;
    CHECK_FAILS(hola_config_check(&c), HOLA_EINVAL, "num_v_heads");
    assert_string_equal(hola_model_type_name(HOLA_TYPE_COUNT), "unknown");
    assert_string_equal(hola_evict_name(HOLA_EVICT_H2O), "h2o");
    assert_string_equal(hola_cache_norm_name(HOLA_NORM_L2), "l2");
    assert_string_equal(hola_dtype_name(HOLA_BF16), "BF16");
}

/* One set per layer needs scores that are known when a token is written, or positions. */
static void test_layer_set(void **state) {
    static const char *const why[HOLA_EVICT_COUNT] = {
        [HOLA_EVICT_H2O] = "config: cache_layer_set: h2o does not score a token when it is written",
        [HOLA_EVICT_LOLA] = "config: cache_layer_set: lola does not score",
        [HOLA_EVICT_LTE] = "config: cache_layer_set: lte does not score"};
    hola_config c, other;
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int e = 0; e < HOLA_EVICT_COUNT; e++) {
            hl_config_defaults(&c, type ? HOLA_TYPE_KDA : HOLA_TYPE_HOLA);
            c.cache_evict = (hola_evict)e;
            if (type && e == HOLA_EVICT_LOLA) continue; /* kda has none */
            CHECK_OK(hola_config_check(&c));
            other = c;
            other.cache_layer_set = true;
            if (why[e]) CHECK_FAILS(hola_config_check(&other), HOLA_EINVAL, why[e]);
            else CHECK_OK(hola_config_check(&other));
            if (e != HOLA_EVICT_NONE) assert_true(hl_config_hash(&other) != hl_config_hash(&c));
            assert_int_equal(hola_config_parameters(&other), why[e] ? 0 : hola_config_parameters(&c));
        }
    hl_config_defaults(&c, HOLA_TYPE_HOLA);
    c.cache_layer_set = c.cache_gate_token = true;
    CHECK_OK(hola_config_check(&c));
    c.cache_redundancy = 0.5;
    CHECK_FAILS(hola_config_check(&c), HOLA_EINVAL,
                "config: cache_layer_set: cache_redundancy compares keys of one head");
    c.model_type = HOLA_TYPE_GATED_DELTANET; /* no exact memory here */
    CHECK_OK(hola_config_check(&c));
    CHECK_FAILS(parse(&c, SMALL_HOLA ", \"cache_evict\": \"lola\", \"cache_layer_set\": true}"), HOLA_EFORMAT,
                "dir/config.json: cache_layer_set: lola does not score a token when it is written");
}

/* Saved sessions hold these hashes: they must never change. Every field that counts has at least two values
 * here. */
static void test_hash(void **state) {
    static const struct {
        const char *preset;
        uint64_t hash[HOLA_TYPE_DELTA_NET + 1];
    } cases[] = {
        {"46m", {0x984f770214e4b4d4, 0x30232689f47f319b, 0x55f145287f90d9e3}},
        {"170m-gate", {0xf3330d304fb46841, 0x86b61675f819357d, 0xa6d76bbd81a47aac}},
        {"340m", {0x02db182d03ef4642, 0x746af2fa1fad4721, 0xc058587102733e71}},
    };
    hola_config c, other;
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int type = 0; type <= HOLA_TYPE_DELTA_NET; type++) {
            CHECK_OK(hola_config_preset(&c, cases[i].preset, (hola_model_type)type));
            assert_true(hl_config_hash(&c) == cases[i].hash[type]);
        }
    hl_config_defaults(&c, HOLA_TYPE_HOLA);
    c.vocab_size = 61, c.num_v_heads = 12, c.conv_size = 0, c.norm_eps = 1e-5;
    c.allow_neg_eigval = c.tie_word_embeddings = true;
    c.cache_evict = HOLA_EVICT_H2O, c.cache_norm = HOLA_NORM_L2, c.cache_window = 7, c.cache_chunk = 5;
    assert_true(hl_config_hash(&c) == 0x45a67cb2b05c39e6);
    other = c; /* what a session does not depend on */
    other.max_position_embeddings = 7, other.bos_token_id = 3, other.hidden_ratio = 2;
    other.initializer_range = 1, other.cache_gate_init = 0, other.cache_tau_freeze = false;
    assert_true(hl_config_hash(&other) == hl_config_hash(&c));
    hl_config_defaults(&c, HOLA_TYPE_DELTA_NET);
    c.use_beta = false;
    assert_true(hl_config_hash(&c) == 0xcb0e38c8fb4d8dcf);
    c.cache_window = 7; /* no exact memory here */
    assert_true(hl_config_hash(&c) == 0xcb0e38c8fb4d8dcf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),   cmocka_unit_test(test_vector_configs), cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_meanings),  cmocka_unit_test(test_bad_fields),     cmocka_unit_test(test_not_supported),
        cmocka_unit_test(test_bad_texts), cmocka_unit_test(test_transformer),    cmocka_unit_test(test_check),
        cmocka_unit_test(test_hash),      cmocka_unit_test(test_layer_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
