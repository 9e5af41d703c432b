/* gguf_save.c -- writes a model to a GGUF file. */
#include "core/half.h"
#include "model/config.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"
#include "model/quant_blocks.h"
#include "model/quant_file.h"
#include <stdlib.h>
#include <string.h>

/* ---- keys ---- */

static hola_status check_llama(const hola_config *c) {
    if (c->qk_norm) return hl_fail(HOLA_ENOTSUP, "qk_norm: the architecture llama of GGUF has no norm of q and k");
    if (c->window_size) return hl_fail(HOLA_ENOTSUP, "window_size: the architecture llama of GGUF has no window");
    return HOLA_OK;
}

/* llama.cpp's code for a file's mix of types. */
static int64_t file_type(hola_dtype t) {
    static const int64_t number[] = {
        [HOLA_F32] = 0, [HOLA_BF16] = 32, [HOLA_F16] = 1, [HOLA_INT8] = 7, [HOLA_INT4] = 2};
    return number[t];
}

static void put_size(struct hl_gguf_keys *k, const char *arch, const char *name, int64_t value) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    hl_gguf_put_int(k, key, value);
}

static hola_status put_keys(struct hl_gguf_keys *k, const hola_model *m, hola_dtype dtype, bool llama) {
    const hola_config *c = &m->cfg;
    const char *arch = llama ? "llama" : "hola", *type = hola_model_type_name(c->model_type);
    char *config;
    hl_gguf_put_string(k, "general.architecture", arch, (int64_t)strlen(arch));
    hl_gguf_put_string(k, "general.type", "model", 5);
    hl_gguf_put_string(k, "general.name", type, (int64_t)strlen(type));
    hl_gguf_put_int(k, "general.file_type", file_type(dtype));
    if (hl_is_quant(dtype)) hl_gguf_put_int(k, "general.quantization_version", 2);
    put_size(k, arch, "context_length", c->max_position_embeddings);
    put_size(k, arch, "embedding_length", c->hidden_size);
    put_size(k, arch, "block_count", c->num_hidden_layers);
    put_size(k, arch, "feed_forward_length", c->intermediate_size);
    put_size(k, arch, "vocab_size", c->vocab_size);
    if (llama) {
        put_size(k, arch, "attention.head_count", c->num_heads);
        put_size(k, arch, "attention.head_count_kv", c->num_kv_heads);
        put_size(k, arch, "rope.dimension_count", c->hidden_size / c->num_heads);
        hl_gguf_put_real(k, "llama.attention.layer_norm_rms_epsilon", c->norm_eps);
        hl_gguf_put_real(k, "llama.rope.freq_base", c->rope_theta);
        return HOLA_OK;
    }
    hola_status s = hl_model_saved_config(m, dtype, &config);
    if (s == HOLA_OK) hl_gguf_put_string(k, "hola.config", config, (int64_t)strlen(config));
    free(config);
    return s;
}

/* ---- tensors ---- */

/* The source of an entry. */
struct source {
    const struct hl_tensor *t;
    const real *x;                /* as floats */
    const struct hl_quant *codes; /* for block types, else NULL */
    int64_t heads;
};
struct contents {
    const hola_model *m;
    hola_dtype dtype;
    const char *path;
    const struct hl_gguf_keys *tokenizer;
    struct hl_gguf_entry *entry; /* the following are [params.n] */
    struct source *source;
    struct hl_quant *codes;
};

static uint32_t float_type(hola_dtype t) {
    return t == HOLA_F16 ? HL_GGML_F16 : t == HOLA_BF16 ? HL_GGML_BF16 : HL_GGML_F32;
}

/* Matrices of linear ops have the file's type if their rows are whole blocks; everything small is F32, as llama.cpp
 * expects. */
static hola_dtype type_of(const struct contents *c, int64_t i) {
    const struct hl_tensor *t = &c->m->params.tensor[i];
    if (t->ndim != 2) return HOLA_F32;
    if (!hl_is_quant(c->dtype)) return c->dtype;
    if (hl_quant_file_takes(&c->m->params, i) && t->dim[1] % HL_BLOCK == 0) return c->dtype;
    return c->m->stored[i] <= HOLA_F16 ? c->m->stored[i] : HOLA_F32;
}

