/* unicode.c -- the class of a character: a search in the table of ranges. */
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_table.h"

int hl_class_beyond_ascii(uint32_t c) {
    int lo = 0, hi = (int)(sizeof hl_class_range / sizeof hl_class_range[0]);
    while (hi - lo > 1) { /* the last range that begins at or before c */
        int mid = (lo + hi) / 2;
        if (hl_class_range[mid] >> 4 <= c) lo = mid;
        else hi = mid;
    }
    return (int)(hl_class_range[lo] & 15);
}
