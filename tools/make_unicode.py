#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_table.h: python3 tools/make_unicode.py > src/tokenizer/unicode_table.h

From PyPI's unicodedata2 where it is installed (Unicode 16, as Hugging Face's tokenizers), else from Python's own."""
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

LETTER, NUMBER, SPACE, WORD = 1, 2, 4, 8
SPACES = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Alphabetic without being letters or marks, and the two join controls: what \\w has beyond L, M, N and Pc
OTHER_WORD = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A),
              0x200C, 0x200D}


def char_class(c):
    category = unicodedata.category(chr(c))
    k = LETTER if category[0] == "L" else NUMBER if category[0] == "N" else 0
    if c in SPACES:
        k |= SPACE
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in OTHER_WORD:
        k |= WORD
    return k


def rows(values, form, per_line):
    for i in range(0, len(values), per_line):
        print("    " + ", ".join(form % v for v in values[i:i + per_line]) + ",")


ranges, last = [], -1
for c in range(0x110000):
    k = char_class(c)
    if k != last:
        ranges.append(c << 4 | k)
        last = k

print(f"/* unicode_table.h -- written by tools/make_unicode.py from Unicode {unicodedata.unidata_version}; "
      "included by unicode.c alone. */")
print("/* clang-format off */")
print("const uint8_t hl_class_ascii[128] = {")
rows([char_class(c) for c in range(128)], "%d", 32)
print("};")
print("\n/* first character of a range << 4 | class of all its characters */")
print("static const uint32_t hl_class_range[] = {")
rows(ranges, "0x%x", 11)
print("};")
print("/* clang-format on */")
