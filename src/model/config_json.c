/* config_json.c -- config.json to hola_config and back, with the field names and defaults of fla.
 *
 * What a field says that we do not compute is refused, never ignored. Fields that only choose between
 * equal computations (fuse_*, attn_mode, use_cache), that speak of the stored type or of training in fla
 * (use_l2warp), and unknown ones are passed over. */
#include "core/json.h"
#include "model/config.h"
#include <math.h>
#include <string.h>

/* The first failure stays; readers after it do nothing. */
struct reader {
    json_t *root;
    const char *path;
    hola_status s;
};

/* ---- typed fields ---- */

static const char *kind_name(const json_t *v) {
    static const char *const names[] = {"an object", "an array",      "a string",      "an integer",
                                        "a number",  "true or false", "true or false", "null"};
    return names[json_typeof(v)];
}

static void wrong_kind(struct reader *r, const char *name, const char *expected, const json_t *v) {
    r->s = hl_fail(HOLA_EFORMAT, "%s: %s: expected %s, found %s", r->path, name, expected, kind_name(v));
}

/* NULL: absent, null, or an earlier failure; *out keeps its default then. */
static json_t *present(const struct reader *r, const char *name) {
    json_t *v = r->s == HOLA_OK ? json_object_get(r->root, name) : NULL;
    return json_is_null(v) ? NULL : v;
}

/* NULL also stands for null, but there it is an error. */
static json_t *required_kind(struct reader *r, const char *name, const char *expected) {
    json_t *v = r->s == HOLA_OK ? json_object_get(r->root, name) : NULL;
    if (!json_is_null(v)) return v;
    wrong_kind(r, name, expected, v);
    return NULL;
}

static void take_int(struct reader *r, const char *name, const json_t *v, int64_t *out) {
    if (!v) return;
    if (!json_is_integer(v)) {
        wrong_kind(r, name, "an integer", v);
        return;
    }
    *out = json_integer_value(v);
    r->s = hl_config_range(r->path, name, *out);
    if (r->s == HOLA_EINVAL) r->s = HOLA_EFORMAT; /* the file's fault, not the caller's */
}
static void read_int(struct reader *r, const char *name, int64_t *out) {
    take_int(r, name, required_kind(r, name, "an integer"), out);
}
static void read_int_or_null(struct reader *r, const char *name, int64_t *out) {
    take_int(r, name, present(r, name), out);
}

static void take_real(struct reader *r, const char *name, const json_t *v, double *out) {
    if (!v) return;
    if (json_is_number(v)) *out = json_number_value(v);
    else wrong_kind(r, name, "a number", v);
}
static void read_real(struct reader *r, const char *name, double *out) {
    take_real(r, name, required_kind(r, name, "a number"), out);
}

static void read_bool(struct reader *r, const char *name, bool *out) {
    json_t *v = required_kind(r, name, "true or false");
    if (!v) return;
    if (json_is_boolean(v)) *out = json_boolean_value(v);
    else wrong_kind(r, name, "true or false", v);
}

/* The position of a string among the names name_of(0), name_of(1), ... */
static int read_name(struct reader *r, const char *field, const char *(*name_of)(int), int count,
                     int fallback) {
    char list[128] = "";
    json_t *v = required_kind(r, field, "a string");
    if (!v) return fallback;
    if (!json_is_string(v)) {
        wrong_kind(r, field, "a string", v);
        return fallback;
    }
    for (int i = 0; i < count; i++) {
        if (strcmp(json_string_value(v), name_of(i)) == 0) return i;
        strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, name_of(i), sizeof list - strlen(list) - 1);
    }
    r->s = hl_fail(HOLA_EFORMAT, "%s: %s: \"%.40s\" is not one of %s", r->path, field, json_string_value(v),
                   list);
    return fallback;
}
static const char *evict_name(int i) { return hola_evict_name((hola_evict)i); }
static const char *norm_name(int i) { return hola_cache_norm_name((hola_cache_norm)i); }

/* An id, null or -1 for none, or a list whose first entry counts. An id outside the vocabulary is none. */
static void read_token(struct reader *r, const char *name, int64_t vocab, int64_t *out) {
    const json_t *v = r->s == HOLA_OK ? json_object_get(r->root, name) : NULL;
    if (json_is_array(v) && json_array_size(v) > 0) v = json_array_get(v, 0);
    if (json_is_null(v)) *out = -1;
    else take_int(r, name, v, out);
    if (*out >= vocab) *out = -1;
}

