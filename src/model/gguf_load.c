/* gguf_load.c -- reads a GGUF file as a config and a table of tensors, for the same loader as directories. */
#include "core/json.h"
#include "model/config.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"
#include "model/params.h"
#include <stdlib.h>
#include <string.h>

/* ---- config ---- */

/* Files written by hola contain the text of config.json. */
static hola_status own_config(const struct hl_gguf *g, char **text) {
    const char *at = NULL;
    int64_t len = 0;
    hola_status s = hl_gguf_string(g, "hola.config", &at, &len);
    if (s != HOLA_OK) return s;
    if (!at) return hl_fail(HOLA_EFORMAT, "%s: hola.config: missing", g->path);
    *text = calloc(1, (size_t)len + 1);
    if (!*text) return hl_fail(HOLA_ENOMEM, "%s: %lld bytes", g->path, (long long)len);
    memcpy(*text, at, (size_t)len);
    return memchr(*text, 0, (size_t)len) ? hl_fail(HOLA_EFORMAT, "%s: hola.config: holds a NUL", g->path) : HOLA_OK;
}

static const struct hl_gguf_tensor *find_tensor(const struct hl_gguf *g, const char *name) {
    for (int64_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensor[i].name, name) == 0) return &g->tensor[i];
    return NULL;
}

/* The shortest decimal number that equals a float. */
static double shortest(double x) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtof(text, NULL) == (float)x) return strtod(text, NULL);
    }
    return x;
}

/* llama features that we do not support: a key, and the value that disables the feature. */
static hola_status refuse_unsupported(const struct hl_gguf *g, int64_t head) {
    static const struct {
        const char *key;
        int64_t fine; /* < 0: the head size */
    } ints[] = {{"llama.expert_count", 0},
                {"llama.rope.dimension_count", -1},
                {"llama.attention.key_length", -1},
                {"llama.attention.value_length", -1},
                {"llama.attention.sliding_window", 0}};
    hola_status s = HOLA_OK;
    for (size_t i = 0; i < sizeof ints / sizeof *ints && s == HOLA_OK; i++) {
        const int64_t fine = ints[i].fine < 0 ? head : ints[i].fine;
        int64_t value = fine;
        s = hl_gguf_int(g, ints[i].key, 0, INT32_MAX, &value);
        if (s == HOLA_OK && value != fine)
            s = hl_fail(HOLA_ENOTSUP, "%s: %s: %lld is not supported, only %lld", g->path, ints[i].key,
                        (long long)value, (long long)fine);
    }
    for (int64_t i = 0; i < g->n_values && s == HOLA_OK; i++) {
        const char *key = g->value[i].key;
        if (strncmp(key, "llama.rope.scal", 15) == 0 && !hl_gguf_is(g, "llama.rope.scaling.type", "none"))
            s = hl_fail(HOLA_ENOTSUP, "%s: %.100s: scaled rotary positions are not supported", g->path, key);
    }
    return s;
}

static hola_status need_int(const struct hl_gguf *g, const char *key, int64_t hi, int64_t *out) {
    if (!hl_gguf_find(g, key)) return hl_fail(HOLA_EFORMAT, "%s: %s: missing", g->path, key);
    return hl_gguf_int(g, key, 1, hi, out);
}

static hola_status llama_config(const struct hl_gguf *g, char **text) {
    const struct hl_gguf_tensor *embed = find_tensor(g, "token_embd.weight");
    int64_t d, layers, width, heads, kv, positions = 2048, bos = -1, eos = -1;
    double eps = 0, theta = 10000;
    hola_status s = need_int(g, "llama.embedding_length", HL_MAX_HIDDEN, &d);
    if (s == HOLA_OK) s = need_int(g, "llama.block_count", HL_MAX_LAYERS, &layers);
    if (s == HOLA_OK) s = need_int(g, "llama.feed_forward_length", HL_MAX_INTERMEDIATE, &width);
    if (s == HOLA_OK) s = need_int(g, "llama.attention.head_count", HL_MAX_HEADS, &heads);
    if (s != HOLA_OK) return s;
    kv = heads;
    s = hl_gguf_int(g, "llama.attention.head_count_kv", 1, HL_MAX_HEADS, &kv);
    if (s == HOLA_OK) s = hl_gguf_int(g, "llama.context_length", 1, INT32_MAX, &positions);
    if (s == HOLA_OK) s = hl_gguf_int(g, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos);
    if (s == HOLA_OK) s = hl_gguf_int(g, "tokenizer.ggml.eos_token_id", 0, UINT32_MAX, &eos);
    if (s == HOLA_OK) s = hl_gguf_real(g, "llama.attention.layer_norm_rms_epsilon", &eps);
    if (s == HOLA_OK) s = hl_gguf_real(g, "llama.rope.freq_base", &theta);
    if (s == HOLA_OK) s = refuse_unsupported(g, d / heads);
    if (s != HOLA_OK) return s;
    if (!embed || embed->ndim != 2) return hl_fail(HOLA_EFORMAT, "%s: token_embd.weight: no such matrix", g->path);
    json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:b, s:b, s:I, s:I, s:I}", "model_type",
                             "transformer", "hidden_size", (json_int_t)d, "num_hidden_layers", (json_int_t)layers,
                             "num_heads", (json_int_t)heads, "num_kv_heads", (json_int_t)kv, "intermediate_size",
                             (json_int_t)width, "norm_eps", shortest(eps), "rope_theta", shortest(theta), "vocab_size",
                             (json_int_t)embed->dim[1], "tie_word_embeddings", !find_tensor(g, "output.weight"),
                             "qkv_bias", find_tensor(g, "blk.0.attn_q.bias") != NULL, "max_position_embeddings",
                             (json_int_t)positions, "bos_token_id", (json_int_t)(bos < embed->dim[1] ? bos : -1),
                             "eos_token_id", (json_int_t)(eos < embed->dim[1] ? eos : -1));
    *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    return *text ? HOLA_OK : hl_fail(HOLA_EFORMAT, "%s: a number that is not finite, or no memory", g->path);
}

