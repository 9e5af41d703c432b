/* chat.h -- JSON lines with conversations, as training tokens and a mask of the trained ones.
 *
 * A line is {"messages": [{"role": .., "content": ..}, ..]} in OpenAI's format (content: a string or a list of text
 * parts; "weight": 0 for an answer that is not trained on), or {"prompt": .., "completion": ..}: a user message and its
 * answer. Other fields are ignored. */
#ifndef HL_CHAT_H
#define HL_CHAT_H
#include "chat/template.h"
#include "data/source.h"

struct hl_chat {
    const hola_tokenizer *tokenizer;
    const struct hl_template *look; /* NULL: prompt and completion concatenated without a template */
    bool bos, all;                  /* bos: BOS first; all: train on every token, not only the answers */
};
/* HOLA_EFORMAT: the line is malformed. *bytes: size of the texts. r's text is unchanged. Thread-safe. */
hola_status hl_chat_decode(const struct hl_chat *c, const struct hl_record *r, struct hl_lesson *out, int64_t *bytes);

#endif
