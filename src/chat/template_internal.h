/* template_internal.h -- a template as template.c makes it and encode.c reads it. */
#ifndef HL_TEMPLATE_INTERNAL_H
#define HL_TEMPLATE_INTERNAL_H
#include "chat/template.h"
#include "core/json.h"
#include "tokenizer/tokenizer.h"

enum { HL_TEMPLATE_STOPS = 8 };
struct hl_template_part {
    const char *before, *behind;
};
struct hl_template {
    char *name;
    struct hl_template_part part[HL_ROLES];
    struct hl_template_part bare[HL_ROLES]; /* without special tokens: as they decode */
    const char *stop[HL_TEMPLATE_STOPS];
    int stops;
    bool builtin;
    bool system_in_user; /* the system's text stands in the next user's message */
    bool nothing_opens;  /* an answer begins right behind the question */
    const hola_tokenizer *tokenizer;
    struct hl_added specials;     /* of the tokenizer */
    hola_tokenizer *first, *more; /* views that know none of them: for a text's beginning, for what follows */
    struct hl_added raw, normalised;
    json_t *file; /* whose strings the parts are */
    char *store[2 * HL_ROLES];
};
/* The next special token or place for one in a template's text: *id is -1 where the tokenizer has none. */
bool hl_template_special(const struct hl_template *t, const char *text, int64_t len, int64_t *begin, int64_t *end,
                         int32_t *id);

#endif
