/* gguf_names.h -- tensor names and row order of the GGUF architecture "llama".
 *
 * Rotary embeddings rotate channels i and i + D/2 of a head here, and 2i and 2i + 1 there. So the rows of q and k (and
 * of their biases) are permuted within each head: our row i + j D/2 is llama's 2i + j, for j = 0, 1. */
#ifndef HL_GGUF_NAMES_H
#define HL_GGUF_NAMES_H
#include "hola.h"

enum { HL_GGUF_NAME = 96 }; /* buffer size for either kind of name */

/* llama's index of our row i, and the inverse; D rows per head. */
static inline int64_t hl_llama_row(int64_t i, int64_t D) {
    const int64_t r = i % D;
    return i - r + r % (D / 2) * 2 + r / (D / 2);
}
static inline int64_t hl_our_row(int64_t i, int64_t D) {
    const int64_t r = i % D;
    return i - r + r / 2 + r % 2 * (D / 2);
}

/* llama's name of our tensor, and the inverse; false: none. *heads: > 0 if the row order differs. */
bool hl_llama_name(const hola_config *c, const char *ours, char llama[HL_GGUF_NAME], int64_t *heads);
bool hl_our_name(const hola_config *c, const char *llama, char ours[HL_GGUF_NAME], int64_t *heads);

#endif
