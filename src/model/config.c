/* config.c -- the architecture of a model: types, presets, defaults, limits, hash. */
#define _GNU_SOURCE
#include "model/config.h"
#include "core/file.h"
#include "core/hash.h"
#include "mixers/exact_memory.h"
#include "model/gguf_model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- model types, names ---- */

unsigned hl_config_groups(hola_model_type t) {
    const struct hl_mixer *m = hl_mixer_of(t);
    return HL_GROUP_ALL | (m ? m->fields : 0);
}
const char *hola_model_type_name(hola_model_type t) {
    const struct hl_mixer *m = hl_mixer_of(t);
    return m ? m->name : "unknown";
}
const char *hola_cache_norm_name(hola_cache_norm n) {
    static const char *const names[] = {"rms", "l2"};
    return (unsigned)n < HOLA_NORM_COUNT ? names[n] : "unknown";
}
const char *hola_dtype_name(hola_dtype t) {
    static const char *const names[] = {"F32", "BF16", "F16", "INT8", "INT4"};
    return (unsigned)t < HOLA_DTYPE_COUNT ? names[t] : "unknown";
}

/* ---- defaults ---- */

int64_t hl_intermediate_size(int64_t hidden_size, double hidden_ratio) {
    double wanted = floor((double)hidden_size * hidden_ratio * 2 / 3);
    if (!(wanted >= 1 && wanted <= HL_MAX_INTERMEDIATE)) return 0;
    return ((int64_t)wanted + 255) / 256 * 256;
}

void hl_config_defaults(hola_config *c, hola_model_type type) {
    const struct hl_mixer *mixer = hl_mixer_of(type);
    *c = (hola_config){
        .model_type = type,
        .hidden_size = 2048,
        .num_hidden_layers = 21,
        .intermediate_size = 5632,
        .vocab_size = 32000,
        .num_heads = 6,
        .num_v_heads = 6,
        .head_dim = 256,
        .head_v_dim = 512,
        .conv_size = 4,
        .max_position_embeddings = 2048,
        .bos_token_id = 1,
        .eos_token_id = 2,
        .norm_eps = 1e-6,
        .initializer_range = 0.02,
        .hidden_ratio = 4,
        .use_gate = true,
        .use_beta = true,
        .cache_evict = hl_config_groups(type) & HL_GROUP_MEMORY ? HOLA_EVICT_BETAE : HOLA_EVICT_NONE,
        .cache_norm = HOLA_NORM_RMS,
        .cache_window = 64,
        .cache_chunk = 256,
        .cache_gate_init = -4,
        .cache_tau_init = 1,
        .cache_tau_freeze = true,
        .elementwise_affine = true,
        .fuse_norm = true,
        .clamp_min = -INFINITY,
        .num_slots = 64,
        .gate_logit_normalizer = 8,
    };
    for (const struct hl_field *f = hl_config_fields; f->name; f++)
        if (f->standard) *(int64_t *)((char *)c + f->at) = f->standard;
    if (mixer && mixer->defaults) mixer->defaults(c);
}

hola_status hola_config_preset(hola_config *out, const char *name, hola_model_type type) {
    HL_NEED(out, "out");
    HL_NEED(name, "name");
    static const struct {
        const char *name;
        int64_t hidden, layers, head_dim, max_position;
        double ratio;
        bool gate;
    } presets[] = {{"46m", 512, 12, 128, 4096, 2, true},
                   {"170m", 1024, 12, 256, 2048, 4, false},
                   {"340m", 1024, 24, 256, 2048, 4, false}};
    const char *dash = strchr(name, '-');
    size_t base = dash ? (size_t)(dash - name) : strlen(name), i = 0;
    if (!hl_mixer_of(type)) return hl_fail(HOLA_EINVAL, "preset %s: no such model type", name);
    while (i < 3 && (strlen(presets[i].name) != base || memcmp(presets[i].name, name, base) != 0)) i++;
    const bool memory = dash && strcmp(dash, "-memory") == 0;
    if (i == 3 || (dash && !memory && strcmp(dash, "-gate") != 0 && strcmp(dash, "-nogate") != 0))
        return hl_fail(HOLA_EINVAL, "preset %s: not one of 46m, 170m, 340m, each also with -gate or -nogate", name);
    if (memory && !hl_mixer_of(type)->memory_optional)
        return hl_fail(HOLA_EINVAL, "preset %s: only kda is offered with and without the exact memory", name);
    if (dash && !memory && !(hl_config_groups(type) & HL_GROUP_HEADS))
        return hl_fail(HOLA_EINVAL, "preset %s: %s is not offered with and without an output gate", name,
                       hola_model_type_name(type));
    hl_config_defaults(out, type);
    out->hidden_size = presets[i].hidden;
    out->num_hidden_layers = presets[i].layers;
    out->hidden_ratio = presets[i].ratio;
    out->intermediate_size = hl_intermediate_size(out->hidden_size, out->hidden_ratio);
    out->head_dim = out->head_v_dim = presets[i].head_dim;
    out->num_heads = out->num_v_heads = out->hidden_size / out->head_dim;
    out->max_position_embeddings = presets[i].max_position;
    out->tie_word_embeddings = true;
    out->use_gate = dash ? strcmp(dash, "-gate") == 0 : presets[i].gate;
    if (hl_mixer_of(type)->preset) hl_mixer_of(type)->preset(out);
    if (memory) out->cache_evict = HOLA_EVICT_BETAE;
    return HOLA_OK;
}

