/* config.c -- the architecture of a model: presets, defaults, limits. */
#define _GNU_SOURCE
#include "model/config.h"
#include "core/file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ---- */

const char *hola_model_type_name(hola_model_type t) {
    static const char *const names[] = {"hola", "gated_deltanet", "delta_net"};
    return (unsigned)t < HOLA_TYPE_COUNT ? names[t] : "unknown";
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
    bool delta_net = type == HOLA_TYPE_DELTA_NET;
    *c = (hola_config){
        .model_type = type,
        .hidden_size = 2048,
        .num_hidden_layers = delta_net ? 24 : 21,
        .intermediate_size = 5632,
        .vocab_size = 32000,
        .num_heads = delta_net ? 16 : 6,
        .num_v_heads = delta_net ? 16 : 6,
        .head_dim = delta_net ? 128 : 256,
        .head_v_dim = delta_net ? 128 : 512,
        .conv_size = 4,
        .max_position_embeddings = 2048,
        .bos_token_id = 1,
        .eos_token_id = 2,
        .norm_eps = 1e-6,
        .initializer_range = 0.02,
        .hidden_ratio = 4,
        .use_gate = !delta_net,
        .use_beta = true,
        .cache_evict = type == HOLA_TYPE_HOLA ? HOLA_EVICT_BETAE : HOLA_EVICT_NONE,
        .cache_norm = HOLA_NORM_RMS,
        .cache_window = 64,
        .cache_chunk = 256,
        .cache_gate_init = -4,
        .cache_tau_init = 1,
        .cache_tau_freeze = true,
        .cache_sinks = 4,
    };
}

hola_status hola_config_preset(hola_config *out, const char *name, hola_model_type type) {
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
    if ((unsigned)type >= HOLA_TYPE_COUNT) return hl_fail(HOLA_EINVAL, "preset %s: no such model type", name);
    while (i < 3 && (strlen(presets[i].name) != base || memcmp(presets[i].name, name, base) != 0)) i++;
    if (i == 3 || (dash && strcmp(dash, "-gate") != 0 && strcmp(dash, "-nogate") != 0))
        return hl_fail(HOLA_EINVAL, "preset %s: not one of 46m, 170m, 340m, each also with -gate or -nogate",
                       name);
    hl_config_defaults(out, type);
    out->hidden_size = presets[i].hidden;
    out->num_hidden_layers = presets[i].layers;
    out->hidden_ratio = presets[i].ratio;
    out->intermediate_size = hl_intermediate_size(out->hidden_size, out->hidden_ratio);
    out->head_dim = type == HOLA_TYPE_DELTA_NET ? 128 : presets[i].head_dim; /* delta_net: as flame's */
    out->head_v_dim = out->head_dim;
    out->num_heads = out->num_v_heads = out->hidden_size / out->head_dim;
    out->max_position_embeddings = presets[i].max_position;
    out->tie_word_embeddings = true;
    out->use_gate = dash ? strcmp(dash, "-gate") == 0 : presets[i].gate;
    return HOLA_OK;
}

/* ---- limits ---- */

#define AT(field) offsetof(hola_config, field)
static const struct int_field {
    const char *name;
    size_t at;
    int64_t lo, hi;
    bool cache; /* of model_type hola only */
} int_fields[] = {
    {"hidden_size", AT(hidden_size), 1, HL_MAX_HIDDEN, false},
    {"num_hidden_layers", AT(num_hidden_layers), 1, HL_MAX_LAYERS, false},
    {"intermediate_size", AT(intermediate_size), 1, HL_MAX_INTERMEDIATE, false},
    {"vocab_size", AT(vocab_size), 1, HL_MAX_VOCAB, false},
    {"num_heads", AT(num_heads), 1, HL_MAX_HEADS, false},
    {"num_v_heads", AT(num_v_heads), 1, HL_MAX_HEADS, false},
    {"head_dim", AT(head_dim), 1, HL_MAX_HEAD_DIM, false},
    {"head_v_dim", AT(head_v_dim), 1, HL_MAX_HEAD_V_DIM, false},
    {"conv_size", AT(conv_size), 0, HL_MAX_CONV, false},
    {"max_position_embeddings", AT(max_position_embeddings), 1, INT32_MAX, false},
    {"bos_token_id", AT(bos_token_id), -1, HL_MAX_VOCAB - 1, false},
    {"eos_token_id", AT(eos_token_id), -1, HL_MAX_VOCAB - 1, false},
    {"cache_window", AT(cache_window), 0, HL_MAX_WINDOW, true},
    {"cache_chunk", AT(cache_chunk), 1, HL_MAX_CHUNK, true},
    {"cache_sinks", AT(cache_sinks), 0, HL_MAX_WINDOW, true},
};
static const struct real_field {
    const char *name;
    size_t at;
    double lo, hi; /* bounds that mean the same in float */
    bool cache;
} real_fields[] = {
    {"norm_eps", AT(norm_eps), 1e-30, 1, false},
    {"initializer_range", AT(initializer_range), 0, 100, false},
    {"hidden_ratio", AT(hidden_ratio), 1e-6, 1e6, false},
    {"cache_gate_init", AT(cache_gate_init), -1e6, 1e6, true},
    {"cache_tau_init", AT(cache_tau_init), -1e6, 1e6, true},
};
enum {
    INT_FIELDS = sizeof int_fields / sizeof *int_fields,
    REAL_FIELDS = sizeof real_fields / sizeof *real_fields
};

