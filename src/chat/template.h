/* template.h -- chat templates: the text around the messages of a conversation, and the tokens of both.
 *
 * Special tokens come only from the template; in a message, their names are ordinary text. Each message is encoded
 * separately, so a conversation has the same tokens whether it arrives turn by turn or all at once. */
#ifndef HL_TEMPLATE_H
#define HL_TEMPLATE_H
#include "core/text.h"

enum hl_role { HL_ROLE_TEXT, HL_ROLE_SYSTEM, HL_ROLE_USER, HL_ROLE_ASSISTANT, HL_ROLES };
extern const char *const hl_role_names[]; /* in this order */
/* The role with this name ("developer" means "system"); HL_ROLE_TEXT: unknown. */
enum hl_role hl_role_named(const char *name);

struct hl_template;
/* name: a built-in template or a JSON file; NULL: chosen by the files in model_dir (HL_TEMPLATE_FILE, else
 * tokenizer_config.json), else "plain" and *guessed is set. The tokenizer must outlive the template. */
#define HL_TEMPLATE_FILE "hola_chat.json"
hola_status hl_template_open(struct hl_template **out, const char *name, const char *model_dir,
                             const hola_tokenizer *tokenizer, bool *guessed);
void hl_template_free(struct hl_template *t);
const char *hl_template_name(const struct hl_template *t);
hola_status hl_template_write(const struct hl_template *t, const char *path); /* writes it as such a file */

struct hl_chat_message {
    enum hl_role role;
    const char *content;
    int64_t len;
    bool quoted; /* hl_template_lesson: an answer that is not trained on */
};
/* As text, ending with the opening of the answer, without BOS; the caller owns *out. */
hola_status hl_template_text(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, char **out,
                             int64_t *len);

/* As tokens, ending with the opening of the answer. begins: starts a sequence, so BOS comes first; closes: the previous
 * answer is still open. */
struct hl_chat_tokens {
    struct hl_ids ids;
    int64_t closes;      /* this many leading tokens close the previous answer */
    int64_t answer_from; /* first token of the answer's message */
    struct hl_chat_span {
        enum hl_role role;
        int64_t from, to;
    } * span; /* of the earlier messages */
    int64_t spans;
};
hola_status hl_template_tokens(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool begins,
                               bool closes, struct hl_chat_tokens *out);
void hl_chat_tokens_free(struct hl_chat_tokens *x);

/* The i-th stop condition, i < hl_template_stops(t): a token, or a text if *id is -1. */
int hl_template_stops(const struct hl_template *t);
const char *hl_template_stop(const struct hl_template *t, int i, int32_t *id);

/* A whole conversation for training, up to its last answer. trained[i] is 1 for the tokens that the assistant wrote: an
 * answer's text and its end marker. The tokens match hl_template_tokens for every answer, turn by turn. BOS comes first
 * if bos is set. */
struct hl_lesson {
    struct hl_ids ids;
    uint8_t *trained; /* [ids.n] */
    int64_t answers;  /* answers that are trained on: those with text */
};
hola_status hl_template_lesson(const struct hl_template *t, const struct hl_chat_message *m, int64_t n, bool bos,
                               struct hl_lesson *out);
/* The same for a prompt and its completion without a template. Ends with EOS if the tokenizer has one. */
hola_status hl_lesson_plain(const hola_tokenizer *t, const struct hl_chat_message *prompt,
                            const struct hl_chat_message *answer, bool bos, struct hl_lesson *out);
void hl_lesson_free(struct hl_lesson *x);
/* Whether the model can learn where an answer ends: HOLA_EINVAL if the template has neither a special token nor a
 * stop. */
hola_status hl_template_teaches(const struct hl_template *t);

/* Extracts the content from the decoded tokens of a message. */
void hl_template_strip(const struct hl_template *t, enum hl_role role, const char **text, int64_t *len);

#endif
