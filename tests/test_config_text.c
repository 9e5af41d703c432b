/* test_config_text.c -- config.json written: round trips, unknown fields, files. */
#define _GNU_SOURCE
#include "temp.h"
#include "core/json.h"
#include "model/config.h"

static hola_status parse(hola_config *c, const char *text) {
    return hl_config_parse(c, text, (int64_t)strlen(text), "dir/config.json");
}

/* Field by field: padding between them may differ. */
static void check_same(const hola_config *a, const hola_config *b) {
    for (const struct hl_field *f = hl_config_fields; f->name; f++)
        if (hl_config_uses(a, f) && hl_field_int(f, a) != hl_field_int(f, b)) fail_msg("%s differs", f->name);
}

static void check_round_trip(const hola_config *c) {
    hola_config back;
    char *text = NULL, *again = NULL;
    CHECK_OK(hl_config_text(c, NULL, HOLA_F32, &text));
    CHECK_OK(parse(&back, text));
    check_same(c, &back);
    CHECK_OK(hl_config_text(c, text, HOLA_F32, &again)); /* rewriting changes nothing */
    assert_string_equal(text, again);
    free(text), free(again);
}

static void test_round_trip(void **state) {
    static const char *const names[] = {"46m", "170m-gate", "340m", "170m"};
    uint64_t seed = 1;
    hola_config c;
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int type = 0; type < HOLA_TYPE_COUNT; type++) {
            if (i == 1 && type > HOLA_TYPE_DELTA_NET) continue; /* no output gate */
            CHECK_OK(hola_config_preset(&c, names[i], (hola_model_type)type));
            check_round_trip(&c);
        }
    /* every combination of sizes that the check allows survives, also where expand_k or expand_v is no round number */
    for (int i = 0; i < 2000; i++) {
        hl_config_defaults(&c, (hola_model_type)(i % 3));
        c.hidden_size = 1 + (int64_t)check_uniform(&seed, 0, 3000);
        c.intermediate_size = 1 + (int64_t)check_uniform(&seed, 0, 5000);
        c.num_heads = 1 + (int64_t)check_uniform(&seed, 0, 40);
        c.num_v_heads = c.num_heads * (i % 3 == 2 ? 1 : 1 + i % 4);
        if (c.num_v_heads > HL_MAX_HEADS) continue;
        c.head_dim = 1 + (int64_t)check_uniform(&seed, 0, 511);
        c.head_v_dim = 1 + (int64_t)check_uniform(&seed, 0, 1023);
        c.conv_size = i % 9;
        c.norm_eps = check_uniform(&seed, 1e-9, 1);
        c.cache_tau_init = check_uniform(&seed, -3, 3);
        c.cache_evict = (hola_evict)(i % HOLA_EVICT_COUNT);
        c.cache_norm = (hola_cache_norm)(i / 7 % 2);
        c.cache_sinks = i % 13;
        c.cache_gate_token = i % 5 == 1;
        c.cache_redundancy = 0.09 * (i % 11);
        if (c.cache_evict == HOLA_EVICT_RECENCY || c.cache_evict == HOLA_EVICT_STREAMING) { /* ranked by position */
            assert_true((c.cache_redundancy == 0) == (hola_config_check(&c) == HOLA_OK));
            c.cache_redundancy = 0;
        }
        c.cache_layer_set = i % 4 == 1 && c.cache_redundancy == 0 && c.cache_evict != HOLA_EVICT_H2O &&
                            c.cache_evict != HOLA_EVICT_LOLA && c.cache_evict != HOLA_EVICT_LTE;
        c.cache_lte_dim = 1 + i % 64;
        c.bos_token_id = i % 5 - 1;
        c.use_gate = i % 2;
        c.use_beta = i % 3 != 2 || i % 4;
        check_round_trip(&c);
    }
}

