/* template.h -- chat templates: what is put around the messages of a conversation, and which tokens that makes.
 *
 * Special tokens come from the template alone: in a message, their names are text like any other. Every message is
 * encoded by itself, so a conversation has the same tokens whether it comes in turns or at once. */
#ifndef HL_TEMPLATE_H
#define HL_TEMPLATE_H
#include "core/text.h"

enum hl_role { HL_ROLE_TEXT, HL_ROLE_SYSTEM, HL_ROLE_USER, HL_ROLE_ASSISTANT, HL_ROLES };
extern const char *const hl_role_names[]; /* in this order */
/* A role by its name, "developer" as "system"; HL_ROLE_TEXT: there is none of that name. */
enum hl_role hl_role_named(const char *name);

struct hl_template;
/* name: one of the built-in ones, or a JSON file; NULL: by the files in model_dir (HL_TEMPLATE_FILE, else
 * tokenizer_config.json), else "plain", and then *guessed. The tokenizer must outlive it. */
#define HL_TEMPLATE_FILE "hola_chat.json"
hola_status hl_template_open(struct hl_template **out, const char *name, const char *model_dir,
                             const hola_tokenizer *tokenizer, bool *guessed);
void hl_template_free(struct hl_template *t);
const char *hl_template_name(const struct hl_template *t);
hola_status hl_template_write(const struct hl_template *t, const char *path); /* as such a file */

struct hl_chat_message {
    enum hl_role role;
    const char *content;
    int64_t len;
    bool quoted; /* hl_template_lesson: an answer that is not to be trained */
};
/* As text, the answer opened, without BOS; *out is yours. */
hola_status hl_template_text(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, char **out,
                             int64_t *len);

/* As tokens, the answer opened. begins: it begins a sequence, so BOS comes first; closes: the answer before it is
 * open. */
struct hl_chat_tokens {
    struct hl_ids ids;
    int64_t closes;      /* so many tokens close the answer before */
    int64_t answer_from; /* the token that the answer's message begins with */
    struct hl_chat_span {
        enum hl_role role;
        int64_t from, to;
    } * span; /* of the messages before it */
    int64_t spans;
};
hola_status hl_template_tokens(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_chat_tokens *out);
void hl_chat_tokens_free(struct hl_chat_tokens *x);

/* What ends an answer: a token, or a text where *id is -1. i < hl_template_stops(t). */
int hl_template_stops(const struct hl_template *t);
const char *hl_template_stop(const struct hl_template *t, int i, int32_t *id);

/* A whole conversation to learn from, up to its last answer. trained[i] is 1 where the assistant wrote token i: the
 * text of an answer and what ends it. The tokens are those of hl_template_tokens for every answer, turn by turn. BOS
 * comes first where bos is set. */
struct hl_lesson {
    struct hl_ids ids;
    uint8_t *trained; /* [ids.n] */
    int64_t answers;  /* that are trained: not those without text */
};
hola_status hl_template_lesson(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool bos,
                               struct hl_lesson *out);
/* The same for a text and its continuation without a template: EOS ends it, if the tokenizer has one. */
hola_status hl_lesson_plain(const hola_tokenizer *t, const struct hl_chat_message *prompt,
                            const struct hl_chat_message *answer, bool bos, struct hl_lesson *out);
void hl_lesson_free(struct hl_lesson *x);
/* Whether an answer's end can be told: HOLA_EINVAL where neither a special token nor a stop is there to learn. */
hola_status hl_template_teaches(const struct hl_template *t);

/* The content in the text of a message's tokens. */
void hl_template_strip(const struct hl_template *t, enum hl_role role, const char **text, int64_t *len);

#endif
