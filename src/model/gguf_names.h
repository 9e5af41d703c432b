/* gguf_names.h -- the tensors of a transformer as GGUF files of the architecture "llama" have them.
 *
 * Rotary positions turn the channels i and i + D/2 of a head here, and 2i and 2i + 1 there. So the rows of q and k (and
 * of their biases) are in another order within each head: ours i + j D/2 is theirs 2i + j, for j = 0, 1. */
#ifndef HL_GGUF_NAMES_H
#define HL_GGUF_NAMES_H
#include "hola.h"

enum { HL_GGUF_NAME = 96 }; /* room for a name of either kind */

/* Where llama has our row i, and the other way round; D rows a head. */
static inline int64_t hl_llama_row(int64_t i, int64_t D) {
    const int64_t r = i % D;
    return i - r + r % (D / 2) * 2 + r / (D / 2);
}
static inline int64_t hl_our_row(int64_t i, int64_t D) {
    const int64_t r = i % D;
    return i - r + r / 2 + r % 2 * (D / 2);
}

/* llama's name of our tensor and back; false: it has none. *heads: > 0 where the order of the rows differs. */
bool hl_llama_name(const hola_config *c, const char *ours, char llama[HL_GGUF_NAME], int64_t *heads);
bool hl_our_name(const hola_config *c, const char *llama, char ours[HL_GGUF_NAME], int64_t *heads);

#endif
