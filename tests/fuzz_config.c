/* fuzz_config.c -- any bytes as config.json: refused with a message, or a config that is valid, has a table
 * of tensors, and survives being written and read again. */
#include "mutate.h"
#include "model/config.h"
#include "model/params.h"

static struct seed seed_at(size_t i) {
    static const char *const texts[] = {
        "{\"model_type\": \"hola\"}",
        "{\"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_heads\": 2, \"vocab_size\": 61, \"norm_eps\": "
        "1e-06, "
        "\"intermediate_size\": 64, \"tie_word_embeddings\": true, \"head_dim\": 16, \"expand_v\": 1.0, "
        "\"model_type\": "
        "\"hola\", \"use_gate\": true, \"cache_norm\": \"l2\", \"cache_window\": 4, \"cache_chunk\": 16, "
        "\"cache_evict\": "
        "\"betae\", \"cache_gate_init\": -4.0, \"cache_tau_init\": 1.0, \"cache_tau_freeze\": false}",
        "{\"model_type\": \"delta_net\", \"hidden_size\": 96, \"num_heads\": 3, \"expand_k\": 0.5, "
        "\"expand_v\": 2, "
        "\"use_beta\": false, \"qk_norm\": \"l2\", \"qk_activation\": \"silu\", \"hidden_act\": \"swish\", "
        "\"attn\": null}",
        "{\"model_type\": \"gated_deltanet\", \"num_v_heads\": 12, \"hidden_ratio\": 3.5, \"bos_token_id\": "
        "null, "
        "\"eos_token_id\": [2, 3], \"use_short_conv\": false, \"conv_size\": 3, \"max_position_embeddings\": "
        "null, "
        "\"initializer_range\": 0.02, \"allow_neg_eigval\": true, \"x\": {\"y\": [1, 2.5e10, \"\xc3\xa9\"]}}",
        "{\"model_type\": \"transformer\", \"hidden_size\": 32, \"num_heads\": 4, \"num_kv_heads\": 2, "
        "\"qkv_bias\": true, \"qk_norm\": true, \"window_size\": 20, \"rope_theta\": 1000.0, \"hidden_ratio\": 2}",
        "{\"model_type\": \"transformer\", \"num_kv_heads\": null, \"window_size\": null, \"rope_theta\": 5e5, "
        "\"elementwise_affine\": true, \"qk_norm\": false}",
        "{\"model_type\": \"gla\", \"hidden_size\": 64, \"num_heads\": 4, \"num_kv_heads\": 2, \"expand_k\": 0.5, "
        "\"expand_v\": 1.0, \"feature_map\": \"sqrelu\", \"use_short_conv\": true, \"conv_size\": 3, "
        "\"use_output_gate\": true, \"clamp_min\": -3.5, \"elementwise_affine\": false, \"fuse_norm\": true, "
        "\"gate_logit_normalizer\": 16}",
        "{\"model_type\": \"gsa\", \"hidden_size\": 64, \"num_heads\": 4, \"num_kv_heads\": null, \"num_slots\": null, "
        "\"expand_k\": 1, \"expand_v\": 1, \"feature_map\": \"relu\", \"gate_logit_normalizer\": 8, "
        "\"use_short_conv\": false, \"elementwise_affine\": true}",
        "{\"model_type\": \"kda\", \"hidden_size\": 64, \"num_heads\": 2, \"num_v_heads\": 4, \"head_dim\": 16, "
        "\"expand_v\": 2.0, \"allow_neg_eigval\": true, \"safe_gate\": true, \"lower_bound\": -5.0, "
        "\"cache_evict\": \"betae\", \"cache_window\": 4}",
        "{\"model_type\": \"hola\", \"num_v_heads\": 12, \"cache_evict\": \"lte\", \"cache_lte_dim\": 5, "
        "\"cache_sinks\": 3}",
        "{\"model_type\": \"hola\", \"cache_evict\": \"lola\", \"cache_norm\": \"rms\", \"cache_window\": 0}",
        "{\"model_type\": \"hola\", \"cache_evict\": \"streaming\", \"cache_sinks\": 0}",
        "{\"model_type\": \"hola\", \"cache_evict\": \"betav\", \"cache_layer_set\": true, \"cache_gate_token\": true, "
        "\"cache_redundancy\": 0}",
    };
    return i < sizeof texts / sizeof *texts ? (struct seed){texts[i], strlen(texts[i])} : (struct seed){NULL, 0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hola_config c, back;
    char *text = NULL;
    hola_status s = hl_config_parse(&c, (const char *)data, (int64_t)size, "f");
    if (s != HOLA_OK) {
        MUST(s == HOLA_EFORMAT || s == HOLA_ENOTSUP);
        MUST(strncmp(hola_last_error(), "f: ", 3) == 0);
        return 0;
    }
    MUST(hola_config_check(&c) == HOLA_OK);
    MUST(hola_config_parameters(&c) > 0);
    char *old = malloc(size + 1);
    MUST(old);
    memcpy(old, data, size);
    old[size] = 0;
    MUST(hl_config_text(&c, old, HOLA_BF16, &text) == HOLA_OK);
    MUST(hl_config_parse(&back, text, (int64_t)strlen(text), "f") == HOLA_OK);
    for (const struct hl_field *f = hl_config_fields; f->name; f++)
        MUST(!hl_config_has(&c, f->of) || hl_field_int(f, &c) == hl_field_int(f, &back));
    MUST(hola_config_parameters(&c) == hola_config_parameters(&back));
    free(text);
    free(old);
    return 0;
}
