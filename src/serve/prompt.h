/* prompt.h -- turns chat messages into a request's prompt. */
#ifndef HL_PROMPT_H
#define HL_PROMPT_H
#include "chat/template.h"
#include "serve/engine.h"

/* Sets ids, spans, closes and answer_from, and appends the template's stops. begins: starts a sequence, so BOS comes
 * first; closes: the previous answer is still open. */
hola_status hl_template_prompt(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_serve_request *r);

#endif
