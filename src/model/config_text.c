/* config_text.c -- hola_config to config.json. What the old file says and we agree with stays as it was
 * spelled there (null, 4 or 4.0, the order of fields), so that rewriting changes no more than it must. */
#include "core/json.h"
#include "model/config.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- setting fields; out of memory shows once, at the end ---- */

struct writer {
    json_t *root;
    bool failed;
};

static void set(struct writer *w, const char *name, json_t *value) {
    if (json_object_set_new(w->root, name, value) != 0) w->failed = true;
}
static void set_int(struct writer *w, const char *name, int64_t x) {
    const json_t *old = json_object_get(w->root, name);
    if (!json_is_integer(old) || json_integer_value(old) != x) set(w, name, json_integer(x));
}
static void set_real(struct writer *w, const char *name, double x) {
    const json_t *old = json_object_get(w->root, name);
    if (!json_is_number(old) || json_number_value(old) != x) set(w, name, json_real(x));
}
static void set_bool(struct writer *w, const char *name, bool x) { set(w, name, json_boolean(x)); }
static void set_text(struct writer *w, const char *name, const char *x) { set(w, name, json_string(x)); }

/* ---- fields that are not simply a number ---- */

/* A factor f with floor(size f) == wanted, as the reader and fla compute it. */
static double factor_for(int64_t size, int64_t wanted) {
    double f = (double)wanted / (double)size;
    while (floor((double)size * f) < (double)wanted) f = nextafter(f, INFINITY);
    return f;
}
static void set_factor(struct writer *w, const char *name, int64_t size, int64_t wanted) {
    const json_t *old = json_object_get(w->root, name);
    if (!json_is_number(old) || floor((double)size * json_number_value(old)) != (double)wanted)
        set(w, name, json_real(factor_for(size, wanted)));
}

/* Keeps a list, or an id that we read as none, while it still means the same. */
static void set_token(struct writer *w, const char *name, int64_t id, bool unchanged) {
    if (unchanged && json_object_get(w->root, name)) return;
    set(w, name, id < 0 ? json_null() : json_integer(id));
}

static void set_dtype(struct writer *w, hola_dtype dtype) {
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    bool new_name = json_object_get(w->root, "dtype"); /* what newer transformers call it */
    if (new_name) set_text(w, "dtype", names[dtype]);
    if (!new_name || json_object_get(w->root, "torch_dtype")) set_text(w, "torch_dtype", names[dtype]);
}

static void set_type(struct writer *w, hola_model_type type) {
    static const char *const classes[] = {"HolaForCausalLM", "GatedDeltaNetForCausalLM",
                                          "DeltaNetForCausalLM"};
    const json_t *old = json_object_get(w->root, "model_type");
    bool same = json_is_string(old) && strcmp(json_string_value(old), hola_model_type_name(type)) == 0;
    if (!same || !json_object_get(w->root, "architectures"))
        set(w, "architectures", json_pack("[s]", classes[type]));
    set_text(w, "model_type", hola_model_type_name(type));
}

/* ---- all of them ---- */

static void set_heads(struct writer *w, const hola_config *c) {
    set_int(w, "num_heads", c->num_heads);
    if (c->model_type == HOLA_TYPE_DELTA_NET) {
        set_factor(w, "expand_k", c->hidden_size, hl_key_dim(c));
        set_factor(w, "expand_v", c->hidden_size, hl_value_dim(c));
        set_bool(w, "use_beta", c->use_beta);
        return;
    }
    const json_t *old = json_object_get(w->root, "num_v_heads");
    if (!json_is_null(old) || c->num_v_heads != c->num_heads) set_int(w, "num_v_heads", c->num_v_heads);
    set_int(w, "head_dim", c->head_dim);
    set_factor(w, "expand_v", c->head_dim, c->head_v_dim);
}