/* As fla writes it: every field, null where that is the default. */
static void test_transformer(void **state) {
    static const char *const texts[] = {
        "{\"architectures\": [\"TransformerForCausalLM\"], \"attn\": null, \"elementwise_affine\": true, "
        "\"fuse_norm\": true, \"hidden_act\": \"swish\", \"hidden_ratio\": null, \"hidden_size\": 1024, "
        "\"initializer_range\": 0.02, \"intermediate_size\": null, \"max_position_embeddings\": 8192, "
        "\"model_type\": \"transformer\", \"norm_eps\": 1e-06, \"num_heads\": 16, \"num_hidden_layers\": 24, "
        "\"num_kv_heads\": null, \"pad_token_id\": null, \"bos_token_id\": 1, \"eos_token_id\": 2, "
        "\"qk_norm\": false, \"qkv_bias\": false, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, "
        "\"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 32000, \"window_size\": null}",
        "{\"architectures\": [\"TransformerForCausalLM\"], \"hidden_act\": \"silu\", \"hidden_ratio\": 4, "
        "\"hidden_size\": 64, \"initializer_range\": 0.02, \"intermediate_size\": 48, "
        "\"max_position_embeddings\": null, \"model_type\": \"transformer\", \"norm_eps\": 1e-06, \"num_heads\": 4, "
        "\"num_hidden_layers\": 1, \"num_kv_heads\": 2, \"bos_token_id\": 1, \"eos_token_id\": [2, 3], "
        "\"qk_norm\": true, \"qkv_bias\": true, \"rope_theta\": 1000, \"tie_word_embeddings\": false, "
        "\"torch_dtype\": \"bfloat16\", \"vocab_size\": 61, \"window_size\": 20}"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        hola_config c;
        char *text = NULL;
        CHECK_OK(parse(&c, texts[i]));
        CHECK_OK(hl_config_text(&c, texts[i], HOLA_BF16, &text));
        json_t *was = json_loads(texts[i], 0, NULL), *is = json_loads(text, 0, NULL);
        assert_true(json_equal(was, is));
        json_decref(was), json_decref(is);
        free(text);
        check_round_trip(&c);
        c.window_size = i ? 0 : 7; /* what changes is written */
        check_round_trip(&c);
    }
}

static void test_text(void **state) {
    hola_config c;
    char *text = NULL;
    (void)state;
    CHECK_OK(hola_config_preset(&c, "46m", HOLA_TYPE_HOLA));
    CHECK_OK(hl_config_text(&c, NULL, HOLA_BF16, &text));
    assert_non_null(strstr(text, "\"norm_eps\": 1e-6"));
    assert_non_null(strstr(text, "\"initializer_range\": 0.02"));
    assert_non_null(strstr(text, "\"torch_dtype\": \"bfloat16\""));
    assert_non_null(strstr(text, "\"model_type\": \"hola\""));
    assert_non_null(strstr(text, "\"architectures\": ["));
    assert_int_equal(text[strlen(text) - 1], '\n');
    free(text);
    c.hidden_size = 0;
    CHECK_FAILS(hl_config_text(&c, NULL, HOLA_F32, &text), HOLA_EINVAL, "hidden_size");
    assert_null(text);
    c.hidden_size = 512;
    CHECK_FAILS(hl_config_text(&c, NULL, HOLA_DTYPE_COUNT, &text), HOLA_EINVAL, "type");
    CHECK_FAILS(hl_config_text(&c, "{", HOLA_F32, &text), HOLA_EFORMAT, "config.json");
}

