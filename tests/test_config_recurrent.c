/* test_config_recurrent.c -- config.json of gla, gsa and kda: counts, defaults, wrong fields, and files that are written
 * back as they were. */
#include "check.h"
#include "mixers/exact_memory.h"
#include "model/config.h"
#include <jansson.h>

static hola_status parse(hola_config *c, const char *text) {
    return hl_config_parse(c, text, (int64_t)strlen(text), "f");
}
#define CHECK_FAILS(call, status, text)                                                        \
    do {                                                                                       \
        assert_int_equal(call, status);                                                        \
        if (!strstr(hola_last_error(), text)) fail_msg("%s, not %s", hola_last_error(), text); \
    } while (0)

static void test_presets(void **state) {
    static const struct {
        const char *name;
        hola_model_type type;
        int64_t parameters;
    } cases[] = {
        {"46m", HOLA_TYPE_GLA, 46236672},          {"170m", HOLA_TYPE_GLA, 187238400},
        {"340m", HOLA_TYPE_GLA, 341707776},        {"46m", HOLA_TYPE_GSA, 46483968},
        {"170m", HOLA_TYPE_GSA, 190092288},        {"340m", HOLA_TYPE_GSA, 347415552},
        {"46m", HOLA_TYPE_KDA, 46393392},          {"170m", HOLA_TYPE_KDA, 193497696},
        {"340m", HOLA_TYPE_KDA, 354226368},        {"46m-memory", HOLA_TYPE_KDA, 46393392 + 12 * (2 * 128 + 2 * 4)},
        {"170m-memory", HOLA_TYPE_KDA, 193500960}, {"340m-memory", HOLA_TYPE_KDA, 354232896},
    };
    hola_config c;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hola_config_preset(&c, cases[i].name, cases[i].type));
        CHECK_OK(hola_config_check(&c));
        if (hola_config_parameters(&c) != cases[i].parameters)
            fail_msg("%s %s: %lld parameters, not %lld", hola_model_type_name(c.model_type), cases[i].name,
                     (long long)hola_config_parameters(&c), (long long)cases[i].parameters);
        assert_true(hl_has_exact_memory(&c) == (strstr(cases[i].name, "memory") != NULL));
    }
    /* the sizes that give gated_deltanet's counts */
    CHECK_OK(hola_config_preset(&c, "170m", HOLA_TYPE_KDA));
    c.intermediate_size = 2656;
    assert_int_equal(hola_config_parameters(&c), 187599456);
    CHECK_OK(hola_config_preset(&c, "340m", HOLA_TYPE_GSA));
    c.intermediate_size = 2752;
    assert_int_equal(hola_config_parameters(&c), 342696960);
    CHECK_FAILS(hola_config_preset(&c, "46m-gate", HOLA_TYPE_GLA), HOLA_EINVAL, "gla is not offered");
    CHECK_FAILS(hola_config_preset(&c, "46m-memory", HOLA_TYPE_GLA), HOLA_EINVAL, "only kda");
    CHECK_FAILS(hola_config_preset(&c, "46m-memory", HOLA_TYPE_HOLA), HOLA_EINVAL, "only kda");
}

