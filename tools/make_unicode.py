#!/usr/bin/env python3
"""Writes the tables of characters: tools/make_unicode.py classes > src/tokenizer/unicode_table.h
                                    tools/make_unicode.py canonical > src/tokenizer/canonical_table.h
                                    tools/make_unicode.py compatible > src/tokenizer/compatible_table.h

Needs PyPI's unicodedata2 16.0.0. Hugging Face's tokenizers (0.23) has Unicode 16 in its patterns, but each of the
crates below knows another version; what they do not know is listed here, as the oracle shows it
(tools/check_tokenizer.py unicode compares every character)."""
import sys
import unicodedata2 as unicodedata

assert unicodedata.unidata_version == "16.0.0", "pip install unicodedata2==16.0.0"


def points(text):
    return {c for part in text.split() for a, _, b in [part.partition("-")] for c in range(int(a, 16), int(b or a, 16) + 1)}


SPACES = points("9-d 20 85 a0 1680 2000-200a 2028-2029 202f 205f 3000")
# \w has these beyond L, M, Nd, Nl and Pc: alphabetic symbols, the two join controls
OTHER_WORD = points("24b6-24e9 1f130-1f149 1f150-1f169 1f170-1f189 200c-200d")
# Punctuation: Unicode 8 and all of ASCII's
NOT_PUNCTUATION = points("""61d 9fd a76 c77 c84 1b4e-1b4f 1b7d-1b7f 2e43-2e4f 2e52-2e5d 10d6e 10ead 10f55-10f59
    10f86-10f89 113d4-113d5 113d7-113d8 1144b-1144f 1145a-1145b 1145d 11660-1166c 116b9 1183b 11944-11946 119e2
    11a3f-11a46 11a9a-11a9c 11a9e-11aa2 11b00-11b09 11be1 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff
    12ff1-12ff2 16d6d-16d6f 16e97-16e9a 16fe2 1e5ff 1e95e-1e95f""")
OTHER_PUNCTUATION = points("166d 111c9 24 2b 3c-3e 5e 60 7c 7e")
# Normalisation and StripAccents: Unicode 9. Newer marks, and characters with newer decompositions
NOT_MARK = points("""7fd 897-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace 1cf7
    1df6-1dfa a82c a8ff 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 110c2
    11145-11146 111c9 111ce-111cf 11241 1133b 113b8-113c0 113c2 113c5 113c7-113ca 113cc-113d0 113d2 113e1-113e2 1145e
    1182c-1183a 11930-11935 11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 119e4 11a01-11a0a
    11a33-11a39 11a3b-11a3e 11a47 11a51-11a5b 11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 11d8a-11d8e
    11d90-11d91 11d93-11d97 11ef3-11ef6 11f00-11f01 11f03 11f34-11f3a 11f3e-11f42 11f5a 13440 13447-13455 1611e-1612f
    16f4f 16f7f-16f87 16fe4 16ff0-16ff1 1cf00-1cf2d 1cf30-1cf46 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef
    1e5ee-1e5ef""")
OTHER_MARK = points("1cf2-1cf3")
NOT_DECOMPOSED = points("""32ff a7f2-a7f4 ab69 105c9 105e4 10781-10785 10787-107b0 107b2-107ba 11383 11385 1138e 11391
    113c5 113c7-113c8 11938 16121-16128 16d68-16d6a 1ccd6-1ccf9 1e030-1e06d 1f16c 1fbf0-1fbf9""")
# Lowercase: Rust's own, Unicode 17; Python may know less: (first, last, what is added)
LOWER = [(0x1c89, 0x1c89, 1), (0xa7cb, 0xa7cb, 0x264 - 0xa7cb), (0xa7cc, 0xa7cc, 1), (0xa7ce, 0xa7ce, 1),
         (0xa7d2, 0xa7d2, 1), (0xa7d4, 0xa7d4, 1), (0xa7da, 0xa7da, 1), (0xa7dc, 0xa7dc, 0x19b - 0xa7dc),
         (0x10d50, 0x10d65, 0x20), (0x16ea0, 0x16eb8, 0x1b)]

CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
WORD, PUNCTUATION, MARK = 32, 64, 128
CHARACTERS = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff]


def char_class(c):
    category = unicodedata.category(chr(c))
    k = CATEGORIES.index(category)
    if category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in OTHER_WORD:
        k |= WORD
    if (category[0] == "P" and c not in NOT_PUNCTUATION) or c in OTHER_PUNCTUATION:
        k |= PUNCTUATION
    if (category[0] == "M" and c not in NOT_MARK) or c in OTHER_MARK:
        k |= MARK
    return k


def rows(values, form="0x%x"):
    line = "   "
    for v in values:
        word = " " + form % v + ","
        if len(line) + len(word) > 119:
            print(line)
            line = "   "
        line += word
    print(line)


def array(kind, name, comment, values, form="0x%x"):
    print(f"\n/* {comment} */\nstatic const {kind} {name}[] = {{")
    rows(values, form)
    print("};")


def ranges(value, bits):
    out, last = [], -1
    for c in range(0x110000):
        k = value(c)
        if k != last:
            out.append(c << bits | k)
            last = k
    return out


def head(name, used_by):
    print(f"/* {name} -- written by tools/make_unicode.py from Unicode {unicodedata.unidata_version}; included by "
          f"{used_by} alone. */\n/* clang-format off */")


def lowercase():
    """Runs of (first, how many, step between them, what is added)."""
    newer = {c: c + by for a, b, by in LOWER for c in range(a, b + 1)}
    lower = [(c, newer.get(c) or ord(chr(c).lower())) for c in CHARACTERS if len(chr(c).lower()) == 1]
    out = []
    for c, low in lower:
        if low == c:
            continue
        last = out[-1] if out else None
        if last and low - c == last[3] and last[1] == 1 and 0 < c - last[0] <= 2:
            last[2], last[1] = c - last[0], 2
        elif last and low - c == last[3] and c == last[0] + last[1] * last[2]:
            last[1] += 1
        else:
            out.append([c, 1, 1, low - c])
    return [x & 0xffffffff for r in out for x in r]


def decompositions(compatible):
    """A stream of records. The first word: character, how many follow << 21, kind << 26. Kinds: 0 canonical, 1
    canonical that is never composed again, 2 compatible, 3 a run of compatible ones: its length, and the first one's
    decomposition, to which each next adds one."""
    out, run = [], None
    for c in CHARACTERS:
        parts = unicodedata.decomposition(chr(c)).split()
        if not parts or c in NOT_DECOMPOSED or 0xac00 <= c <= 0xd7a3 or parts[0].startswith("<") != compatible:
            continue
        to = [int(x, 16) for x in parts if x[0] != "<"]
        if not compatible:
            excluded = unicodedata.normalize("NFC", chr(c)) != chr(c)
            out += [c | len(to) << 21 | excluded << 26] + to
        elif len(to) == 1 and run is not None and c == (out[run] & 0x1fffff) + out[run + 1] and to[0] == out[run + 2] + out[run + 1]:
            out[run + 1] += 1
        elif len(to) == 1:
            run = len(out)
            out += [c | 2 << 21 | 3 << 26, 1, to[0]]
        else:
            run = None
            out += [c | len(to) << 21 | 2 << 26] + to
    return out


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "classes":
        head("unicode_table.h", "unicode.c")
        array("uint32_t", "class_range", "first character of a range << 8 | class of all its characters", ranges(char_class, 8))
    elif what == "canonical":
        head("canonical_table.h", "normalise_table.c")
        array("uint32_t", "combining_range", "first character of a range << 8 | combining class of all its characters",
              ranges(lambda c: 0 if c in NOT_MARK else unicodedata.combining(chr(c)), 8))
        array("uint32_t", "lower_run", "small letters: first of a run, how many, step, what is added", lowercase())
        array("uint32_t", "canonical", "canonical decompositions; see normalise_table.c", decompositions(False))
    elif what == "compatible":
        head("compatible_table.h", "normalise_table.c")
        array("uint32_t", "compatible", "compatibility decompositions; see normalise_table.c", decompositions(True))
    else:
        sys.exit(__doc__)
    print("/* clang-format on */")


main()
