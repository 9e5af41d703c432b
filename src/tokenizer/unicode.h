/* unicode.h -- the classes of characters that word patterns speak of. The table is written by
 * tools/make_unicode.py. */
#ifndef HL_UNICODE_H
#define HL_UNICODE_H
#include <stdbool.h>
#include <stdint.h>

enum {
    HL_LETTER = 1, /* general category L */
    HL_NUMBER = 2, /* general category N */
    HL_SPACE = 4,  /* White_Space, the \s of patterns */
    HL_WORD = 8    /* letters, marks, numbers, connecting punctuation: \w */
};

int hl_class_beyond_ascii(uint32_t c);
extern const uint8_t hl_class_ascii[128];
static inline int hl_class(uint32_t c) { return c < 128 ? hl_class_ascii[c] : hl_class_beyond_ascii(c); }
static inline bool hl_is_space(uint32_t c) { return (hl_class(c) & HL_SPACE) != 0; }
static inline bool hl_is_word(uint32_t c) { return (hl_class(c) & HL_WORD) != 0; }

#endif