static void test_defaults(void **state) {
    hola_config c;
    (void)state;
    CHECK_OK(parse(&c, "{\"model_type\": \"gla\"}"));
    assert_true(c.hidden_size == 2048 && c.num_hidden_layers == 24 && c.num_heads == 4 && c.num_kv_heads == 4);
    assert_true(c.head_dim == 256 && c.head_v_dim == 512 && c.conv_size == 0 && c.use_gate && c.elementwise_affine);
    assert_true(c.feature_map == HOLA_MAP_NONE && c.fuse_norm && c.clamp_min == -INFINITY && c.norm_eps == 1e-6);
    CHECK_OK(parse(&c, "{\"model_type\": \"gsa\"}"));
    assert_true(c.num_heads == 4 && c.head_dim == 512 && c.head_v_dim == 512 && c.num_slots == 64);
    assert_true(c.feature_map == HOLA_MAP_SWISH && c.gate_logit_normalizer == 8 && c.conv_size == 0);
    CHECK_OK(parse(&c, "{\"model_type\": \"gsa\", \"num_slots\": null, \"expand_k\": 0.25}"));
    assert_true(c.head_dim == 128 && c.num_slots == 128);
    CHECK_OK(parse(&c, "{\"model_type\": \"kda\"}"));
    assert_true(c.num_heads == 16 && c.num_v_heads == 16 && c.head_dim == 128 && c.head_v_dim == 128);
    assert_true(c.conv_size == 4 && !c.allow_neg_eigval && !c.safe_gate && c.lower_bound == 0);
    assert_true(c.cache_evict == HOLA_EVICT_NONE && !hl_has_exact_memory(&c));
    CHECK_OK(parse(&c, "{\"model_type\": \"kda\", \"cache_evict\": \"betae\"}"));
    assert_true(hl_has_exact_memory(&c) && c.cache_window == 64 && c.cache_chunk == 256);
    /* null where that is the default; what has no effect is passed over */
    CHECK_OK(parse(&c, "{\"model_type\": \"gla\", \"num_kv_heads\": null, \"clamp_min\": null, \"feature_map\": null, "
                       "\"attn\": null, \"use_gk\": 7, \"use_gv\": 1, \"attn_mode\": \"chunk\", "
                       "\"gate_logit_normalizer\": \"x\", \"fuse_cross_entropy\": 3, \"hidden_ratio\": null}"));
    CHECK_OK(parse(&c, "{\"model_type\": \"gsa\", \"use_output_gate\": 3, \"use_norm\": 1, \"clamp_min\": 5, "
                       "\"clamp_max\": 6, \"fuse_norm\": 9, \"hidden_act\": \"silu\"}"));
    CHECK_OK(parse(&c, "{\"model_type\": \"gla\", \"use_short_conv\": true, \"feature_map\": \"silu\", "
                       "\"clamp_min\": 0}"));
    assert_true(c.conv_size == 4 && c.feature_map == HOLA_MAP_SWISH && c.clamp_min == 0);
}

