/* template_internal.h -- the parsed template, made by template.c and read by encode.c. */
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
    struct hl_template_part bare[HL_ROLES]; /* without special tokens: the decoded text */
    const char *stop[HL_TEMPLATE_STOPS];
    int stops;
    bool builtin;
    bool system_in_user; /* the system text goes into the next user message */
    bool nothing_opens;  /* the answer follows the question with nothing between them */
    const hola_tokenizer *tokenizer;
    struct hl_added specials;     /* of the tokenizer */
    hola_tokenizer *first, *more; /* tokenizers without special tokens: for the start of a text, and for the rest */
    struct hl_added raw, normalised;
    json_t *file; /* owns the strings of the parts */
    char *store[2 * HL_ROLES];
};
/* The next special token or placeholder in a template's text: *id is -1 if the tokenizer lacks it. */
bool hl_template_special(const struct hl_template *t, const char *text, int64_t len, int64_t *begin, int64_t *end,
                         int32_t *id);

#endif
