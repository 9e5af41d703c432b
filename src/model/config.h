/* config.h -- hola_config inside the library: config.json as text. The public part is in hola.h. */
#ifndef HL_CONFIG_H
#define HL_CONFIG_H
#include "core/status.h"

/* Largest sizes a config may have. No product of them that the library forms reaches 2^53, so sizes in
 * scalars and bytes need no overflow checks behind hola_config_check(). */
enum {
    HL_MAX_HIDDEN = 65536,
    HL_MAX_LAYERS = 1024,
    HL_MAX_VOCAB = 1 << 24,
    HL_MAX_HEADS = 1024,
    HL_MAX_HEAD_DIM = 512,
    HL_MAX_HEAD_V_DIM = 1024,
    HL_MAX_CONV = 8,
    HL_MAX_INTERMEDIATE = 1 << 20,
    HL_MAX_WINDOW = 4096,
    HL_MAX_CHUNK = 4096,
    HL_MAX_CONFIG_TEXT = 16 << 20 /* bytes of a config.json */
};

/* Key and value channels of a layer: H d_k, HV d_v. */
static inline int64_t hl_key_dim(const hola_config *c) { return c->num_heads * c->head_dim; }
static inline int64_t hl_value_dim(const hola_config *c) { return c->num_v_heads * c->head_v_dim; }
/* The exact memory is read and written (model_type hola and cache_evict not none). */
static inline bool hl_has_cache(const hola_config *c) {
    return c->model_type == HOLA_TYPE_HOLA && c->cache_evict != HOLA_EVICT_NONE;
}

/* The MLP width of fla where config.json gives none: 256 ceil(floor(d ratio 2/3) / 256); 0: out of range. */
int64_t hl_intermediate_size(int64_t hidden_size, double hidden_ratio);

/* All fields that a config.json of this type leaves out. */
void hl_config_defaults(hola_config *c, hola_model_type type);
/* hola_config_check with `where` before the message. */
hola_status hl_config_check(const hola_config *c, const char *where);
/* One integer field against its limits; the name is the one in config.json. */
hola_status hl_config_range(const char *where, const char *name, int64_t value);

/* Reads the text of a config.json; path is only for messages. On failure *out is untouched. */
hola_status hl_config_parse(hola_config *out, const char *text, int64_t len, const char *path);
/* Writes one, dtype being that of the weights beside it. Fields of old (NULL, or the text of the config.json
 * the model came from) that are not ours are kept. *out is NUL-terminated: free() it. */
hola_status hl_config_text(const hola_config *cfg, const char *old, hola_dtype dtype, char **out);

#endif
