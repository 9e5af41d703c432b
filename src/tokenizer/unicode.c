/* unicode.c -- the class of a character: a search in the table of ranges. */
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_table.h"

int hl_class_range(uint32_t c, uint32_t *end) {
    int lo = 0, n = (int)(sizeof class_range / sizeof class_range[0]), hi = n;
    while (hi - lo > 1) { /* the last range that begins at or before c */
        int mid = (lo + hi) / 2;
        if (class_range[mid] >> 8 <= c) lo = mid;
        else hi = mid;
    }
    *end = hi < n ? class_range[hi] >> 8 : HL_NO_CHARACTER;
    return (int)(class_range[lo] & 255);
}

bool hl_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

uint32_t hl_categories(const char *name, int64_t len) {
    static const char names[][3] = {"Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu",
                                    "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc", "Pd", "Pe", "Pf",
                                    "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};
    uint32_t found = 0;
    if (len < 1 || len > 2) return 0;
    for (int i = 0; i < 30; i++)
        if (names[i][0] == name[0] && (len == 1 || names[i][1] == name[1])) found |= (uint32_t)1 << i;
    return found;
}
