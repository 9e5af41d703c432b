/* config.h -- hola_config inside the library: its list of fields, and config.json. The public part is in hola.h. */
#ifndef HL_CONFIG_H
#define HL_CONFIG_H
#include "mixers/mixer.h"

/* Limits of a config. No product of sizes in the library reaches 2^53, so sizes in elements and bytes need no overflow
 * checks after hola_config_check(). */
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
    HL_MAX_ATTENTION_WINDOW = 1 << 20,
    HL_MAX_SLOTS = 1024,
    HL_MAX_LTE_DIM = 64,
    HL_MAX_CONFIG_TEXT = 16 << 20 /* bytes of a config.json */
};

/* ---- model types ---- */

/* The groups of fields that models of this type have, as declared by the mixer (mixers/mixer.h). */
unsigned hl_config_groups(hola_model_type type); /* only HL_GROUP_ALL for an unknown type */
/* Whether the model has any of these groups. */
static inline bool hl_config_has(const hola_config *c, unsigned groups) {
    return hl_config_groups(c->model_type) & groups;
}

/* Converts to a config with an exact memory that contributes nothing before training: gated_deltanet becomes hola. from
 * is used in the message. */
hola_status hl_config_add_memory(hola_config *c, const char *from);

/* ---- the list of fields ---- */

/* OTHER: config.json represents it differently than hola_config, or only config.json has it. */
enum hl_field_kind { HL_FIELD_OTHER, HL_FIELD_INT, HL_FIELD_REAL, HL_FIELD_BOOL, HL_FIELD_NAME };

struct hl_config_json; /* a config.json being read or written */
struct hl_field {
    const char *name; /* in config.json */
    enum hl_field_kind kind;
    size_t at;                            /* in hola_config */
    unsigned of;                          /* groups of models that have the value */
    unsigned file;                        /* groups of models that have it in config.json */
    int hash;                             /* 100 x block + place in the block; 0: sessions do not depend on it */
    double lo, hi;                        /* limits; a real's are also kept as float */
    const char *(*text)(int value);       /* NAME: the string in config.json */
    int64_t standard;                     /* INT: default; 0: see hl_config_defaults */
    bool (*used)(const hola_config *c);   /* false: not written, not hashed. NULL: always used */
    double (*null)(const hola_config *c); /* meaning of null or a missing field; NULL: null is an error */
    /* NULL: by kind */
    void (*read)(struct hl_config_json *j, const struct hl_field *f, hola_config *c);
    void (*write)(struct hl_config_json *j, const struct hl_field *f, const hola_config *c);
};
/* In the order they are written to config.json; a field without a name ends the list. */
extern const struct hl_field hl_config_fields[];

/* Whether a model has the field and depends on it. */
static inline bool hl_config_uses(const hola_config *c, const struct hl_field *f) {
    return hl_config_has(c, f->of) && (!f->used || f->used(c));
}
/* The value of an INT, BOOL or NAME; the bits of a REAL. */
int64_t hl_field_int(const struct hl_field *f, const hola_config *c);
static inline double hl_field_real(const struct hl_field *f, const hola_config *c) {
    return *(const double *)((const char *)c + f->at);
}
/* Checks the value against its limits; `where` prefixes the message. */
hola_status hl_field_check(const struct hl_field *f, const hola_config *c, const char *where);

/* ---- whole configs ---- */

/* The default MLP width in fla: 256 ceil(floor(d ratio 2/3) / 256); 0: out of range. */
int64_t hl_intermediate_size(int64_t hidden_size, double hidden_ratio);
/* Sets all fields that a config.json of this type may omit. */
void hl_config_defaults(hola_config *c, hola_model_type type);
/* Changes the mixer: fields that the old type did not have get the new type's defaults. */
void hl_config_change_type(hola_config *c, hola_model_type type);
/* hola_config_check with `where` as a prefix of the message. */
hola_status hl_config_check(const hola_config *c, const char *where);
/* Hash of everything besides the weights that affects a session's numbers. Stored in saved sessions: never change
 * it. */
uint64_t hl_config_hash(const hola_config *c);

/* Parses a config.json; path is only used in messages. On failure *out is unchanged. */
hola_status hl_config_parse(hola_config *out, const char *text, int64_t len, const char *path);
/* Writes a config.json; dtype is that of the weights next to it. Unknown fields of old (NULL, or the config.json the
 * model was loaded from) are kept. *out is NUL-terminated; free() it. */
hola_status hl_config_text(const hola_config *cfg, const char *old, hola_dtype dtype, char **out);

#endif
