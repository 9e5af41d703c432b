/* chat.h -- lines of JSON that hold conversations, as lessons: tokens, and which of them are trained.
 *
 * A line is {"messages": [{"role": .., "content": ..}, ..]} as OpenAI's files have it (content: a text or a list of
 * parts of type text; "weight": 0 for an answer that is not to be trained), or {"prompt": .., "completion": ..}: a user's
 * message and its answer. Other fields are ignored. */
#ifndef HL_CHAT_H
#define HL_CHAT_H
#include "chat/template.h"
#include "data/source.h"

struct hl_chat {
    const hola_tokenizer *tokenizer;
    const struct hl_template *look; /* NULL: prompt and completion as they are, one behind the other */
    bool bos, all;                  /* BOS in front; every token is trained, not the answers alone */
};
/* HOLA_EFORMAT: the line is malformed. *bytes: of the texts. r's text is left alone. Any thread. */
hola_status hl_chat_decode(const struct hl_chat *c, const struct hl_record *r, struct hl_lesson *out, int64_t *bytes);

#endif
