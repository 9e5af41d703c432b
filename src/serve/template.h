/* template.h -- chat templates: what is put around the messages of a conversation, and which tokens that makes.
 *
 * Special tokens come from the template alone: in a message, their names are text like any other. Every message is
 * encoded by itself, so a conversation has the same tokens whether it comes in turns or at once. */
#ifndef HL_TEMPLATE_H
#define HL_TEMPLATE_H
#include "serve/conversation.h"
#include "serve/engine.h"

struct hl_template;
/* name: one of the built-in ones, or a JSON file; NULL: by the tokenizer_config.json in model_dir, else "plain", and
 * then *guessed. The tokenizer must outlive it. */
hola_status hl_template_open(struct hl_template **out, const char *name, const char *model_dir,
                             const hola_tokenizer *tokenizer, bool *guessed);
void hl_template_free(struct hl_template *t);
const char *hl_template_name(const struct hl_template *t);

struct hl_chat_message {
    enum hl_role role;
    const char *content;
    int64_t len;
};
/* As text, the answer opened, without BOS; *out is yours. */
hola_status hl_template_text(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, char **out,
                             int64_t *len);
/* As a request's prompt: its ids, spans, closes, answer_from, and the template's stops behind those that are there.
 * begins: it begins a sequence, so BOS comes first; closes: the answer before it is open. */
hola_status hl_template_prompt(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_serve_request *r);
/* The content in the text of a message's tokens. */
void hl_template_strip(const struct hl_template *t, enum hl_role role, const char **text, int64_t *len);

#endif