static void test_wrong(void **state) {
    static const struct {
        const char *type, *field, *message;
        hola_status status;
    } cases[] = {
        {"gla", "\"num_kv_heads\": 3", "num_kv_heads: 3 does not divide num_heads, 4", HOLA_EFORMAT},
        {"gla", "\"num_heads\": null", "num_heads: expected an integer, found null", HOLA_EFORMAT},
        {"gla", "\"num_heads\": 3", "expand_k: 0.5 gives no whole head size", HOLA_EFORMAT},
        {"gla", "\"expand_v\": 0", "expand_v: 0 gives no whole head size", HOLA_EFORMAT},
        {"gla", "\"expand_k\": null", "expand_k: expected a number, found null", HOLA_EFORMAT},
        {"gla", "\"feature_map\": \"elu\"", "feature_map: elu is not supported", HOLA_ENOTSUP},
        {"gla", "\"feature_map\": 1", "feature_map: expected a string", HOLA_EFORMAT},
        {"gla", "\"clamp_min\": 0.1", "clamp_min: 0.1 is not between -inf and 0", HOLA_EFORMAT},
        {"gla", "\"clamp_min\": true", "clamp_min: expected a number", HOLA_EFORMAT},
        {"gla", "\"use_output_gate\": null", "use_output_gate: expected true or false", HOLA_EFORMAT},
        {"gla", "\"elementwise_affine\": 1", "elementwise_affine: expected true or false", HOLA_EFORMAT},
        {"gla", "\"fuse_norm\": null", "fuse_norm: expected true or false", HOLA_EFORMAT},
        {"gla", "\"use_short_conv\": 1", "use_short_conv: expected true or false", HOLA_EFORMAT},
        {"gla", "\"use_short_conv\": true, \"conv_size\": 9", "conv_size: 9 is not between", HOLA_EFORMAT},
        {"gla", "\"attn\": {\"layers\": [1]}", "attn: hybrid", HOLA_ENOTSUP},
        {"gla", "\"hidden_act\": \"gelu\"", "hidden_act: only swish", HOLA_ENOTSUP},
        {"gsa", "\"num_slots\": 0", "num_slots: 0 is not between 1 and 1024", HOLA_EFORMAT},
        {"gsa", "\"num_slots\": 2.5", "num_slots: expected an integer", HOLA_EFORMAT},
        {"gsa", "\"expand_v\": 0.5", "expand_v: 4 heads of 256 channels are not hidden_size, 2048", HOLA_EFORMAT},
        {"gsa", "\"feature_map\": \"t2r\"", "feature_map: t2r is not supported", HOLA_ENOTSUP},
        {"gsa", "\"feature_map\": \"sigmoid\"", "feature_map: sigmoid is not supported", HOLA_ENOTSUP},
        {"gsa", "\"feature_map\": null", "feature_map: expected a string, found null", HOLA_EFORMAT},
        {"gsa", "\"gate_logit_normalizer\": 0", "gate_logit_normalizer: 0 is not between", HOLA_EFORMAT},
        {"gsa", "\"gate_logit_normalizer\": null", "gate_logit_normalizer: expected a number", HOLA_EFORMAT},
        {"gsa", "\"attnres_block_size\": 4", "attnres_block_size", HOLA_ENOTSUP},
        {"kda", "\"num_v_heads\": 24", "num_v_heads: 24 is not a multiple of num_heads, 16", HOLA_EFORMAT},
        {"kda", "\"cache_evict\": \"lola\"", "cache_evict: kda has no lola", HOLA_EFORMAT},
        {"kda", "\"head_dim\": null", "head_dim: expected an integer, found null", HOLA_EFORMAT},
        {"kda", "\"head_dim\": 513", "head_dim: 513 is not between 1 and 512", HOLA_EFORMAT},
        {"kda", "\"expand_v\": 0.3", "expand_v: 0.3 gives no whole head size", HOLA_EFORMAT},
        {"kda", "\"lower_bound\": 0", "lower_bound: 0 is not below 0", HOLA_EFORMAT},
        {"kda", "\"lower_bound\": 1", "lower_bound: 1 is not between", HOLA_EFORMAT},
        {"kda", "\"lower_bound\": \"x\"", "lower_bound: expected a number", HOLA_EFORMAT},
        {"kda", "\"safe_gate\": null", "safe_gate: expected true or false", HOLA_EFORMAT},
        {"kda", "\"allow_neg_eigval\": 2", "allow_neg_eigval: expected true or false", HOLA_EFORMAT},
        {"kda", "\"cache_evict\": \"best\"", "cache_evict: \"best\" is not one of", HOLA_EFORMAT},
        {"kda", "\"cache_window\": -1", "cache_window: -1 is not between", HOLA_EFORMAT},
    };
    hola_config c;
    char text[400];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s}", cases[i].type, cases[i].field);
        CHECK_FAILS(parse(&c, text), cases[i].status, cases[i].message);
        assert_null(strchr(hola_last_error(), '\n'));
    }
}

/* As fla writes them: every field, null where that is the default. */
#define COMMON                                                                                                    \
    "\"attn\": null, \"hidden_act\": \"swish\", \"hidden_ratio\": 4, \"hidden_size\": 1024, "                     \
    "\"initializer_range\": 0.02, \"intermediate_size\": null, \"max_position_embeddings\": 2048, \"norm_eps\": " \
    "1e-06, \"num_hidden_layers\": 24, \"pad_token_id\": null, \"bos_token_id\": 1, \"eos_token_id\": 2, "        \
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 32000, " \
    "\"fuse_cross_entropy\": true, \"fuse_swiglu\": true"
