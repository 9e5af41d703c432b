/* bpe_train_words.c -- see bpe_train_words.h. */
#include "tokenizer/bpe_train_words.h"
#include "tokenizer/bpe.h"
#include <stdlib.h>

static hola_status no_memory(const struct hl_words_bag *b) {
    return hl_fail(HOLA_ENOMEM, "tokenizer: %lld different words", (long long)b->n);
}

static hola_status rehash(struct hl_words_bag *b) {
    uint64_t size = b->slot ? 2 * (b->mask + 1) : 1024;
    int32_t *slot = malloc(size * sizeof *slot);
    if (!slot) return no_memory(b);
    memset(slot, 0xff, size * sizeof *slot);
    for (int64_t i = 0; i < b->n; i++) {
        uint64_t k = b->word[i].hash & (size - 1);
        while (slot[k] >= 0) k = (k + 1) & (size - 1);
        slot[k] = (int32_t)i;
    }
    free(b->slot);
    b->slot = slot, b->mask = size - 1;
    return HOLA_OK;
}

static hola_status append(struct hl_words_bag *b, const char *word, int64_t len, uint64_t hash) {
    if (b->n == b->room) {
        int64_t room = b->room ? 2 * b->room : 1024;
        struct hl_word *more = room < INT32_MAX ? realloc(b->word, (size_t)room * sizeof *more) : NULL;
        if (!more) return no_memory(b);
        b->word = more, b->room = room;
    }
    if (b->store_room - b->used < len) {
        int64_t room = 2 * b->store_room + len + 4096;
        char *more = realloc(b->store, (size_t)room);
        if (!more) return no_memory(b);
        b->store = more, b->store_room = room;
    }
    memcpy(b->store + b->used, word, (size_t)len);
    b->word[b->n++] = (struct hl_word){b->used, 0, hash, (int32_t)len};
    b->used += len;
    return HOLA_OK;
}

hola_status hl_bag_add(struct hl_words_bag *b, const char *word, int64_t len, int64_t count) {
    uint64_t hash = hl_mix(hl_text_hash(word, len)), k;
    if (!b->slot || 2 * (uint64_t)b->n > b->mask) {
        hola_status s = rehash(b);
        if (s != HOLA_OK) return s;
    }
    for (k = hash & b->mask; b->slot[k] >= 0; k = (k + 1) & b->mask) {
        struct hl_word *w = &b->word[b->slot[k]];
        if (w->hash == hash && w->len == len && memcmp(b->store + w->at, word, (size_t)len) == 0)
            return w->count += count, HOLA_OK;
    }
    hola_status s = append(b, word, len, hash);
    if (s != HOLA_OK) return s;
    b->slot[k] = (int32_t)(b->n - 1);
    b->word[b->n - 1].count = count;
    return HOLA_OK;
}

void hl_bag_free(struct hl_words_bag *b) {
    free(b->word), free(b->slot), free(b->store);
    *b = (struct hl_words_bag){0};
}