/* ---- fields: limits, hash ---- */

_Static_assert(sizeof(hola_model_type) == sizeof(int) && sizeof(hola_evict) == sizeof(int), "read as int");
int64_t hl_field_int(const struct hl_field *f, const hola_config *c) {
    const void *at = (const char *)c + f->at;
    int64_t x;
    if (f->kind == HL_FIELD_BOOL) return *(const bool *)at;
    if (f->kind == HL_FIELD_NAME) return *(const int *)at;
    memcpy(&x, at, sizeof x);
    return x;
}

hola_status hl_field_check(const struct hl_field *f, const hola_config *c, const char *where) {
    if (f->kind == HL_FIELD_OTHER || f->kind == HL_FIELD_BOOL) return HOLA_OK;
    const int64_t n = hl_field_int(f, c);
    const double x = f->kind == HL_FIELD_REAL ? hl_field_real(f, c) : (double)n;
    if (x >= f->lo && x <= f->hi) return HOLA_OK;
    if (f->kind == HL_FIELD_NAME) return hl_fail(HOLA_EINVAL, "%s: %s: %lld is unknown", where, f->name, (long long)n);
    if (f->kind == HL_FIELD_REAL)
        return hl_fail(HOLA_EINVAL, "%s: %s: %g is not between %g and %g", where, f->name, x, f->lo, f->hi);
    return hl_fail(HOLA_EINVAL, "%s: %s: %lld is not between %.0f and %.0f", where, f->name, (long long)n, f->lo,
                   f->hi);
}

hola_status hl_config_check(const hola_config *c, const char *where) {
    const struct hl_mixer *mixer = hl_mixer_of(c->model_type);
    hola_status s = HOLA_OK;
    if (!mixer) return hl_fail(HOLA_EINVAL, "%s: model_type: %d is unknown", where, (int)c->model_type);
    for (const struct hl_field *f = hl_config_fields; f->name && s == HOLA_OK; f++)
        if (hl_config_has(c, f->of)) s = hl_field_check(f, c, where);
    if (s == HOLA_OK) s = hl_memory_config_check(c, where);
    return s == HOLA_OK && mixer->check ? mixer->check(c, where) : s;
}

void hl_config_change_type(hola_config *c, hola_model_type type) {
    static const size_t size[] = {0, sizeof(int64_t), sizeof(double), sizeof(bool), sizeof(int)}; /* by kind */
    hola_config out;
    hl_config_defaults(&out, type);
    for (const struct hl_field *f = hl_config_fields; f->name; f++) {
        void *at = (char *)&out + f->at;
        if (f->at == offsetof(hola_config, model_type)) continue;
        if (hl_config_uses(c, f)) memcpy(at, (const char *)c + f->at, size[f->kind]);
        else if (f->null && !f->read && f->kind == HL_FIELD_INT) *(int64_t *)at = (int64_t)f->null(&out);
    }
    *c = out;
}

hola_status hola_config_check(const hola_config *cfg) {
    HL_NEED(cfg, "the config");
    return hl_config_check(cfg, "config");
}

/* One hash per block, each chained to the previous. A field that this type lacks counts as 0; a block of only such
 * fields is skipped. */
uint64_t hl_config_hash(const hola_config *c) {
    uint64_t h = 0;
    for (int block = 1; block <= 9; block++) {
        int64_t word[100] = {0}, n = 0;
        for (const struct hl_field *f = hl_config_fields; f->name; f++) {
            const int place = f->hash % 100;
            if (f->hash / 100 != block || !hl_config_uses(c, f)) continue;
            word[place] = hl_field_int(f, c);
            if (place >= n) n = place + 1;
        }
        if (n > 0) h = hl_hash(h, word, n * (int64_t)sizeof *word);
    }
    return h;
}

/* ---- changing the type ---- */

/* A linear gate of 0, because sigma(gate) = 0 would need an infinite gate that training could never open. */
hola_status hl_config_add_memory(hola_config *c, const char *from) {
    if (c->cache_evict != HOLA_EVICT_NONE) return hl_fail(HOLA_EINVAL, "%s: has an exact memory already", from);
    if (c->model_type == HOLA_TYPE_GATED_DELTANET) c->model_type = HOLA_TYPE_HOLA;
    if (!hl_config_has(c, HL_GROUP_MEMORY))
        return hl_fail(HOLA_EINVAL, "%s: a %s cannot have an exact memory", from, hola_model_type_name(c->model_type));
    c->cache_evict = HOLA_EVICT_BETAE;
    c->cache_gate_linear = true;
    c->cache_gate_init = 0;
    return hola_config_check(c);
}

/* ---- files ---- */

hola_status hola_config_read(hola_config *out, const char *path) {
    HL_NEED(out, "out");
    HL_NEED(path, "path");
    struct hl_map map = {0};
    struct stat st;
    hola_status s;
    if (hl_is_gguf(path)) return hl_gguf_config_read(out, path);
    bool dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *file = dir ? hl_path_join(path, "config.json") : strdup(path);
    if (!file) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    s = hl_map_open(&map, file);
    if (s == HOLA_OK) s = hl_config_parse(out, map.data, map.size, file);
    hl_map_close(&map);
    free(file);
    return s;
}