static void fill(struct contents *c, int64_t i, bool llama) {
    const hola_model *m = c->m;
    const struct hl_tensor *t = &m->params.tensor[i];
    const hola_dtype type = type_of(c, i);
    struct hl_gguf_entry *e = &c->entry[i];
    struct source *from = &c->source[i];
    char name[HL_GGUF_NAME];
    *from = (struct source){.t = t, .x = m->rows + t->offset};
    if (llama) HL_ASSERT(hl_llama_name(&m->cfg, t->name, name, &from->heads));
    HL_ASSERT(strlen(llama ? name : t->name) < sizeof e->name);
    *e = (struct hl_gguf_entry){.type = float_type(type), .ndim = t->ndim, .from = from};
    strcpy(e->name, llama ? name : t->name);
    for (int j = 0; j < t->ndim; j++) e->dim[j] = t->dim[t->ndim - 1 - j];
    e->row = e->dim[0] * (type == HOLA_F32 ? 4 : 2);
    if (!hl_is_quant(type)) return;
    from->codes = c->codes[i].code ? &c->codes[i] : &m->codes[i];
    e->type = type == HOLA_INT8 ? HL_GGML_Q8_0 : HL_GGML_Q4_0;
    e->row = e->dim[0] / HL_BLOCK * hl_block_bytes(type);
}

/* Writes one number; false if it is not finite, or overflows the type. */
static bool put_number(uint32_t type, float x, char *out) {
    const uint16_t h = type == HL_GGML_BF16 ? hl_to_bf16(x) : hl_to_f16(x);
    if (type == HL_GGML_F32) memcpy(out, &x, 4);
    else memcpy(out, &h, 2);
    const uint16_t top = type == HL_GGML_BF16 ? 0x7f80 : 0x7c00;
    return x - x == 0 && (type == HL_GGML_F32 || (h & top) != top);
}

static hola_status put_row(void *ctx, const struct hl_gguf_entry *e, int64_t i, char *out) {
    const struct contents *c = ctx;
    const struct source *from = e->from;
    const int64_t D = from->heads ? from->t->dim[0] / from->heads : 0, cols = e->dim[0];
    const bool vector = e->ndim == 1;
    const int64_t row = D && !vector ? hl_our_row(i, D) : i;
    bool good = true;
    if (from->codes) good = hl_blocks_write(from->codes, row, out);
    for (int64_t j = 0; j < cols && !from->codes; j++) {
        const real x = from->x[row * cols + (D && vector ? hl_our_row(j, D) : j)];
        good = put_number(e->type, (float)x, out + j * (e->row / cols)) && good;
    }
    if (good) return HOLA_OK;
    const char *type = NULL;
    int64_t block, bytes;
    hl_gguf_tensor_type(e->type, &type, &block, &bytes);
    return hl_fail(HOLA_ENUMERIC, "%s: %s: holds values that are not finite as %s", c->path, e->name, type);
}

static hola_status save_rows(const hola_model *m, void *ctx) {
    struct contents *c = ctx;
    const bool llama = m->cfg.model_type == HOLA_TYPE_TRANSFORMER;
    struct hl_gguf_keys keys = {0};
    hola_status s = put_keys(&keys, m, c->dtype, llama);
    if (s == HOLA_OK && c->tokenizer->n > 0) hl_gguf_put_item(&keys, c->tokenizer->text.data, c->tokenizer->text.n);
    keys.n += c->tokenizer->n;
    if (llama && c->tokenizer->n == 0) hl_gguf_put_string(&keys, "tokenizer.ggml.model", "none", 4);
    if (s == HOLA_OK && hl_is_quant(c->dtype)) s = hl_model_make_codes(m, c->dtype, c->codes);
    for (int64_t i = 0; i < m->params.n && s == HOLA_OK; i++) fill(c, i, llama);
    if (s == HOLA_OK) s = hl_gguf_write(c->path, &keys, c->entry, m->params.n, &(struct hl_gguf_rows){put_row, c});
    hl_text_free(&keys.text);
    return s;
}

hola_status hl_gguf_model_save(const hola_model *m, const char *path, hola_dtype dtype,
                               const struct hl_gguf_keys *keys) {
    const size_t n = (size_t)m->params.n;
    struct contents c = {.m = m,
                         .dtype = dtype,
                         .path = path,
                         .tokenizer = keys,
                         .entry = calloc(n, sizeof *c.entry),
                         .source = calloc(n, sizeof *c.source),
                         .codes = calloc(n, sizeof *c.codes)};
    hola_status s = c.entry && c.source && c.codes ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory to save", path);
    if (s == HOLA_OK && m->cfg.model_type == HOLA_TYPE_TRANSFORMER) s = check_llama(&m->cfg);
    if (s == HOLA_OK) s = hl_model_save_with(m, save_rows, &c);
    for (size_t i = 0; c.codes && i < n; i++) hl_quant_file_free(&c.codes[i]);
    free(c.entry), free(c.source), free(c.codes);
    return s;
}
