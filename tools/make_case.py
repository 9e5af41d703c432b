#!/usr/bin/env python3
"""Writes src/eval/case_table.h: python3 tools/make_case.py > src/eval/case_table.h

The case of characters as Python's str.capitalize() and re.IGNORECASE see it."""
import _sre
import unicodedata
from re import _casefix


def ranges(pairs):
    """(c, mapped) in order -> (first, last, step, difference), steps of 1 or 2"""
    out = []
    for c, m in pairs:
        if out:
            first, last, step, diff = out[-1]
            if m - c == diff and c - last in (1, 2) and (first == last or c - last == step):
                out[-1] = (first, c, c - last, diff)
                continue
        out.append((c, c, 1, m - c))
    return out


def table(name, pairs):
    print(f"static const struct case_range {name}[] = {{")
    row = ["{0x%x, 0x%x, %d, %d}" % r for r in ranges(pairs)]
    for i in range(0, len(row), 5):
        print("    " + ", ".join(row[i:i + 5]) + ",")
    print("};")


every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
print(f"/* case_table.h -- written by tools/make_case.py from Unicode {unicodedata.unidata_version}; included by "
      "pystr.c alone. */")
print("/* clang-format off */")
table("lower_case", [(c, _sre.unicode_tolower(c)) for c in every if _sre.unicode_tolower(c) != c])
table("title_case", [(c, ord(chr(c).title())) for c in every if len(chr(c).title()) == 1 and chr(c).title() != chr(c)])
print("/* title case of more than one character */\nstatic const struct case_text long_title[] = {")
for c in every:
    if len(chr(c).title()) > 1:
        print("    {0x%x, \"%s\"}," % (c, "".join("\\x%02x\" \"" % b for b in chr(c).title().encode())))
print("};\n/* what re.IGNORECASE also takes for a lower-case character */\nstatic const uint32_t extra_case[][2] = {")
row = ["{0x%x, 0x%x}" % (c, o) for c, others in sorted(_casefix._EXTRA_CASES.items()) for o in others]
for i in range(0, len(row), 7):
    print("    " + ", ".join(row[i:i + 7]) + ",")
print("};\n/* clang-format on */")
