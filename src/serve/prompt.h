/* prompt.h -- the messages of a chat as the prompt of a request. */
#ifndef HL_PROMPT_H
#define HL_PROMPT_H
#include "chat/template.h"
#include "serve/engine.h"

/* Its ids, spans, closes, answer_from, and the template's stops behind those that are there. begins: it begins a
 * sequence, so BOS comes first; closes: the answer before it is open. */
hola_status hl_template_prompt(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_serve_request *r);

#endif
