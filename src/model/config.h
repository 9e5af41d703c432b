/* config.h -- hola_config inside the library: the list of its fields, config.json as text. The public part
 * is in hola.h. */
#ifndef HL_CONFIG_H
#define HL_CONFIG_H
#include "mixers/mixer.h"

/* Largest sizes a config may have. No product of them that the library forms reaches 2^53, so sizes in
 * scalars and bytes need no overflow checks after hola_config_check(). */
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

/* A mixer says which groups of fields its models have (mixers/mixer.h). */
unsigned hl_config_groups(hola_model_type type); /* HL_GROUP_ALL alone for an unknown type */
/* The model has one of these groups. */
static inline bool hl_config_has(const hola_config *c, unsigned groups) {
    return hl_config_groups(c->model_type) & groups;
}

/* The config of the same model with an exact memory that adds nothing before it is trained: gated_deltanet becomes hola.
 * from is for the message. */
hola_status hl_config_add_memory(hola_config *c, const char *from);

/* ---- the list of fields ---- */

/* OTHER: config.json says it in another way than hola_config, or only config.json has it. */
enum hl_field_kind { HL_FIELD_OTHER, HL_FIELD_INT, HL_FIELD_REAL, HL_FIELD_BOOL, HL_FIELD_NAME };

struct hl_config_json; /* a config.json being read or written */
struct hl_field {
    const char *name; /* in config.json */
    enum hl_field_kind kind;
    size_t at;                            /* in hola_config */
    unsigned of;                          /* groups that have the value */
    unsigned file;                        /* groups that have it in config.json */
    int hash;                             /* 100 x block + place in the block; 0: a session does not depend on it */
    double lo, hi;                        /* limits, which a real also keeps as a float */
    const char *(*text)(int value);       /* NAME: what config.json says */
    int64_t standard;                     /* INT: its default; 0: what hl_config_defaults says */
    bool (*used)(const hola_config *c);   /* false: not written, not hashed. NULL: always used */
    double (*null)(const hola_config *c); /* what null or no such field means; NULL: null is refused */
    /* NULL: according to kind */
    void (*read)(struct hl_config_json *j, const struct hl_field *f, hola_config *c);
    void (*write)(struct hl_config_json *j, const struct hl_field *f, const hola_config *c);
};
/* In the order of a written config.json; a field without a name ends it. */
extern const struct hl_field hl_config_fields[];

/* Whether a model has the field and depends on it. */
static inline bool hl_config_uses(const hola_config *c, const struct hl_field *f) {
    return hl_config_has(c, f->of) && (!f->used || f->used(c));
}
/* The value of an INT, BOOL or NAME, the bits of a REAL. */
int64_t hl_field_int(const struct hl_field *f, const hola_config *c);
static inline double hl_field_real(const struct hl_field *f, const hola_config *c) {
    return *(const double *)((const char *)c + f->at);
}
/* The value against its limits; `where` comes before the message. */
hola_status hl_field_check(const struct hl_field *f, const hola_config *c, const char *where);

/* ---- whole configs ---- */

/* The MLP width of fla where config.json gives none: 256 ceil(floor(d ratio 2/3) / 256); 0: out of range. */
int64_t hl_intermediate_size(int64_t hidden_size, double hidden_ratio);
/* All fields that a config.json of this type leaves out. */
void hl_config_defaults(hola_config *c, hola_model_type type);
/* The same model with another mixer: fields that its type did not have get the new one's defaults. */
void hl_config_change_type(hola_config *c, hola_model_type type);
/* hola_config_check with `where` before the message. */
hola_status hl_config_check(const hola_config *c, const char *where);
/* Of all that the numbers of a session depend on besides the weights. Saved sessions hold it: never change it. */
uint64_t hl_config_hash(const hola_config *c);

/* Reads the text of a config.json; path is only for messages. On failure *out is untouched. */
hola_status hl_config_parse(hola_config *out, const char *text, int64_t len, const char *path);
/* Writes one, dtype being that of the weights beside it. Fields of old (NULL, or the text of the config.json
 * the model came from) that are not ours are kept. *out is NUL-terminated: free() it. */
hola_status hl_config_text(const hola_config *cfg, const char *old, hola_dtype dtype, char **out);

#endif
