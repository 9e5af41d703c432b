/* unicode.h -- the classes of characters that patterns and normalizers speak of. The tables are written by
 * tools/make_unicode.py, which also says which version of Unicode each of them follows. */
#ifndef HL_UNICODE_H
#define HL_UNICODE_H
#include <stdbool.h>
#include <stdint.h>

enum hl_category { /* general categories, in the order of their names */
                   HL_CN,
                   HL_CC,
                   HL_CF,
                   HL_CO,
                   HL_CS,
                   HL_LL,
                   HL_LM,
                   HL_LO,
                   HL_LT,
                   HL_LU,
                   HL_MC,
                   HL_ME,
                   HL_MN,
                   HL_ND,
                   HL_NL,
                   HL_NO,
                   HL_PC,
                   HL_PD,
                   HL_PE,
                   HL_PF,
                   HL_PI,
                   HL_PO,
                   HL_PS,
                   HL_SC,
                   HL_SK,
                   HL_SM,
                   HL_SO,
                   HL_ZL,
                   HL_ZP,
                   HL_ZS
};
enum {
    HL_CATEGORY = 31,
    HL_WORD = 32,              /* \w of added tokens: letters, marks, decimals, connecting punctuation, join controls */
    HL_PUNCTUATION = 64,       /* what the pre-tokenizer Punctuation cuts out */
    HL_MARK = 128,             /* what StripAccents takes away */
    HL_NO_CHARACTER = 0x110000 /* no Unicode character: one more than the last */
};

/* The class of a character: its category and the flags above. *end: where the range of this class ends. */
int hl_class_range(uint32_t c, uint32_t *end);
static inline int hl_class(uint32_t c) {
    uint32_t end;
    return hl_class_range(c, &end);
}
bool hl_is_space(uint32_t c); /* White_Space */
static inline bool hl_is_word(uint32_t c) { return (hl_class(c) & HL_WORD) != 0; }
static inline bool hl_is_letter(uint32_t c) {
    int category = hl_class(c) & HL_CATEGORY;
    return category >= HL_LL && category <= HL_LU;
}
/* The categories that a name such as "L" or "Lu" stands for, one bit each; 0: not a name. */
uint32_t hl_categories(const char *name, int64_t len);

#endif