/* Unknown fields stay, and so does the spelling of known ones that did not change. */
static void test_keeps_fields(void **state) {
    const char *old =
        "{\"zebra\": {\"stripes\": [1, 2.5, null]}, \"expand_v\": 1, \"hidden_ratio\": 4.0, "
        "\"intermediate_size\": null, \"num_v_heads\": null, \"eos_token_id\": [2, 7], \"bos_token_id\": 99, "
        "\"hidden_size\": 32, \"head_dim\": 16, \"num_heads\": 2, \"num_hidden_layers\": 1, "
        "\"vocab_size\": 61, \"hidden_act\": \"silu\", \"dtype\": \"float32\", \"fuse_norm\": true, "
        "\"architectures\": [\"Mine\"], \"model_type\": \"gated_deltanet\", \"cache_window\": 5}";
    hola_config c;
    char *text = NULL;
    (void)state;
    CHECK_OK(parse(&c, old));
    CHECK_OK(hl_config_text(&c, old, HOLA_F16, &text));
    json_t *was = json_loads(old, 0, NULL), *is = json_loads(text, 0, NULL), *v;
    const char *key;
    json_object_foreach(was, key, v) {
        if (strcmp(key, "dtype") == 0) assert_string_equal(json_string_value(json_object_get(is, key)), "float16");
        else if (!json_equal(v, json_object_get(is, key))) fail_msg("%s has changed", key);
    }
    assert_null(json_object_get(is, "torch_dtype"));
    assert_ptr_equal(strstr(text, "\"zebra\""), text + 4); /* the order stays too */
    json_decref(is);
    free(text);
    c.eos_token_id = 7;
    c.bos_token_id = 3;
    c.num_v_heads = 4;
    c.head_v_dim = 24;
    c.intermediate_size = 100;
    c.model_type = HOLA_TYPE_HOLA;
    CHECK_OK(hl_config_text(&c, old, HOLA_F32, &text));
    hola_config back;
    CHECK_OK(parse(&back, text));
    check_same(&c, &back);
    is = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_array_get(json_object_get(is, "architectures"), 0)), "HolaForCausalLM");
    assert_true(json_equal(json_object_get(was, "zebra"), json_object_get(is, "zebra")));
    json_decref(is);
    json_decref(was);
    free(text);
}

/* ---- files ---- */

static void test_read(void **state) {
    char *dir = temp_new(), *file = hl_path_join(dir, "config.json"), *none = hl_path_join(dir, "none");
    hola_config c;
    (void)state;
    CHECK_FAILS(hola_config_read(&c, dir), HOLA_EIO, "config.json: No such file");
    CHECK_FAILS(hola_config_read(&c, none), HOLA_EIO, none);
    temp_write(dir, "config.json", "", 0);
    CHECK_FAILS(hola_config_read(&c, dir), HOLA_EFORMAT, "config.json: empty file");
    temp_write(dir, "config.json", "{\"model_type\": \"hola\", \"num_heads\": -1}", 39);
    CHECK_FAILS(hola_config_read(&c, dir), HOLA_EFORMAT, "config.json: num_heads: -1 is not between 1 and 1024");
    assert_memory_equal(hola_last_error(), dir, strlen(dir));
    temp_write(dir, "config.json", "{\"model_type\": \"hola\"}", 22);
    CHECK_OK(hola_config_read(&c, dir));
    CHECK_OK(hola_config_read(&c, file));
    free(file), free(none);
    temp_remove(dir);
}

static void test_fixtures(void **state) {
    static const char *const dirs[] = {"tests/data/fla_gdn", "tests/data/fla_gdn_sharded", "tests/data/fla_delta_net",
                                       "tests/data/hola_tiny"};
    hola_config c;
    (void)state;
    for (int i = 0; i < 4; i++) {
        char *text, *old = temp_read(dirs[i], "config.json", NULL);
        CHECK_OK(hola_config_read(&c, dirs[i]));
        assert_true(c.hidden_size == 32 && c.vocab_size == 61 && c.head_dim == 16);
        CHECK_OK(hl_config_text(&c, old, HOLA_F32, &text));
        json_t *was = json_loads(old, 0, NULL), *is = json_loads(text, 0, NULL);
        json_object_set_new(was, "torch_dtype", json_string("float32"));
        json_object_update_missing(was, is); /* we may add fields, not change any */
        assert_true(json_equal(was, is));
        json_decref(was);
        json_decref(is);
        free(text), free(old);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_transformer), cmocka_unit_test(test_text),
        cmocka_unit_test(test_keeps_fields), cmocka_unit_test(test_read),        cmocka_unit_test(test_fixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
