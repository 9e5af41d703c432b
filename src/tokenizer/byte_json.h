/* byte_json.h -- byte-level BPE as a tokenizer.json: what training a tokenizer writes, and the tokenizer "byte",
 * so that a model trained on bytes carries its tokenizer as any other does. */
#ifndef HL_BYTE_JSON_H
#define HL_BYTE_JSON_H
#include "core/json.h"
#include "core/status.h"

struct hl_byte_bpe {
    const char *bos, *eos;
    int bos_id, eos_id;
    json_t *vocab, *merges; /* taken over */
    bool words;             /* the text is cut by GPT-2's pattern first */
};
hola_status hl_byte_bpe_write(const char *path, const struct hl_byte_bpe *t);
/* A token as the file has it: each byte as a character; malloced, NULL: no memory. */
char *hl_byte_bpe_text(const char *bytes, int64_t n);

/* The tokenizer "byte": no merges, ids 0 to 255 the bytes, 256 and 257 begin and end. */
hola_status hl_byte_json_write(const char *path);

#endif
