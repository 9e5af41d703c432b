/* bpe_train.h -- training a byte-level BPE: words by GPT-2's pattern, then repeated merging of the most frequent
 * adjacent pair. The result equals that of Hugging Face's BpeTrainer on the same words. */
#ifndef HL_BPE_TRAIN_H
#define HL_BPE_TRAIN_H
#include "core/pool.h"

enum { HL_TRAIN_LEAST = 258 }; /* <s>, </s>, 256 bytes */

struct hl_bpe_trainer;
hola_status hl_bpe_trainer_new(struct hl_bpe_trainer **out, int threads);
void hl_bpe_trainer_free(struct hl_bpe_trainer *t);

/* Counts the words of n independent texts. */
struct hl_train_text {
    const char *text;
    int64_t len;
};
hola_status hl_bpe_trainer_count(struct hl_bpe_trainer *t, const struct hl_train_text *texts, int64_t n);

/* Merges until there are `size` tokens or no pair occurs `least` times. progress may be NULL. */
hola_status hl_bpe_trainer_run(struct hl_bpe_trainer *t, int64_t size, int64_t least,
                               void (*progress)(void *ctx, int64_t tokens), void *ctx);
int64_t hl_bpe_trainer_size(const struct hl_bpe_trainer *t);  /* tokens so far */
int64_t hl_bpe_trainer_words(const struct hl_bpe_trainer *t); /* different words, after the run */

/* Writes tokenizer.json: ids 0 <s>, 1 </s>, then the bytes, then one token per merge. */
hola_status hl_bpe_trainer_write(const struct hl_bpe_trainer *t, const char *path);

#endif