static hola_status check_int(const char *where, const struct int_field *f, int64_t value) {
    if (value >= f->lo && value <= f->hi) return HOLA_OK;
    return hl_fail(HOLA_EINVAL, "%s: %s: %lld is not between %lld and %lld", where, f->name, (long long)value,
                   (long long)f->lo, (long long)f->hi);
}

hola_status hl_config_range(const char *where, const char *name, int64_t value) {
    int i = 0;
    while (i < INT_FIELDS && strcmp(int_fields[i].name, name) != 0) i++;
    HL_ASSERT(i < INT_FIELDS);
    return check_int(where, &int_fields[i], value);
}

hola_status hl_config_check(const hola_config *c, const char *where) {
    bool hola = c->model_type == HOLA_TYPE_HOLA;
    if ((unsigned)c->model_type >= HOLA_TYPE_COUNT)
        return hl_fail(HOLA_EINVAL, "%s: model_type: %d is none", where, (int)c->model_type);
    for (int i = 0; i < INT_FIELDS; i++) {
        if (int_fields[i].cache && !hola) continue;
        hola_status s =
            check_int(where, &int_fields[i], *(const int64_t *)((const char *)c + int_fields[i].at));
        if (s != HOLA_OK) return s;
    }
    for (int i = 0; i < REAL_FIELDS; i++) {
        const struct real_field *f = &real_fields[i];
        double x = *(const double *)((const char *)c + f->at);
        if (f->cache && !hola) continue;
        if (!(x >= f->lo && x <= f->hi))
            return hl_fail(HOLA_EINVAL, "%s: %s: %g is not between %g and %g", where, f->name, x, f->lo,
                           f->hi);
    }
    if (hola && (unsigned)c->cache_evict >= HOLA_EVICT_COUNT)
        return hl_fail(HOLA_EINVAL, "%s: cache_evict: %d is none", where, (int)c->cache_evict);
    if (hola && (unsigned)c->cache_norm >= HOLA_NORM_COUNT)
        return hl_fail(HOLA_EINVAL, "%s: cache_norm: %d is none", where, (int)c->cache_norm);
    if (c->num_v_heads % c->num_heads != 0)
        return hl_fail(HOLA_EINVAL, "%s: num_v_heads: %lld is not a multiple of num_heads, %lld", where,
                       (long long)c->num_v_heads, (long long)c->num_heads);
    if (c->model_type == HOLA_TYPE_DELTA_NET && c->num_v_heads != c->num_heads)
        return hl_fail(HOLA_EINVAL, "%s: num_v_heads: delta_net has as many value heads as heads", where);
    if (c->model_type != HOLA_TYPE_DELTA_NET && !c->use_beta)
        return hl_fail(HOLA_EINVAL, "%s: use_beta: only delta_net goes without", where);
    return HOLA_OK;
}

hola_status hola_config_check(const hola_config *cfg) { return hl_config_check(cfg, "config"); }

/* ---- files ---- */

hola_status hola_config_read(hola_config *out, const char *path) {
    struct hl_map map = {0};
    struct stat st;
    hola_status s;
    bool dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    char *file = dir ? hl_path_join(path, "config.json") : strdup(path);
    if (!file) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    s = hl_map_open(&map, file);
    if (s == HOLA_OK) s = hl_config_parse(out, map.data, map.size, file);
    hl_map_close(&map);
    free(file);
    return s;
}
