/* bpe_train_words.h -- a bag of words: how often each occurs. */
#ifndef HL_BPE_TRAIN_WORDS_H
#define HL_BPE_TRAIN_WORDS_H
#include "core/status.h"
#include <stdbool.h>

struct hl_words_bag {
    struct hl_word {
        int64_t at, count; /* where its bytes begin in store */
        uint64_t hash;
        int32_t len;
    } * word;
    int64_t n, room;
    int32_t *slot; /* open addressing: a word's number, -1: empty */
    uint64_t mask;
    char *store;
    int64_t used, store_room;
};
hola_status hl_bag_add(struct hl_words_bag *b, const char *word, int64_t len, int64_t count);
void hl_bag_free(struct hl_words_bag *b);

#endif