static void test_written_back(void **state) {
    static const char *const texts[] = {
        "{\"architectures\": [\"GLAForCausalLM\"], \"model_type\": \"gla\", " COMMON
        ", \"attn_mode\": \"chunk\", \"clamp_min\": null, \"conv_size\": 4, \"elementwise_affine\": true, "
        "\"expand_k\": 0.5, \"expand_v\": 1, \"feature_map\": null, \"fuse_norm\": true, \"num_heads\": 4, "
        "\"num_kv_heads\": null, \"use_gk\": true, \"use_gv\": false, \"use_output_gate\": true, "
        "\"use_short_conv\": false}",
        "{\"architectures\": [\"GLAForCausalLM\"], \"model_type\": \"gla\", " COMMON
        ", \"clamp_min\": -0.5, \"conv_size\": 3, \"elementwise_affine\": false, \"expand_k\": 1, \"expand_v\": 0.5, "
        "\"feature_map\": \"silu\", \"fuse_norm\": false, \"num_heads\": 8, \"num_kv_heads\": 2, "
        "\"use_output_gate\": false, \"use_short_conv\": true}",
        "{\"architectures\": [\"GSAForCausalLM\"], \"model_type\": \"gsa\", " COMMON
        ", \"clamp_max\": null, \"clamp_min\": null, \"conv_size\": 4, \"elementwise_affine\": true, \"expand_k\": 1, "
        "\"expand_v\": 1.0, \"feature_map\": \"swish\", \"fuse_norm\": true, \"gate_logit_normalizer\": 8, "
        "\"num_heads\": 4, \"num_kv_heads\": null, \"num_slots\": null, \"use_norm\": true, "
        "\"use_output_gate\": true, \"use_short_conv\": false}",
        "{\"architectures\": [\"KDAForCausalLM\"], \"model_type\": \"kda\", " COMMON
        ", \"allow_neg_eigval\": false, \"attn_mode\": \"chunk\", \"conv_size\": 4, \"expand_v\": 1, "
        "\"fuse_norm\": true, \"head_dim\": 128, \"lower_bound\": null, \"num_heads\": 8, \"num_v_heads\": null, "
        "\"safe_gate\": false, \"use_short_conv\": true}",
        "{\"architectures\": [\"KDAForCausalLM\"], \"model_type\": \"kda\", " COMMON
        ", \"allow_neg_eigval\": true, \"conv_size\": 4, \"expand_v\": 0.5, \"head_dim\": 128, \"lower_bound\": -5, "
        "\"num_heads\": 4, \"num_v_heads\": 8, \"safe_gate\": true, \"use_short_conv\": false}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        hola_config c, back;
        char *text = NULL, *fresh = NULL;
        CHECK_OK(parse(&c, texts[i]));
        CHECK_OK(hl_config_text(&c, texts[i], HOLA_BF16, &text));
        json_t *was = json_loads(texts[i], 0, NULL), *is = json_loads(text, 0, NULL);
        assert_non_null(was);
        if (!json_equal(was, is)) fail_msg("%s became %s", texts[i], text);
        json_decref(was), json_decref(is);
        CHECK_OK(hl_config_text(&c, NULL, HOLA_BF16, &fresh));
        CHECK_OK(parse(&back, fresh));
        assert_true(hl_config_hash(&back) == hl_config_hash(&c));
        assert_int_equal(hola_config_parameters(&back), hola_config_parameters(&c));
        assert_null(strstr(fresh, "cache_")); /* no word of a memory that is not there */
        free(text), free(fresh);
    }
}