static void set_cache(struct writer *w, const hola_config *c) {
    set_text(w, "cache_evict", hola_evict_name(c->cache_evict));
    set_text(w, "cache_norm", hola_cache_norm_name(c->cache_norm));
    set_int(w, "cache_window", c->cache_window);
    set_int(w, "cache_chunk", c->cache_chunk);
    set_real(w, "cache_gate_init", c->cache_gate_init);
    set_real(w, "cache_tau_init", c->cache_tau_init);
    set_bool(w, "cache_tau_freeze", c->cache_tau_freeze);
    set_int(w, "cache_sinks", c->cache_sinks);
}

static void set_fields(struct writer *w, const hola_config *c, const hola_config *before) {
    const json_t *old;
    set_type(w, c->model_type);
    set_int(w, "hidden_size", c->hidden_size);
    set_int(w, "num_hidden_layers", c->num_hidden_layers);
    set_heads(w, c);
    old = json_object_get(w->root, "hidden_ratio");
    if (!json_is_null(old) || c->hidden_ratio != 4) set_real(w, "hidden_ratio", c->hidden_ratio);
    old = json_object_get(w->root, "intermediate_size");
    if (!json_is_null(old) || c->intermediate_size != hl_intermediate_size(c->hidden_size, c->hidden_ratio))
        set_int(w, "intermediate_size", c->intermediate_size);
    if (!json_object_get(w->root, "hidden_act")) set_text(w, "hidden_act", "swish");
    set_bool(w, "use_gate", c->use_gate);
    set_bool(w, "use_short_conv", c->conv_size > 0);
    if (c->conv_size > 0) set_int(w, "conv_size", c->conv_size);
    set_bool(w, "allow_neg_eigval", c->allow_neg_eigval);
    set_real(w, "norm_eps", c->norm_eps);
    set_int(w, "vocab_size", c->vocab_size);
    set_bool(w, "tie_word_embeddings", c->tie_word_embeddings);
    set_real(w, "initializer_range", c->initializer_range);
    old = json_object_get(w->root, "max_position_embeddings");
    if (!json_is_null(old) || c->max_position_embeddings != 2048)
        set_int(w, "max_position_embeddings", c->max_position_embeddings);
    set_token(w, "bos_token_id", c->bos_token_id, before && before->bos_token_id == c->bos_token_id);
    set_token(w, "eos_token_id", c->eos_token_id, before && before->eos_token_id == c->eos_token_id);
    if (c->model_type == HOLA_TYPE_HOLA) set_cache(w, c);
}

/* The fewest digits that give every number back: 1e-06, not 9.9999999999999995e-07. */
static char *shortest(const json_t *root) {
    for (size_t digits = 15;; digits++) {
        char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        json_t *back = text && digits < 17 ? json_loads(text, 0, NULL) : NULL;
        bool good = !text || digits == 17 || json_equal(back, root);
        json_decref(back);
        if (good) return text;
        free(text);
    }
}

hola_status hl_config_text(const hola_config *cfg, const char *old, hola_dtype dtype, char **out) {
    struct writer w = {0};
    hola_config before;
    hola_status s = hola_config_check(cfg);
    bool had = false;
    *out = NULL;
    if (s != HOLA_OK) return s;
    if ((unsigned)dtype > HOLA_F16) return hl_fail(HOLA_EINVAL, "config.json: no such stored type");
    if (old) {
        s = hl_json_object(&w.root, old, (int64_t)strlen(old), HL_MAX_CONFIG_TEXT, "config.json");
        if (s != HOLA_OK) return s;
        had = hl_config_parse(&before, old, (int64_t)strlen(old), "config.json") == HOLA_OK;
    } else {
        w.root = json_object();
    }
    set_fields(&w, cfg, had ? &before : NULL);
    set_dtype(&w, dtype);
    if (w.root && !w.failed) *out = shortest(w.root);
    json_decref(w.root);
    size_t n = *out ? strlen(*out) : 0;
    char *line = *out ? realloc(*out, n + 2) : NULL; /* a text file ends with a newline */
    if (!line) {
        free(*out);
        *out = NULL;
        return hl_fail(HOLA_ENOMEM, "config.json: no memory");
    }
    memcpy(line + n, "\n", 2);
    *out = line;
    return HOLA_OK;
}
