#!/usr/bin/env python3
"""Writes tests/data/tokenizers: small tokenizer.json files in the shapes that language models carry, and the ids that
Hugging Face's tokenizers (PyPI) gives to the texts below.

    tools/make_tokenizers.py tests/data/tokenizers

The vocabularies are trained here, on text that is made up here; only the shapes (normalizer, pre_tokenizer, added
tokens, post_processor, decoder, settings of the model) are those of the models they are named after."""
import json
import os
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LETTERS_UPPER, LETTERS_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
          r"\s+(?!\S)|\s")


def cased(contractions, numbers):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_UPPER}*{LETTERS_LOWER}+{contractions}|"
            rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_UPPER}+{LETTERS_LOWER}*{contractions}|{numbers}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = cased(CONTRACTIONS + "?", r"\p{N}{1,3}")
TEKKEN = cased("", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# DeepSeek 1 and 2 list letters of scripts with case, by ranges
DEEPSEEK2 = ("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
             "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
             "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u1e00-\u1f15\u1f18-\u1f1d\u2c00-\u2c7b\ufb00-\ufb06\uff21-\uff3a"
             "\uff41-\uff5a\U00010400-\U0001044f\U0001e900-\U0001e943]+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
             r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
META = "\u2581"


def level(regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(regex, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: regex}, "behavior": behavior, "invert": invert}


def sequence(*members, list_name="pretokenizers"):
    return {"type": "Sequence", list_name: list(members)}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def added(content, special=True, normalized=None, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special if normalized is None else normalized, "special": special, **flags}


def template(bos=None, eos=None):
    parts = ([{"SpecialToken": {"id": bos, "type_id": 0}}] if bos else []) + [{"Sequence": {"id": "A", "type_id": 0}}] + (
        [{"SpecialToken": {"id": eos, "type_id": 0}}] if eos else [])
    return {"type": "TemplateProcessing", "single": parts, "pair": parts + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {x: {"id": x, "ids": [], "tokens": [x]} for x in (bos, eos) if x}}


SPACED = sequence(replace(META, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, list_name="decoders")
LLAMA2_DECODER = sequence(*SPACED["decoders"], {"type": "Strip", "content": " ", "start": 1, "stop": 0}, list_name="decoders")
LLAMA2 = sequence({"type": "Prepend", "prepend": META}, replace(" ", META), list_name="normalizers")
FALLBACK = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
UNK = [added("<unk>"), added("<s>"), added("</s>")]
CHAT = [added("<|im_start|>"), added("<|im_end|>"), added("<think>", False, False), added("</think>", False, False)]
FLAGS = [added("<l>", False, False, lstrip=True), added("<r>", False, False, rstrip=True),
         added("the cat", False, False, single_word=True), added("na\u00efve", False, True)]

# name: normalizer, pre_tokenizer, decoder, added tokens, post_processor, settings of the model
SHAPES = {
    "gpt2": (None, level(True), level(True, True), [added("<|endoftext|>", normalized=True)] + FLAGS, level(True), {}),
    "gpt_neox": ({"type": "NFC"}, level(True), level(True, True),
                 [added("<|endoftext|>"), added("<|padding|>")] + [added(" " * n, False, True) for n in (8, 5, 4, 3, 2)] + FLAGS,
                 level(True), {}),
    "qwen2": ({"type": "NFC"}, sequence(split(QWEN2), level()), level(), [added("<|endoftext|>")] + CHAT + FLAGS, level(), {}),
    "llama3": (None, sequence(split(LLAMA3), level()), level(True, True),
               [added("<|begin_of_text|>"), added("<|end_of_text|>"), added("<|eot_id|>")] + FLAGS,
               sequence(level(True, True), template("<|begin_of_text|>"), list_name="processors"), {"ignore_merges": True}),
    "cl100k": (None, sequence(split(CL100K, "Removed", True), level()), level(), [added("<|endoftext|>")] + CHAT + FLAGS, None,
               {"ignore_merges": True}),
    "o200k": (None, sequence(split(O200K), level()), level(), [added("<|endoftext|>")] + CHAT, None, {"ignore_merges": True}),
    "tekken": (None, sequence(split(TEKKEN), level()), level(), UNK, template("<s>", "</s>"), {"ignore_merges": True}),
    "deepseek_v2": ({"type": "Sequence", "normalizers": []},
                    sequence(split("[\r\n]"), split(DEEPSEEK2), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                             split("\\s+$"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+".replace("\ud7ff", "\ud7a3")),
                             {"type": "Digits", "individual_digits": True}, level()),
                    level(True, True), [added("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), added("<\uff5cend\u2581of\u2581sentence\uff5c>"),
                                        added("\u00e9\u00e8", False, False)] + FLAGS,
                    template("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), {}),
    "deepseek_v3": ({"type": "Sequence", "normalizers": []},
                    sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3), level()), level(True, True),
                    [added("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), added("<\uff5cend\u2581of\u2581sentence\uff5c>")] + CHAT + FLAGS,
                    template("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), {}),
    "smollm": (None, sequence({"type": "Digits", "individual_digits": True}, level(True)), level(True, True),
               [added("<|endoftext|>")] + CHAT, None, {}),
    "falcon": (None, sequence({"type": "Punctuation", "behavior": "Contiguous"}, level(True),
                              {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")), level(True, True),
               [added("<|endoftext|>"), added(">>TITLE<<", False)], None, {}),
    "bloom": (None, sequence(split(BLOOM), level()), level(True, True), UNK + [added("<pad>")], level(), {}),
    "roberta": (None, level(True, True), level(True, True), UNK + [added("<mask>", lstrip=True)],
                {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": True}, {}),
    "llama2": (LLAMA2, None, LLAMA2_DECODER, UNK + FLAGS[:3], template("<s>"), FALLBACK),
    "mistral": (None, {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": False}, LLAMA2_DECODER,
                UNK + FLAGS[:3], template("<s>"), FALLBACK),
    "gemma": (replace(" ", META), split(" ", "MergedWithPrevious", kind="String"), SPACED,
              UNK + [added("<start_of_turn>"), added("\n\n", False, False), added(META * 2, False, False)], template("<s>"), FALLBACK),
    "nfkc": (sequence({"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
                      replace(r"\s+", " ", "Regex"), {"type": "Prepend", "prepend": " "}, list_name="normalizers"),
             sequence(split(GPT2), level()), level(), [added("<|endoftext|>"), added("Stra\u00dfe", False, True)], None, {}),
    "accents": (sequence({"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, list_name="normalizers"),
                {"type": "Whitespace"}, {"type": "Fuse"}, UNK + [added("Caf\u00e9", False, True)], None, {"unk_token": "<unk>", "fuse_unk": True}),
    "words": ({"type": "NFD"}, sequence({"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithNext"}),
              {"type": "Fuse"}, UNK, None, {"unk_token": "<unk>"}),
}

WORDS = ("the cat sat on a mat and then it was not there again Don't I'll we've they're it's IT'S HTTPServer snake_case "
         "camelCase 2024 12345 3.14 1,000,000 caf\u00e9 na\u00efve Stra\u00dfe \u00dcber fran\u00e7ais espa\u00f1ol "
         "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u041c\u043e\u0441\u043a\u0432\u0430 \u03ba\u03cc\u03c3\u03bc\u03b5 "
         "\u4f60\u597d \u4e16\u754c \u65e5\u672c\u8a9e \u3072\u3089\u304c\u306a \u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 "
         "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0939\u093f\u0928\u094d\u0926\u0940 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
         "return x == y; { } ( ) != -> :: // --- ... ?! \u00ab\u00bb \u2014 \u20ac $ \U0001f600 \U0001f44d\U0001f3fd").split(" ")


def corpus():
    """Made-up text: words of many scripts, and lines of code-like layout."""
    rng = random.Random(1)
    lines = []
    for _ in range(1500):
        line = "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", " ", ", ", ". ", "", "  "]) for _ in range(rng.randrange(3, 12)))
        lines.append(rng.choice(["", "", "    ", "\t"]) + line + rng.choice(["", "\n", "\n\n"]))
    return lines


TEXTS = [
    "", " ", "a", "Hello, world!", "The cat sat on the mat.", "  leading and trailing  ", "tabs\tand\nnew\r\nlines\n\n\nend\n",
    "I'll say it's they've DON'T IT'S we'Re 'S 'll '\u017f x'\u017fy o'clock 'tis rock'n'roll", "\u2019s isn\u2019t",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 1e-9 2024-01-31", "a1b22c333 4d", "x" * 70, "ab" * 40,
    "        indented\n\t\tdef f(x):\n    return x ** 2  # comment\n", "   \n  \n \n", " \n", "\n ", " \r\n \r\n", "a \n b", "a  \n\n  b",
    "     x", "\u00a0nbsp\u00a0\u00a0two\u3000wide\u2003em\u200bzero\u2028line\u0085nel", "end spaces   ", "\t \t x",
    "caf\u00e9 cafe\u0301 \u00c5 A\u030a \u212b e\u0323\u0302 e\u0302\u0323 \u1ec7", "a\u0300\u0316\u0301\u0317 q\u0307\u0323 q\u0323\u0307",
    "\u0344 \u0f73 \u0958 \u2adc \ufb1d", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u1100\u1161 \u1100\uac00\u11a8 \uac00\u11a8\u11a8",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u304b\u3099 \u30ab\uff9e\uff76\uff9e",
    "\uff21\uff22\uff23\uff11\uff12\uff13\uff01 \u2460\u2461 \u2167 \u00bd \u00b2\u00b3 \ufb01\ufb02 \u3392 \u337f \u32ff \ufdfa",
    "\u0661\u0662\u0663\u0664 \u0967\u0968\u0969 \u0e51\u0e52 \U0001d7d8\U0001d7d9 \u4e00\u4e8c\u4e09 \u2170 \u3007",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0419 \u0418\u0306 \u0451 \u0435\u0308", "\u0394\u03b5\u03bd \u03a3\u03a3 \u03c2 \u1f00\u1f10 \u1fb3 \u0391\u0345",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0651\u064e \u064e\u0651 \u0627\u0655", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u05e9\u05b8\u05c1",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u093c \u0995\u09c7\u09be \u0b47\u0b56 \u0dd9\u0dcf\u0dca", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0e19\u0e49\u0e33 \u0eb2\u0ecd",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f", "\u26a0\ufe0f!! :-) \u00af\\_(\u30c4)_/\u00af",
    "HTTPServer XMLHttpRequest camelCase PascalCase SCREAMING_CASE \u01c5 \u01c4 iPhone McDonald's O'Neill's \u0130stanbul I\u0307 \u0131",
    "STRASSE Stra\u00dfe \u1e9e stra\u00dfe \ufb00 \u017f Kelvin \u212a", "https://example.org/a/b?c=d&e=f#g user@mail.com C:\\path\\x.y", "//\n///\n\\n",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|im_start|>user\nHi<|im_end|>\n<think>\n\n</think> ok", "<s>x</s> <unk> <0x41> <pad>",
    "the cat", "bathe cats the cat. the cats the  cat \u00e9the cat", "x <l> y <r> z  <l><r>  a", "na\u00efve nai\u0308ve NA\u00cfVE Caf\u00e9 cafe\u0301 CAF\u00c9",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>hi\u00e9\u00e8<\uff5cend\u2581of\u2581sentence\uff5c>", "a\u2581b \u2581\u2581 c\u2581", ">>TITLE<< x>>TITLE<<", "<mask> a  <mask>b",
    "\n\n\n\n\n\n", "\r\r\n", " " * 33, " " * 33 + "x", "\t" * 9 + "x\n", "!!!???...,,, \"quoted\" (a) [b] {c} -- \u2014 \u2026 \u00bfQu\u00e9? \u00a1S\u00ed!",
    "$100 \u20ac5 \u00a3 5% +1 a+b=c <x> ^y `z` |w| ~v", "\u0000\u0001\u007f\ufeff\ufffd\uffff\U0010ffff", "\u0378 \ue000 \U000e0001", "\u0897 \u1abf\u0301 \u0301 \u0301a",
    "\u24b6\u24d0 \u2150 \u3220 \u2126 \u1e9b\u0323 \u0340 \u0374 \u037e \u2000x\u2001", "\u1c89 \ua7cb \ua7dc \U00010d50 \u10a0 \u1c90 \u13a0",
]


def make(shape):
    normalizer, pre, decoder, tokens, post, settings = SHAPES[shape]
    byte_level = "ByteLevel" in json.dumps(pre)
    special = [x["content"] for x in tokens if x["special"]]
    bytes_ = ["<0x%02X>" % i for i in range(256)] if settings.get("byte_fallback") else []
    base = json.loads(Tokenizer(models.BPE(**settings)).to_str())
    # The merges are learnt from text that is not cut into words: so they would reach across the words that the shape's
    # pre_tokenizer cuts, and a cut that is missing or one too many shows in the ids.
    uncut = level() if byte_level else {"type": "WhitespaceSplit"} if "Whitespace" in json.dumps(pre) else None
    base.update(normalizer=normalizer, pre_tokenizer=uncut)
    t = Tokenizer.from_str(json.dumps(base))
    lines = [x[:30] for x in corpus()]
    t.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=len(special) + len(bytes_) + (256 if byte_level else 200) + 130, special_tokens=special + bytes_, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else []))
    made = json.loads(t.to_str())
    made.update(pre_tokenizer=pre, decoder=decoder)
    vocab = made["model"]["vocab"]
    if len(shape) % 2:  # as files of old write them
        made["model"]["merges"] = [x if isinstance(x, str) else " ".join(x) for x in made["model"]["merges"] if not any(" " in y for y in x)]
    next_id = max(vocab.values()) + 1
    made["added_tokens"] = []
    for x in tokens:
        i = vocab.get(x["content"], next_id)
        next_id += i == next_id
        made["added_tokens"].append({"id": i, **x})
    made["added_tokens"].sort(key=lambda x: x["id"])
    ids = {x["content"]: x["id"] for x in made["added_tokens"]}
    for p in [post] + (post or {}).get("processors", []):
        for x in (p or {}).get("special_tokens", {}).values():
            x["ids"] = [ids[x["id"]]]
        for end in ("cls", "sep"):
            if p and end in p:
                p[end][1] = ids[p[end][0]]
    made["post_processor"] = post
    return made


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    expected = {"texts": TEXTS, "shapes": {}}
    for shape in SHAPES:
        path = os.path.join(out, shape + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(make(shape), f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        t = Tokenizer.from_file(path)
        ids = [t.encode(x, add_special_tokens=False).ids for x in TEXTS]
        whole = t.encode("a").ids
        plain = t.encode("a", add_special_tokens=False).ids
        at = next(i for i in range(len(whole)) if whole[i:i + len(plain)] == plain)
        # where the text is not what went in; null: with a U+FFFD for bytes that hola returns as they are
        back = {str(i): None if "\ufffd" in y else y for i, (x, y) in enumerate(zip(ids, map(t.decode, ids))) if y != TEXTS[i]}
        expected["shapes"][shape] = {"bos": whole[:at], "eos": whole[at + len(plain):], "ids": [" ".join(map(str, x)) for x in ids], "decoded": back}
    with open(os.path.join(out, "expected.json"), "w", encoding="utf-8") as f:
        json.dump(expected, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
