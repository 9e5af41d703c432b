/* tokenizer_json.h -- shared by the files that read tokenizer.json. */
#ifndef HL_TOKENIZER_JSON_H
#define HL_TOKENIZER_JSON_H
#include "core/json.h"
#include "tokenizer/tokenizer.h"

enum { HL_JSON_MAX_ID = 1 << 22, HL_JSON_MAX_TOKEN = 1 << 16 };

/* "PATH: FIELD: WHAT"; HOLA_ENOTSUP for unsupported features, HOLA_EFORMAT for malformed files. */
hola_status hl_json_refuse(const char *path, const char *field, const char *what);
hola_status hl_json_bad(const char *path, const char *field, const char *what);
/* The "type" of an object, "" if it has none; and an error for an unsupported one. */
const char *hl_json_type(const json_t *object);
hola_status hl_json_refuse_type(const char *path, const char *field, const json_t *object);

/* A boolean of an object, or its default if absent or null. */
static inline bool hl_json_flag(const json_t *object, const char *name, bool absent) {
    const json_t *v = json_object_get(object, name);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}
static inline bool hl_json_is(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}
/* Of a Metaspace: always, first or never; old files have add_prefix_space instead. */
static inline const char *hl_json_prepend_scheme(const json_t *p) {
    const char *scheme = json_string_value(json_object_get(p, "prepend_scheme"));
    return scheme ? scheme : hl_json_flag(p, "add_prefix_space", true) ? "always" : "never";
}

/* The normalizer and the pre_tokenizer. *llama: the normalizer is that of Llama 2, which needs no steps. */
hola_status hl_json_steps(hola_tokenizer *t, const json_t *normalizer, const json_t *pre_tokenizer, bool *llama,
                          const char *path);

/* The model: vocabulary and merges into t->bpe, whose byte_level, space_is_meta and words are set. `more` is one
 * more than the largest id of added tokens. */
hola_status hl_json_model(hola_tokenizer *t, const json_t *model, int64_t more, bool bytes_decoded, const char *path);

/* GPT-2's way to write bytes as characters. The byte that a character stands for, -1: none; and back. */
int hl_byte_of_char(uint32_t c);
uint32_t hl_char_of_byte(unsigned char byte);

#endif
