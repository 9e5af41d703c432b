/* config_json.c -- the list of config fields; converts config.json to hola_config and back, with the field names of
 * fla.
 *
 * A field that requests something unsupported is an error, never ignored. Ignored are fields that only choose between
 * equivalent computations (fuse_*, attn_mode, use_cache), that concern the stored type or training in fla (use_l2warp),
 * and unknown fields.
 *
 * When a file is rewritten, values that we agree with keep their spelling (null, 4 or 4.0, the order of fields), so
 * that rewriting changes no more than it must. */
#include "core/json.h"
#include "mixers/exact_memory.h"
#include "model/config.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hl_config_json {
    json_t *root;
    const char *path;
    hola_status s;             /* the first failure */
    const hola_config *before; /* writing: the old file, or NULL */
    hola_dtype dtype;          /* writing: of the weights */
};

static json_t *get(const struct hl_config_json *j, const char *name) { return json_object_get(j->root, name); }
static bool absent(const json_t *v) { return !v || json_is_null(v); }
static bool is_text(const json_t *v, const char *text) {
    return text && json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* ---- reading one value ---- */

static void wrong_kind(struct hl_config_json *j, const char *name, const char *expected, const json_t *v) {
    static const char *const names[] = {"an object", "an array",      "a string",      "an integer",
                                        "a number",  "true or false", "true or false", "null"};
    j->s = hl_fail(HOLA_EFORMAT, "%s: %s: expected %s, found %s", j->path, name, expected, names[json_typeof(v)]);
}

static const char *type_name(int i) { return hola_model_type_name((hola_model_type)i); }
/* Number of names of a field; for model_type that of the mixers. */
static int names_of(const struct hl_field *f) { return f->text == type_name ? hl_mixer_count() : (int)f->hi + 1; }
/* "a, b, c": the allowed names of a field. */
static const char *join_names(const struct hl_field *f, char *list, size_t room) {
    *list = 0;
    for (int i = 0; i < names_of(f); i++) {
        strncat(list, i ? ", " : "", room - strlen(list) - 1);
        strncat(list, f->text(i), room - strlen(list) - 1);
    }
    return list;
}

/* The index of a name; -1: unknown. */
static int find_name(const struct hl_field *f, const json_t *v) {
    int i = names_of(f) - 1;
    while (i >= 0 && !is_text(v, f->text(i))) i--;
    return i;
}

/* v NULL: keeps the default. */
static void take(struct hl_config_json *j, const struct hl_field *f, const json_t *v, hola_config *c) {
    static const char *const expected[] = {"", "an integer", "a number", "true or false", "a string"};
    void *at = (char *)c + f->at;
    char list[128];
    if (!v) return;
    if (f->kind == HL_FIELD_INT && json_is_integer(v)) *(int64_t *)at = json_integer_value(v);
    else if (f->kind == HL_FIELD_REAL && json_is_number(v)) *(double *)at = json_number_value(v);
    else if (f->kind == HL_FIELD_BOOL && json_is_boolean(v)) *(bool *)at = json_boolean_value(v);
    else if (f->kind != HL_FIELD_NAME || !json_is_string(v)) wrong_kind(j, f->name, expected[f->kind], v);
    else if ((*(int *)at = find_name(f, v)) < 0)
        j->s = hl_fail(HOLA_EFORMAT, "%s: %s: \"%.40s\" is not one of %s", j->path, f->name, json_string_value(v),
                       join_names(f, list, sizeof list));
    if (j->s == HOLA_OK && hl_field_check(f, c, j->path) != HOLA_OK) j->s = HOLA_EFORMAT; /* an error in the file */
}
static void read_field(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    const json_t *v = get(j, f->name);
    if (!f->null || !absent(v)) take(j, f, v, c);
    else if (f->kind == HL_FIELD_INT) *(int64_t *)((char *)c + f->at) = (int64_t)f->null(c);
    else *(double *)((char *)c + f->at) = f->null(c);
}

/* ---- writing one value; out of memory is reported once, at the end ---- */

static void set(struct hl_config_json *j, const char *name, json_t *value) {
    if (json_object_set_new(j->root, name, value) != 0) j->s = HOLA_ENOMEM;
}

static void write_field(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    const json_t *old = get(j, f->name);
    const bool is_real = f->kind == HL_FIELD_REAL;
    const int64_t n = hl_field_int(f, c);
    const double x = is_real ? hl_field_real(f, c) : (double)n;
    if (f->null && json_is_null(old) && x == f->null(c)) return;
    if (f->kind == HL_FIELD_BOOL) set(j, f->name, json_boolean(n));
    else if (f->kind == HL_FIELD_NAME) set(j, f->name, json_string(f->text((int)n)));
    else if (!(is_real ? json_is_number(old) : json_is_integer(old)) || json_number_value(old) != x)
        set(j, f->name, is_real ? json_real(x) : json_integer(n));
}

/* ---- fields that are not a single value ---- */

static void write_class(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    if (!is_text(get(j, "model_type"), hola_model_type_name(c->model_type)) || !get(j, f->name))
        set(j, f->name, json_pack("[s]", hl_mixer_of(c->model_type)->architecture));
}

static void read_heads(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    read_field(j, f, c);
    c->num_v_heads = c->num_heads; /* for types whose files lack num_v_heads */
}

/* expand_k and expand_v give a head size (f->at) as a factor. For delta_net, gla and gsa (returns true) it multiplies
 * hidden_size for all heads together, truncated like Python's int(); otherwise it multiplies head_dim, and the product
 * must be an integer. */
static bool expand_base(const hola_config *c, int64_t *base, int64_t *heads) {
    const bool of_hidden = hl_config_has(c, HL_GROUP_DELTA_NET | HL_GROUP_GLA | HL_GROUP_GSA);
    *base = of_hidden ? c->hidden_size : c->head_dim;
    *heads = of_hidden ? c->num_heads : 1;
    return of_hidden;
}
static void read_expand(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    const json_t *v = get(j, f->name);
    int64_t base, heads;
    const bool of_hidden = expand_base(c, &base, &heads);
    const bool half = hl_config_has(c, HL_GROUP_GLA) && f->at == offsetof(hola_config, head_dim);
    const double standard = half ? 0.5 : hl_config_has(c, HL_GROUP_GATED) ? 2 : 1; /* if the file does not say */
    const double factor = v ? json_number_value(v) : standard;
    const double exact = (double)base * factor, whole = floor(exact);
    if (v && !json_is_number(v)) wrong_kind(j, f->name, "a number", v);
    else if (!(whole >= 1 && whole <= HL_MAX_HEADS * (double)HL_MAX_HEAD_V_DIM) || (int64_t)whole % heads != 0 ||
             (!of_hidden && exact - whole > 1e-5 * exact))
        j->s = hl_fail(HOLA_EFORMAT, "%s: %s: %g gives no whole head size", j->path, f->name, factor);
    else *(int64_t *)((char *)c + f->at) = (int64_t)whole / heads;
}
static void write_expand(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    const json_t *old = get(j, f->name);
    int64_t base, heads;
    expand_base(c, &base, &heads);
    const double size = (double)base, wanted = (double)(heads * *(const int64_t *)((const char *)c + f->at));
    double factor = wanted / size;
    if (json_is_number(old) && floor(size * json_number_value(old)) == wanted) return;
    while (floor(size * factor) < wanted) factor = nextafter(factor, INFINITY);
    set(j, f->name, json_real(factor));
}

static void read_width(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    if (absent(get(j, f->name)) && f->null(c) == 0)
        j->s = hl_fail(HOLA_EFORMAT, "%s: hidden_ratio: %g is out of range", j->path, c->hidden_ratio);
    else read_field(j, f, c);
}

static void write_act(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    (void)c;
    if (!get(j, f->name)) set(j, f->name, json_string("swish"));
}

/* Internally conv_size 0 means use_short_conv false; in the file it is an error. */
static void read_use_conv(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    const json_t *v = get(j, f->name);
    if (v && !json_is_boolean(v)) wrong_kind(j, f->name, "true or false", v);
    if (json_is_false(v)) c->conv_size = 0;
    if (json_is_true(v) && c->conv_size == 0) c->conv_size = 4;
}
static void write_use_conv(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    set(j, f->name, json_boolean(c->conv_size > 0));
}
static void read_conv(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    if (c->conv_size == 0) return;
    read_field(j, f, c);
    if (j->s == HOLA_OK && c->conv_size == 0)
        j->s = hl_fail(HOLA_EFORMAT, "%s: conv_size: 0 is not between 1 and %d", j->path, HL_MAX_CONV);
}
static void write_conv(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    if (c->conv_size > 0) write_field(j, f, c);
}

/* Internally window_size 0 means null, no window; in the file it is an error. */
static void read_window(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    if (absent(get(j, f->name))) return;
    read_field(j, f, c);
    if (j->s == HOLA_OK && c->window_size == 0)
        j->s = hl_fail(HOLA_EFORMAT, "%s: window_size: 0 is not between 1 and %d", j->path, HL_MAX_ATTENTION_WINDOW);
}
static void write_window(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    if (c->window_size > 0) write_field(j, f, c);
    else if (!json_is_null(get(j, f->name))) set(j, f->name, json_null());
}

/* Absent means the default; null means as many slots as key channels. */
static void read_slots(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    if (get(j, f->name)) read_field(j, f, c);
}

/* A feature map of q and k: null for none (gla), else by name; swish is an alias of silu. */
static const char *map_name(int i) {
    static const char *const names[HOLA_MAP_COUNT] = {"null", "relu", "swish", "sigmoid", "sqrelu"};
    return names[i];
}
static int find_map(const hola_config *c, const json_t *v) {
    const bool all = hl_config_has(c, HL_GROUP_GLA);
    if (all && (json_is_null(v) || is_text(v, "silu"))) return json_is_null(v) ? HOLA_MAP_NONE : HOLA_MAP_SWISH;
    for (int i = HOLA_MAP_RELU; i <= (all ? HOLA_MAP_SQRELU : HOLA_MAP_SWISH); i++)
        if (is_text(v, map_name(i))) return i;
    return -1;
}
static void read_map(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    const json_t *v = get(j, f->name);
    const int i = v ? find_map(c, v) : (int)c->feature_map;
    if (i >= 0) c->feature_map = (hola_feature_map)i;
    else if (!json_is_string(v)) wrong_kind(j, f->name, "a string", v);
    else
        j->s = hl_fail(HOLA_ENOTSUP, "%s: %s: %.40s is not supported (%s are)", j->path, f->name, json_string_value(v),
                       hl_config_has(c, HL_GROUP_GLA) ? "null, relu, swish, sigmoid, sqrelu" : "relu, swish");
}
static void write_map(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    const json_t *old = get(j, f->name);
    if (old && find_map(c, old) == (int)c->feature_map) return;
    set(j, f->name, c->feature_map == HOLA_MAP_NONE ? json_null() : json_string(map_name((int)c->feature_map)));
}

/* A real where null means none; f->null is the internal value. */
static void write_bound(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    if (hl_field_real(f, c) != f->null(c)) write_field(j, f, c);
    else if (!json_is_null(get(j, f->name))) set(j, f->name, json_null());
}
static void read_bound(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    read_field(j, f, c);
    if (j->s == HOLA_OK && !absent(get(j, f->name)) && f->null(c) == 0 && hl_field_real(f, c) == 0)
        j->s = hl_fail(HOLA_EFORMAT, "%s: %s: 0 is not below 0", j->path, f->name);
}

/* An id; null or -1 for none; or a list, whose first entry is used. An id outside the vocabulary means none. */
static void read_token(struct hl_config_json *j, const struct hl_field *f, hola_config *c) {
    const json_t *v = get(j, f->name);
    int64_t *id = (int64_t *)((char *)c + f->at);
    if (json_array_size(v) > 0) v = json_array_get(v, 0);
    if (json_is_null(v)) *id = -1;
    else take(j, f, v, c);
    if (*id >= c->vocab_size) *id = -1;
}
/* Keeps a list, or an id that we read as none, if it still means the same. */
static void write_token(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    const int64_t id = hl_field_int(f, c);
    if (get(j, f->name) && j->before && hl_field_int(f, j->before) == id) return;
    set(j, f->name, id < 0 ? json_null() : json_integer(id));
}

/* dtype: the name in newer versions of transformers. */
static void write_dtype(struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    (void)c;
    if (get(j, f->name) || !get(j, "dtype")) set(j, f->name, json_string(names[j->dtype]));
    if (get(j, "dtype")) set(j, "dtype", json_string(names[j->dtype]));
}

/* ---- the list ---- */

static const char *evict_name(int i) { return hola_evict_name((hola_evict)i); }
static const char *norm_name(int i) { return hola_cache_norm_name((hola_cache_norm)i); }

static bool is_streaming(const hola_config *c) { return c->cache_evict == HOLA_EVICT_STREAMING; }
static double no_clamp(const hola_config *c) { return (void)c, -INFINITY; }
static double no_bound(const hola_config *c) { return (void)c, 0; }
static double null_slots(const hola_config *c) { return (double)c->head_dim; }
static double null_heads(const hola_config *c) { return (double)c->num_heads; }
static bool is_lte(const hola_config *c) { return c->cache_evict == HOLA_EVICT_LTE; }
static bool has_linear_gate(const hola_config *c) { return c->cache_gate_linear; }
static bool has_token_gate(const hola_config *c) { return c->cache_gate_token; }
static bool has_redundancy(const hola_config *c) { return c->cache_redundancy > 0; }
static bool has_layer_set(const hola_config *c) { return c->cache_layer_set; }
static double null_width(const hola_config *c) { return (double)hl_intermediate_size(c->hidden_size, c->hidden_ratio); }
static double null_ratio(const hola_config *c) { return (void)c, 4; }
static double null_positions(const hola_config *c) { return (void)c, 2048; }

#define ALL HL_GROUP_ALL
#define HEADS HL_GROUP_HEADS
#define DELTA HL_GROUP_DELTA_NET
#define GATED HL_GROUP_GATED
#define MEMORY HL_GROUP_MEMORY
#define TRANS HL_GROUP_TRANSFORMER
#define GLA HL_GROUP_GLA
#define GSA HL_GROUP_GSA
#define KDA HL_GROUP_KDA
#define RULE (HEADS | GLA | GSA | KDA) /* all recurrent types */
#define AT(field) offsetof(hola_config, field)
#define FIELD(k, field, groups, in_file, place, low, high)                                                          \
    .name = #field, .kind = HL_FIELD_##k, .at = AT(field), .of = groups, .file = in_file, .hash = place, .lo = low, \
    .hi = high
#define USED .used = hl_memory_possible
#define HOOKS(what) .read = read_##what, .write = write_##what

/* clang-format off */
const struct hl_field hl_config_fields[] = {
    /*     kind  name                     groups  in file hash limits */
    {.name = "architectures", .file = ALL, .write = write_class},
    {FIELD(NAME, model_type,              ALL,    ALL,    100, 0, INT32_MAX), .text = type_name},
    {FIELD(INT,  hidden_size,             ALL,    ALL,    101, 1, HL_MAX_HIDDEN)},
    {FIELD(INT,  num_hidden_layers,       ALL,    ALL,    102, 1, HL_MAX_LAYERS)},
    {FIELD(INT,  num_heads,        RULE | TRANS, RULE | TRANS, 105, 1, HL_MAX_HEADS), .read = read_heads},
    {FIELD(INT,  num_kv_heads,  TRANS | GLA | GSA, TRANS | GLA | GSA, 500, 1, HL_MAX_HEADS), .null = null_heads},
    {FIELD(INT,  num_v_heads,       HEADS | KDA, GATED | KDA, 106, 1, HL_MAX_HEADS), .null = null_heads},
    {FIELD(INT,  head_dim,                RULE,   GATED | KDA, 107, 1, HL_MAX_HEAD_DIM)},
    {FIELD(INT,  head_v_dim,              RULE,   0,      108, 1, HL_MAX_HEAD_V_DIM)},
    {.name = "expand_k", .at = AT(head_dim), .file = DELTA | GLA | GSA, HOOKS(expand)},
    {.name = "expand_v", .at = AT(head_v_dim), .file = RULE, HOOKS(expand)},
    {FIELD(INT,  num_slots,               GSA,    GSA,    700, 1, HL_MAX_SLOTS),
     .null = null_slots, .read = read_slots},
    {FIELD(REAL, gate_logit_normalizer,   GSA,    GSA,    701, 1e-6, 1e6)},
    {FIELD(NAME, feature_map,       GLA | GSA, GLA | GSA, 600, 0, HOLA_MAP_COUNT - 1), .text = map_name, HOOKS(map)},
    {FIELD(BOOL, elementwise_affine, GLA | GSA, GLA | GSA, 601, 0, 1)},
    {FIELD(BOOL, fuse_norm,               GLA,    GLA,    0,   0, 1)},
    {FIELD(REAL, clamp_min,               GLA,    GLA,    602, -INFINITY, 0), .null = no_clamp, .write = write_bound},
    {FIELD(REAL, lower_bound,             KDA,    KDA,    800, -1e6, 0), .null = no_bound, HOOKS(bound)},
    {FIELD(BOOL, safe_gate,               KDA,    KDA,    0,   0, 1)},
    {FIELD(BOOL, use_beta,                HEADS,  DELTA,  112, 0, 1)},
    {FIELD(BOOL, qkv_bias,                TRANS,  TRANS,  501, 0, 1)},
    {FIELD(BOOL, qk_norm,                 TRANS,  TRANS,  502, 0, 1)},
    {FIELD(INT,  window_size,             TRANS,  TRANS,  503, 0, HL_MAX_ATTENTION_WINDOW), HOOKS(window)},
    {FIELD(REAL, rope_theta,              TRANS,  TRANS,  504, 1e-6, 1e18)},
    {FIELD(REAL, hidden_ratio,            ALL,    ALL,    0,   1e-6, 1e6), .null = null_ratio},
    {FIELD(INT,  intermediate_size,       ALL,    ALL,    103, 1, HL_MAX_INTERMEDIATE),
     .null = null_width, .read = read_width},
    {.name = "hidden_act", .file = ALL, .write = write_act},
    {FIELD(BOOL, use_gate,          HEADS | GLA,  HEADS,  110, 0, 1)},
    {.name = "use_output_gate", .kind = HL_FIELD_BOOL, .at = AT(use_gate), .file = GLA},
    {.name = "use_short_conv", .file = RULE, HOOKS(use_conv)},
    {FIELD(INT,  conv_size,               RULE,   RULE,   109, 0, HL_MAX_CONV), HOOKS(conv)},
    {FIELD(BOOL, allow_neg_eigval,  HEADS | KDA, HEADS | KDA, 113, 0, 1)},
    {FIELD(REAL, norm_eps,                ALL,    ALL,    200, 1e-30, 1)},
    {FIELD(INT,  vocab_size,              ALL,    ALL,    104, 1, HL_MAX_VOCAB)},
    {FIELD(BOOL, tie_word_embeddings,     ALL,    ALL,    111, 0, 1)},
    {FIELD(REAL, initializer_range,       ALL,    ALL,    0,   0, 100)},
    {FIELD(INT,  max_position_embeddings, ALL,    ALL,    0,   1, INT32_MAX), .null = null_positions},
    {FIELD(INT,  bos_token_id,            ALL,    ALL,    0,   -1, HL_MAX_VOCAB - 1), HOOKS(token)},
    {FIELD(INT,  eos_token_id,            ALL,    ALL,    0,   -1, HL_MAX_VOCAB - 1), HOOKS(token)},
    {FIELD(NAME, cache_evict,             MEMORY, MEMORY, 300, 0, HOLA_EVICT_COUNT - 1), .text = evict_name, USED},
    {FIELD(NAME, cache_norm,              MEMORY, MEMORY, 301, 0, HOLA_NORM_COUNT - 1), .text = norm_name, USED},
    {FIELD(INT,  cache_window,            MEMORY, MEMORY, 302, 0, HL_MAX_WINDOW), USED},
    {FIELD(INT,  cache_chunk,             MEMORY, MEMORY, 303, 1, HL_MAX_CHUNK), USED},
    {FIELD(REAL, cache_gate_init,         MEMORY, MEMORY, 0,   -1e6, 1e6), USED},
    {FIELD(REAL, cache_tau_init,          MEMORY, MEMORY, 0,   -1e6, 1e6), USED},
    {FIELD(BOOL, cache_tau_freeze,        MEMORY, MEMORY, 0,   0, 1), USED},
    {FIELD(BOOL, cache_gate_linear,       MEMORY, MEMORY, 402, 0, 1), .used = has_linear_gate},
    {FIELD(BOOL, cache_gate_token,        MEMORY, MEMORY, 403, 0, 1), .used = has_token_gate},
    {FIELD(REAL, cache_redundancy,        MEMORY, MEMORY, 404, 0, 1), .used = has_redundancy},
    {FIELD(BOOL, cache_layer_set,         MEMORY, MEMORY, 405, 0, 1), .used = has_layer_set},
    {FIELD(INT,  cache_sinks,             MEMORY, MEMORY, 400, 0, HL_MAX_WINDOW), .standard = 4, .used = is_streaming},
    {FIELD(INT,  cache_lte_dim,           MEMORY, MEMORY, 900, 1, HL_MAX_LTE_DIM), .standard = 16, .used = is_lte},
    {.name = "torch_dtype", .file = ALL, .write = write_dtype},
    {.name = NULL}};
/* clang-format on */

/* ---- reading a file ---- */

/* The values allowed besides null for a field that we do not support. */
static void refuse_unsupported(struct hl_config_json *j, const hola_config *c) {
    static const struct {
        const char *name, *why;
        json_type type; /* JSON_NULL: no other value */
        const char *text, *or_text;
        unsigned of; /* groups of model types it applies to; 0: all */
    } fields[] = {
        {"attn", "hybrid attention layers are not supported", JSON_NULL, NULL, NULL, 0},
        {"attnres_block_size", "not supported", JSON_NULL, NULL, NULL, 0},
        {"quantization_config", "not supported", JSON_NULL, NULL, NULL, 0},
        {"conv_bias", "a convolution with bias is not supported", JSON_FALSE, NULL, NULL, 0},
        {"use_mamba_gate", "other decays are not supported", JSON_TRUE, NULL, NULL, 0},
        {"hidden_act", "only swish is supported", JSON_STRING, "swish", "silu", 0},
        {"qk_activation", "only silu is supported", JSON_STRING, "silu", NULL, 0},
        {"qk_norm", "only l2 is supported", JSON_STRING, "l2", NULL, HL_GROUP_HEADS},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields && j->s == HOLA_OK; i++) {
        const json_t *v = get(j, fields[i].name);
        if (fields[i].of && !hl_config_has(c, fields[i].of)) continue;
        const bool fine = absent(v) || (json_typeof(v) == fields[i].type && fields[i].type != JSON_STRING) ||
                          is_text(v, fields[i].text) || is_text(v, fields[i].or_text);
        if (!fine) j->s = hl_fail(HOLA_ENOTSUP, "%s: %s: %s", j->path, fields[i].name, fields[i].why);
    }
}

/* Read first, because the defaults of all other fields depend on it. */
static hola_model_type read_type(struct hl_config_json *j) {
    const struct hl_field *f = hl_config_fields;
    char list[128];
    while (f->text != type_name) f++;
    const json_t *v = get(j, f->name);
    const int type = find_name(f, v);
    if (!v) j->s = hl_fail(HOLA_EFORMAT, "%s: model_type: missing", j->path);
    else if (!json_is_string(v)) wrong_kind(j, f->name, "a string", v);
    else if (type < 0)
        j->s = hl_fail(HOLA_ENOTSUP, "%s: model_type: %.60s is not supported (%s are)", j->path, json_string_value(v),
                       join_names(f, list, sizeof list));
    return (hola_model_type)type;
}

hola_status hl_config_parse(hola_config *out, const char *text, int64_t len, const char *path) {
    struct hl_config_json j = {.path = path};
    hola_config c;
    j.s = hl_json_object(&j.root, text, len, HL_MAX_CONFIG_TEXT, path);
    if (j.s != HOLA_OK) return j.s;
    hl_config_defaults(&c, read_type(&j));
    if (j.s == HOLA_OK) refuse_unsupported(&j, &c);
    for (const struct hl_field *f = hl_config_fields; f->name && j.s == HOLA_OK; f++) {
        if (!hl_config_has(&c, f->file)) continue;
        if (f->read) f->read(&j, f, &c);
        else if (f->kind != HL_FIELD_OTHER) read_field(&j, f, &c);
    }
    json_decref(j.root);
    if (j.s == HOLA_OK && hl_config_check(&c, path) != HOLA_OK) j.s = HOLA_EFORMAT;
    if (j.s == HOLA_OK) *out = c;
    return j.s;
}

/* ---- writing a file ---- */

/* The fewest digits that round-trip: 1e-06, not 9.9999999999999995e-07. */
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

/* Whether the old file contradicts this model in a field that it does not use. */
static bool outdated(const struct hl_config_json *j, const struct hl_field *f, const hola_config *c) {
    return get(j, f->name) && j->before && hl_field_int(f, j->before) != hl_field_int(f, c);
}

hola_status hl_config_text(const hola_config *cfg, const char *old, hola_dtype dtype, char **out) {
    struct hl_config_json j = {.dtype = dtype};
    hola_config before;
    hola_status s = hola_config_check(cfg);
    *out = NULL;
    if (s != HOLA_OK) return s;
    if ((unsigned)dtype > HOLA_F16) return hl_fail(HOLA_EINVAL, "config.json: no such stored type");
    if (old) {
        s = hl_json_object(&j.root, old, (int64_t)strlen(old), HL_MAX_CONFIG_TEXT, "config.json");
        if (s != HOLA_OK) return s;
        if (hl_config_parse(&before, old, (int64_t)strlen(old), "config.json") == HOLA_OK) j.before = &before;
    } else {
        j.root = json_object();
    }
    for (const struct hl_field *f = hl_config_fields; f->name; f++)
        if (hl_config_has(cfg, f->file) && (!f->used || f->used(cfg) || outdated(&j, f, cfg)))
            (f->write ? f->write : write_field)(&j, f, cfg);
    if (j.root && j.s == HOLA_OK) *out = shortest(j.root);
    json_decref(j.root);
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