/* The exact memory of kda is turned on and off by cache_evict, also in a file that says otherwise. */
static void test_memory(void **state) {
    static const char with[] = "{\"model_type\": \"kda\", \"cache_evict\": \"betae\", \"cache_window\": 16}";
    hola_config c, back, hola;
    char *text = NULL;
    (void)state;
    CHECK_OK(parse(&c, with));
    const int64_t parameters = hola_config_parameters(&c);
    c.cache_evict = HOLA_EVICT_NONE;
    assert_true(hola_config_parameters(&c) < parameters);
    CHECK_OK(hl_config_text(&c, with, HOLA_F32, &text));
    CHECK_OK(parse(&back, text));
    assert_true(back.cache_evict == HOLA_EVICT_NONE);
    free(text);
    /* hola and kda pass it on to each other; kda without one takes hola's default */
    CHECK_OK(parse(&c, with));
    hl_config_change_type(&c, HOLA_TYPE_HOLA);
    assert_true(c.cache_evict == HOLA_EVICT_BETAE && c.cache_window == 16);
    hl_config_change_type(&c, HOLA_TYPE_KDA);
    assert_true(c.cache_evict == HOLA_EVICT_BETAE && c.cache_window == 16);
    CHECK_OK(hola_config_preset(&hola, "46m", HOLA_TYPE_KDA));
    hl_config_change_type(&hola, HOLA_TYPE_HOLA);
    CHECK_OK(hola_config_check(&hola));
    assert_true(hola.cache_evict == HOLA_EVICT_BETAE);
    CHECK_OK(hola_config_preset(&c, "46m", HOLA_TYPE_GATED_DELTANET));
    hl_config_change_type(&c, HOLA_TYPE_KDA);
    CHECK_OK(hola_config_check(&c));
    assert_true(c.cache_evict == HOLA_EVICT_NONE);
    for (int type = HOLA_TYPE_GLA; type <= HOLA_TYPE_KDA; type++) {
        CHECK_OK(hola_config_preset(&c, "46m", HOLA_TYPE_GATED_DELTANET));
        hl_config_change_type(&c, (hola_model_type)type);
        CHECK_OK(hola_config_check(&c));
    }
}

/* Everything that a session's numbers depend on is in the hash, what they do not is not. */
static void test_hash(void **state) {
    hola_config a, b;
    (void)state;
#define DIFFERS(type, preset, field, value)                    \
    do {                                                       \
        CHECK_OK(hola_config_preset(&a, preset, type));        \
        b = a, b.field = value;                                \
        assert_true(hl_config_hash(&a) != hl_config_hash(&b)); \
    } while (0)
#define SAME(type, preset, field, value)                       \
    do {                                                       \
        CHECK_OK(hola_config_preset(&a, preset, type));        \
        b = a, b.field = value;                                \
        assert_true(hl_config_hash(&a) == hl_config_hash(&b)); \
    } while (0)
    DIFFERS(HOLA_TYPE_GLA, "46m", num_kv_heads, 2);
    DIFFERS(HOLA_TYPE_GLA, "46m", feature_map, HOLA_MAP_RELU);
    DIFFERS(HOLA_TYPE_GLA, "46m", clamp_min, -1);
    DIFFERS(HOLA_TYPE_GLA, "46m", elementwise_affine, false);
    DIFFERS(HOLA_TYPE_GLA, "46m", use_gate, false);
    DIFFERS(HOLA_TYPE_GLA, "46m", conv_size, 4);
    DIFFERS(HOLA_TYPE_GSA, "46m", num_slots, 32);
    DIFFERS(HOLA_TYPE_GSA, "46m", gate_logit_normalizer, 4);
    DIFFERS(HOLA_TYPE_GSA, "46m", feature_map, HOLA_MAP_RELU);
    DIFFERS(HOLA_TYPE_KDA, "46m", lower_bound, -5);
    DIFFERS(HOLA_TYPE_KDA, "46m", allow_neg_eigval, true);
    DIFFERS(HOLA_TYPE_KDA, "46m", cache_evict, HOLA_EVICT_BETAE);
    DIFFERS(HOLA_TYPE_KDA, "46m-memory", cache_window, 32);
    SAME(HOLA_TYPE_KDA, "46m", cache_window, 32);
    SAME(HOLA_TYPE_KDA, "46m", safe_gate, true);
    SAME(HOLA_TYPE_KDA, "46m", use_gate, true);
    SAME(HOLA_TYPE_GSA, "46m", clamp_min, -1);
    SAME(HOLA_TYPE_GLA, "46m", num_slots, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),      cmocka_unit_test(test_defaults), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_written_back), cmocka_unit_test(test_memory),   cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