static bool is_llama(const struct hl_gguf *g) { return hl_gguf_is(g, "general.architecture", "llama"); }

hola_status hl_gguf_config(const struct hl_gguf *g, hola_config *cfg, char **text) {
    const char *arch = NULL;
    int64_t len = 0;
    *text = NULL;
    hola_status s = hl_gguf_string(g, "general.architecture", &arch, &len);
    if (s == HOLA_OK && !arch) s = hl_fail(HOLA_EFORMAT, "%s: general.architecture: missing", g->path);
    if (s != HOLA_OK) return s;
    if (is_llama(g)) s = llama_config(g, text);
    else if (hl_gguf_is(g, "general.architecture", "hola")) s = own_config(g, text);
    else
        s = hl_fail(HOLA_ENOTSUP, "%s: general.architecture: %.*s is not supported (hola, llama are)", g->path,
                    len < 60 ? (int)len : 60, arch);
    if (s == HOLA_OK) s = hl_config_parse(cfg, *text, (int64_t)strlen(*text), g->path);
    if (s == HOLA_OK) return s;
    free(*text);
    *text = NULL;
    return s;
}

hola_status hl_gguf_config_read(hola_config *cfg, const char *path) {
    struct hl_gguf *g;
    char *text = NULL;
    hola_status s = hl_gguf_open(&g, path);
    if (s == HOLA_OK) s = hl_gguf_config(g, cfg, &text);
    hl_gguf_close(g);
    free(text);
    return s;
}

/* ---- tensors ---- */

struct owner {
    struct hl_gguf *g;
    char (*name)[HL_GGUF_NAME];
};
static void close_owner(void *ctx) {
    struct owner *o = ctx;
    hl_gguf_close(o->g);
    free(o->name);
    free(o);
}

/* heads: see gguf_names.h. */
static void take_tensor(struct hl_st_tensor *to, const struct hl_gguf *g, const struct hl_gguf_tensor *t,
                        const char *name, int64_t heads) {
    static const struct {
        uint32_t type;
        hola_dtype dtype;
    } floats[] = {{HL_GGML_F32, HOLA_F32}, {HL_GGML_F16, HOLA_F16}, {HL_GGML_BF16, HOLA_BF16}};
    const char *type;
    int64_t block, bytes;
    *to = (struct hl_st_tensor){.name = name,
                                .path = g->path,
                                .dtype = HOLA_DTYPE_COUNT,
                                .ndim = t->ndim,
                                .count = t->count,
                                .data = t->data,
                                .bytes = t->bytes,
                                .blocks = t->type == HL_GGML_Q8_0 || t->type == HL_GGML_Q4_0};
    hl_gguf_tensor_type(t->type, &type, &block, &bytes);
    snprintf(to->stored, sizeof to->stored, "%s", type);
    for (int i = 0; i < 3; i++)
        if (floats[i].type == t->type) to->dtype = floats[i].dtype;
    for (int i = 0; i < t->ndim; i++) to->dim[i] = t->dim[t->ndim - 1 - i];
    if (heads > 0 && to->dim[0] % (2 * heads) == 0) to->heads = heads; /* otherwise the shape check fails */
}

static hola_status take_tensors(struct hl_st_tensor *to, const struct owner *o, const hola_config *cfg) {
    const struct hl_gguf *g = o->g;
    struct hl_params p = {0};
    hola_status s = hl_params_new(&p, cfg);
    for (int64_t i = 0; i < g->n_tensors && s == HOLA_OK; i++) {
        int64_t heads = 0;
        if (!is_llama(g)) snprintf(o->name[i], HL_GGUF_NAME, "%s", g->tensor[i].name);
        /* an unknown tensor would change what llama computes */
        else if (!hl_our_name(cfg, g->tensor[i].name, o->name[i], &heads) || hl_params_find(&p, o->name[i]) < 0)
            s = hl_fail(HOLA_ENOTSUP, "%s: %s: not in the models that hola has", g->path, g->tensor[i].name);
        take_tensor(&to[i], g, &g->tensor[i], o->name[i], heads);
    }
    hl_params_free(&p);
    return s;
}

hola_status hl_gguf_model(struct hl_stfile **f, hola_config *cfg, char **text, struct hl_gguf *g) {
    struct owner *o = calloc(1, sizeof *o);
    struct hl_st_tensor *tensor = calloc((size_t)g->n_tensors + 1, sizeof *tensor);
    *f = NULL, *text = NULL;
    if (o) *o = (struct owner){.g = g, .name = calloc((size_t)g->n_tensors + 1, sizeof *o->name)};
    hola_status s = o && o->name && tensor ? hl_gguf_config(g, cfg, text)
                                           : hl_fail(HOLA_ENOMEM, "%s: no memory for its tensors", g->path);
    if (s == HOLA_OK) s = take_tensors(tensor, o, cfg);
    if (s == HOLA_OK) s = hl_st_of(f, tensor, g->n_tensors, o, close_owner);
    else {
        free(tensor);
        if (o) close_owner(o);
        else hl_gguf_close(g);
    }
    if (s == HOLA_OK) return s;
    free(*text);
    *text = NULL;
    return s;
}

hola_status hl_gguf_model_open(struct hl_stfile **f, hola_config *cfg, char **text, const char *path) {
    struct hl_gguf *g;
    *f = NULL, *text = NULL;
    hola_status s = hl_gguf_open(&g, path);
    return s == HOLA_OK ? hl_gguf_model(f, cfg, text, g) : s;
}
