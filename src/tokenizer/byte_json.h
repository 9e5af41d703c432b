/* byte_json.h -- byte-level BPE as a tokenizer.json: written by tokenizer training, and for the tokenizer "byte", so
 * that a model trained on bytes includes its tokenizer like any other. */
#ifndef HL_BYTE_JSON_H
#define HL_BYTE_JSON_H
#include "core/json.h"
#include "core/status.h"

struct hl_byte_bpe {
    const char *bos, *eos;
    int bos_id, eos_id;
    json_t *vocab, *merges; /* takes ownership */
    bool words;             /* the text is first split by GPT-2's pattern */
};
hola_status hl_byte_bpe_write(const char *path, const struct hl_byte_bpe *t);
/* A token as stored in the file: each byte as a character; malloced, NULL: no memory. */
char *hl_byte_bpe_text(const char *bytes, int64_t n);

/* The tokenizer "byte": no merges, ids 0 to 255 the bytes, 256 and 257 are BOS and EOS. */
hola_status hl_byte_json_write(const char *path);

#endif