/* ---- what we do not compute ---- */

static void refuse_unless(struct reader *r, const char *name, bool fine, const char *why) {
    if (r->s == HOLA_OK && !fine) r->s = hl_fail(HOLA_ENOTSUP, "%s: %s: %s", r->path, name, why);
}
static bool is_text(const json_t *v, const char *text) {
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static void refuse_unsupported(struct reader *r) {
    const json_t *v;
    refuse_unless(r, "attn", !present(r, "attn"), "hybrid attention layers are not supported");
    refuse_unless(r, "attnres_block_size", !present(r, "attnres_block_size"), "not supported");
    refuse_unless(r, "quantization_config", !present(r, "quantization_config"), "not supported");
    v = present(r, "conv_bias");
    refuse_unless(r, "conv_bias", !v || json_is_false(v), "a convolution with bias is not supported");
    v = present(r, "use_mamba_gate");
    refuse_unless(r, "use_mamba_gate", !v || json_is_true(v), "other decays are not supported");
    v = present(r, "hidden_act");
    refuse_unless(r, "hidden_act", !v || is_text(v, "swish") || is_text(v, "silu"),
                  "only swish is supported");
    v = present(r, "qk_activation");
    refuse_unless(r, "qk_activation", !v || is_text(v, "silu"), "only silu is supported");
    v = present(r, "qk_norm");
    refuse_unless(r, "qk_norm", !v || is_text(v, "l2"), "only l2 is supported");
}

static void read_model_type(struct reader *r, hola_model_type *type) {
    const json_t *v = json_object_get(r->root, "model_type");
    if (!json_is_string(v)) {
        if (v) wrong_kind(r, "model_type", "a string", v);
        else r->s = hl_fail(HOLA_EFORMAT, "%s: model_type: missing", r->path);
        return;
    }
    for (int i = 0; i < HOLA_TYPE_COUNT; i++) {
        if (!is_text(v, hola_model_type_name((hola_model_type)i))) continue;
        *type = (hola_model_type)i;
        return;
    }
    r->s =
        hl_fail(HOLA_ENOTSUP, "%s: model_type: %.60s is not supported (hola, gated_deltanet, delta_net are)",
                r->path, json_string_value(v));
}

/* ---- sizes that follow from others ---- */

/* int(size * factor) as Python computes it; 0: out of range. */
static int64_t expanded(int64_t size, double factor) {
    double x = floor((double)size * factor);
    return x >= 1 && x <= HL_MAX_HEADS * (double)HL_MAX_HEAD_V_DIM ? (int64_t)x : 0;
}

static void bad_expand(struct reader *r, const char *name, double factor, const char *why) {
    if (r->s == HOLA_OK) r->s = hl_fail(HOLA_EFORMAT, "%s: %s: %g %s", r->path, name, factor, why);
}

static void read_heads(struct reader *r, hola_config *c) {
    double expand_k = 1, expand_v = c->model_type == HOLA_TYPE_DELTA_NET ? 1 : 2;
    read_int(r, "num_heads", &c->num_heads);
    c->num_v_heads = c->num_heads;
    read_real(r, "expand_v", &expand_v);
    if (c->model_type == HOLA_TYPE_DELTA_NET) {
        read_real(r, "expand_k", &expand_k);
        if (r->s != HOLA_OK) return;
        int64_t k = expanded(c->hidden_size, expand_k), v = expanded(c->hidden_size, expand_v);
        if (k == 0 || k % c->num_heads != 0) bad_expand(r, "expand_k", expand_k, "gives no whole head size");
        if (v == 0 || v % c->num_heads != 0) bad_expand(r, "expand_v", expand_v, "gives no whole head size");
        c->head_dim = k / c->num_heads;
        c->head_v_dim = v / c->num_heads;
    } else {
        read_int(r, "head_dim", &c->head_dim);
        read_int_or_null(r, "num_v_heads", &c->num_v_heads);
        if (r->s != HOLA_OK) return;
        c->head_v_dim = expanded(c->head_dim, expand_v);
        double exact = (double)c->head_dim * expand_v;
        if (c->head_v_dim == 0 || fabs(exact - (double)c->head_v_dim) > 1e-5 * exact)
            bad_expand(r, "expand_v", expand_v, "gives no whole head size");
    }
}

static void read_mlp(struct reader *r, hola_config *c) {
    take_real(r, "hidden_ratio", present(r, "hidden_ratio"), &c->hidden_ratio);
    if (r->s != HOLA_OK) return;
    c->intermediate_size = hl_intermediate_size(c->hidden_size, c->hidden_ratio);
    if (c->intermediate_size == 0 && !present(r, "intermediate_size"))
        r->s = hl_fail(HOLA_EFORMAT, "%s: hidden_ratio: %g is out of range", r->path, c->hidden_ratio);
    read_int_or_null(r, "intermediate_size", &c->intermediate_size);
}

/* conv_size 0 stands for use_short_conv false inside; in the file it is an error. */
static void read_conv(struct reader *r, hola_config *c) {
    bool use = true;
    read_bool(r, "use_short_conv", &use);
    if (use) read_int(r, "conv_size", &c->conv_size);
    if (use && r->s == HOLA_OK && c->conv_size == 0)
        r->s = hl_fail(HOLA_EFORMAT, "%s: conv_size: 0 is not between 1 and %d", r->path, HL_MAX_CONV);
    if (!use) c->conv_size = 0;
}

static void read_cache(struct reader *r, hola_config *c) {
    c->cache_evict =
        (hola_evict)read_name(r, "cache_evict", evict_name, HOLA_EVICT_COUNT, (int)c->cache_evict);
    c->cache_norm =
        (hola_cache_norm)read_name(r, "cache_norm", norm_name, HOLA_NORM_COUNT, (int)c->cache_norm);
    read_int(r, "cache_window", &c->cache_window);
    read_int(r, "cache_chunk", &c->cache_chunk);
    read_real(r, "cache_gate_init", &c->cache_gate_init);
    read_real(r, "cache_tau_init", &c->cache_tau_init);
    read_bool(r, "cache_tau_freeze", &c->cache_tau_freeze);
    read_int(r, "cache_sinks", &c->cache_sinks);
}

static void read_fields(struct reader *r, hola_config *c) {
    read_int(r, "hidden_size", &c->hidden_size);
    read_int(r, "num_hidden_layers", &c->num_hidden_layers);
    read_int(r, "vocab_size", &c->vocab_size);
    read_heads(r, c);
    read_mlp(r, c);
    read_conv(r, c);
    read_bool(r, "use_gate", &c->use_gate);
    read_bool(r, "tie_word_embeddings", &c->tie_word_embeddings);
    read_bool(r, "allow_neg_eigval", &c->allow_neg_eigval);
    if (c->model_type == HOLA_TYPE_DELTA_NET) read_bool(r, "use_beta", &c->use_beta);
    read_real(r, "norm_eps", &c->norm_eps);
    read_real(r, "initializer_range", &c->initializer_range);
    read_int_or_null(r, "max_position_embeddings", &c->max_position_embeddings);
    read_token(r, "bos_token_id", c->vocab_size, &c->bos_token_id);
    read_token(r, "eos_token_id", c->vocab_size, &c->eos_token_id);
    if (c->model_type == HOLA_TYPE_HOLA) read_cache(r, c);
}

hola_status hl_config_parse(hola_config *out, const char *text, int64_t len, const char *path) {
    struct reader r = {.path = path};
    hola_model_type type = HOLA_TYPE_HOLA;
    hola_config c;
    r.s = hl_json_object(&r.root, text, len, HL_MAX_CONFIG_TEXT, path);
    if (r.s != HOLA_OK) return r.s;
    read_model_type(&r, &type);
    hl_config_defaults(&c, type);
    refuse_unsupported(&r);
    read_fields(&r, &c);
    json_decref(r.root);
    if (r.s == HOLA_OK) {
        r.s = hl_config_check(&c, path);
        if (r.s == HOLA_EINVAL) r.s = HOLA_EFORMAT;
    }
    if (r.s == HOLA_OK) *out = c;
    return r.s;
}
