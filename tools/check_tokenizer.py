#!/usr/bin/env python3
"""Compares libhola's tokenizer with the original programs, id by id, and times both.

    make build/cc/libhola.so.0
    tools/check_tokenizer.py spm   --lib LIB --model tokenizer.model [--dir SCRATCH] [--mb N] [FILE...]
    tools/check_tokenizer.py json  --lib LIB --dir SCRATCH [--model tokenizer.model] [--mb N] [FILE...]
    tools/check_tokenizer.py shapes --lib LIB [--dir SCRATCH] [--only NAME] [--random N] [--mb N] [FILE...]
    tools/check_tokenizer.py unicode --lib LIB --dir SCRATCH
    tools/check_tokenizer.py train --lib LIB --dir SCRATCH [--vocab-size N] TEXT.txt...

spm needs Debian's python3-sentencepiece; the others need PyPI's tokenizers (json with --model: sentencepiece too).
json trains small tokenizers of several styles into SCRATCH; shapes takes those of tests/data/tokenizers
(with SCRATCH: their cuts with a token for every pair of bytes); unicode sends
every character through each class and normalizer. FILEs are .txt, .jsonl or .jsonl.xz (field "text");
--mb limits the megabytes taken from each. Any difference: the input that shows it, and exit status 1."""
import argparse
import ctypes
import json
import lzma
import os
import random
import sys
import time


class Hola:
    """One tokenizer of libhola through its public interface."""

    def __init__(self, lib, path):
        self.lib = lib
        self.handle = ctypes.c_void_p()
        if lib.hola_tokenizer_load(ctypes.byref(self.handle), os.fsencode(path)):
            raise ValueError(lib.hola_last_error().decode())
        self.size = lib.hola_tokenizer_size(self.handle)

    def encode(self, data, threads=1):
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        if self.lib.hola_tokenizer_encode(self.handle, data, ctypes.c_int64(len(data)), threads,
                                          ctypes.byref(ids), ctypes.byref(n)):
            raise ValueError(self.lib.hola_last_error().decode())
        out = ids[:n.value]
        self.lib.free(ids)
        return out

    def count(self, data, threads=1):
        """Like encode, without Python's list: for timing."""
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_int64()
        self.lib.hola_tokenizer_encode(self.handle, data, ctypes.c_int64(len(data)), threads,
                                       ctypes.byref(ids), ctypes.byref(n))
        self.lib.free(ids)
        return n.value

    def decode(self, ids):
        text, n = ctypes.POINTER(ctypes.c_char)(), ctypes.c_int64()
        array = (ctypes.c_int32 * len(ids))(*ids)
        if self.lib.hola_tokenizer_decode(self.handle, array, ctypes.c_int64(len(ids)), ctypes.byref(text),
                                          ctypes.byref(n)):
            raise ValueError(self.lib.hola_last_error().decode())
        out = ctypes.string_at(text, n.value)
        self.lib.free(text)
        return out


def load_library(path):
    lib = ctypes.CDLL(os.path.abspath(path))
    lib.hola_last_error.restype = ctypes.c_char_p
    lib.hola_tokenizer_size.restype = ctypes.c_int64
    lib.hola_tokenizer_size.argtypes = [ctypes.c_void_p]
    lib.free = ctypes.CDLL(None).free
    return lib


def documents(path, limit):
    """Texts of a file, about a megabyte at a time at most, `limit` bytes in all."""
    taken = 0
    if path.endswith((".jsonl", ".jsonl.xz")):
        with (lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else
              open(path, encoding="utf-8")) as f:
            for line in f:
                row = json.loads(line)
                text = row.get("text") or row.get("page") or ""
                taken += len(text.encode())
                yield text
                if taken >= limit:
                    return
    else:
        with open(path, encoding="utf-8", newline="") as f:
            while taken < limit and (text := f.read(1 << 20)):
                taken += len(text.encode())
                yield text


FRAGMENTS = (["", " ", "  ", " " * 7, "\t", "\n", "\r\n", "\n\n", "\n \n", "\u2581", "\u2581\u2581", "\u00a0", "\u3000",
              "\u200b", "\u0085", "\x00", "\x7f", "a", "b", "the", " the", "The", "'s", "'S", "'re", "'LL", "'\u017f", "don't",
              "1", "12", "123", "1234567", "3.14", "\u00b2", "\u0664", "\u2167", "<s>", "</s>", "<unk>", "<0x41>",
              "<|endoftext|>", "[X]", "{}", "!!!", "...", "-->", "\u2026", "\u00e9", "e\u0301", "\u00df", "\u01c5",
              "\u0410\u0431\u0432", "\u4f60\u597d", "\u4e16", "\u65e5\u672c\u8a9e", "\u30ab\u30bf", "\ud55c\uad6d\uc5b4",
              "\u0e2a\u0e27\u0e31\u0e2a", "\u0645\u0631\u062d", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9",
              "\U00010348", "\ufffd", "\ufeff", "\U0010ffff", "def f(x):\n    return x", "http://a.b/c?d=e&f", "aaaaaaaa"])


def random_text(rng):
    kind = rng.random()
    if kind < 0.6:
        return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(12)))
    if kind < 0.7:
        return "".join(chr(rng.randrange(0x20, 0x7f)) for _ in range(rng.randrange(60)))
    if kind < 0.8:
        return rng.choice(FRAGMENTS) * rng.randrange(200)
    if kind < 0.9:
        return "".join(chr(rng.choice([rng.randrange(0x250), rng.randrange(0xd800), rng.randrange(0xe000, 0x110000)]))
                       for _ in range(rng.randrange(30)))
    return "".join(rng.choice("ab c\n") for _ in range(rng.randrange(120)))


def fail(what, text, got, want):
    print(f"DIFFERENT: {what}: {text[:300]!r}\n  hola   {got[:40]}\n  oracle {want[:40]}")
    sys.exit(1)


def compare(name, hola, encode, decode, text, round_trip=False):
    data = text.encode()
    got, want = hola.encode(data), encode(text)
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        before = len(hola.decode(want[:max(0, at - 5)]))
        fail(f"{name}: id {at}", data[before:before + 80].decode(errors="replace") if before > 300 else text,
             got[max(0, at - 5):], want[max(0, at - 5):])
    back = hola.decode(got)
    if decode and len(text) < 5000:
        want = decode(got).encode()
        if back.decode(errors="replace") != want.decode(errors="replace"):
            fail(f"{name}: decode", text, list(back), list(want))
    if round_trip and back != data:
        fail(f"{name}: decode(encode(x)) != x", text, list(back), list(data))
    return len(got)


def compare_files(name, hola, encode, files, limit):
    for path in files:
        n = size = 0
        spent = [0.0, 0.0]
        for text in documents(path, limit):
            data = text.encode()
            start = time.process_time()
            hola.count(data)
            middle = time.process_time()
            want = encode(text)
            end = time.process_time()
            spent[0] += middle - start
            spent[1] += end - middle
            got = hola.encode(data)
            if got != want:
                compare(name, hola, encode, None, text)
            n, size = n + len(got), size + len(data)
        print(f"{name}: {os.path.basename(path)}: {size:,} bytes, {n:,} ids, all equal; hola {size / spent[0] / 1e6:.1f} "
              f"MB/s, oracle {size / spent[1] / 1e6:.2f} MB/s: {spent[1] / spent[0]:.1f} times", flush=True)


def check_spm(args, lib):
    import sentencepiece
    hola = Hola(lib, args.model)
    oracle = sentencepiece.SentencePieceProcessor(model_file=args.model)
    assert hola.size == oracle.vocab_size()
    rng = random.Random(args.seed)
    tokens = 0
    for _ in range(args.random):
        text = random_text(rng)
        tokens += compare("spm", hola, oracle.EncodeAsIds, oracle.DecodeIds, text, "\u2581" not in text)
    for _ in range(args.random):  # invalid UTF-8: the original loses the bytes, hola keeps them
        data = bytes(rng.choice([rng.randrange(256), rng.choice(b"ab \xe2\x96\xf0\x9f")]) for _ in range(rng.randrange(40)))
        if b"\xe2\x96\x81" not in data and hola.decode(hola.encode(data)) != data:
            fail("spm: random bytes", repr(data), list(hola.decode(hola.encode(data))), list(data))
    for text in ("a" * 300000, " " * 300000, "\u2581" * 100000, "\u4f60\u597d" * 50000, "ab" * 100000, "\U0001f600" * 50000):
        tokens += compare("spm: long", hola, oracle.EncodeAsIds, None, text)
    for _ in range(args.random // 4):
        ids = [rng.randrange(hola.size) for _ in range(rng.randrange(8))]
        got, want = hola.decode(ids).decode(errors="replace"), oracle.DecodeIds(ids)
        if got != want and "\ufffd" not in got:
            fail("spm: decode", str(ids), [got], [want])
    print(f"spm: {args.random:,} random texts, {tokens:,} ids, all equal", flush=True)
    if args.dir:
        check_spm_settings(args, lib)
    compare_files("spm", hola, oracle.EncodeAsIds, args.files, args.mb * 1e6)


def check_spm_settings(args, lib):
    """Small models with other settings than the usual ones, trained on the first file."""
    import sentencepiece
    os.makedirs(args.dir, exist_ok=True)
    corpus = os.path.join(args.dir, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as f:
        f.writelines(line + "\n" for x in documents(args.files[0], 1e6) for line in x.split("\n") if line.strip())
    user = ["[X]", "the", "'s ", "\u2581the\u2581", "..", "..."]
    for k in range(16):
        prefix = os.path.join(args.dir, f"spm-{k}")
        settings = dict(byte_fallback=bool(k & 1), remove_extra_whitespaces=bool(k & 2), add_dummy_prefix=k % 5 != 4,
                        user_defined_symbols=user if k & 4 else [], split_by_whitespace=not k & 8)
        sentencepiece.SentencePieceTrainer.train(
            input=corpus, model_prefix=prefix, vocab_size=1500, model_type="bpe", normalization_rule_name="identity",
            character_coverage=0.9995, minloglevel=2, **settings)
        hola, rng = Hola(lib, prefix + ".model"), random.Random(k)
        oracle = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        n = sum(compare(f"spm-{k} {settings}", hola, oracle.EncodeAsIds, oracle.DecodeIds, random_text(rng))
                for _ in range(args.random // 4))
        print(f"spm-{k}: {args.random // 4:,} random texts, {n:,} ids, all equal", flush=True)


# ---- tokenizer.json ----

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3 = CONTRACTIONS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = ["<0x%02X>" % i for i in range(256)]


def train(texts, pre, decoder, size=3000, special=("<s>", "</s>"), normalizer=None, byte_level=True, **model):
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer, t.decoder = pre, decoder
    if normalizer:
        t.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    first = list(special) + (BYTES if model.get("byte_fallback") else [])
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=first, initial_alphabet=alphabet,
                                                     show_progress=False, limit_alphabet=300))
    if model.get("byte_fallback"):  # bytes are ordinary tokens of the vocabulary, not added ones
        kept = json.loads(t.to_str())
        kept["added_tokens"] = [a for a in kept["added_tokens"] if a["content"] not in BYTES]
        t = Tokenizer.from_str(json.dumps(kept))
    t.add_tokens([AddedToken("[X]", normalized=False), AddedToken("the cat", single_word=True, normalized=False),
                  AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
                  AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("<|end|>", normalized=True)])
    return t


def mistral(model_path, normalized):
    """tokenizer.model as transformers converts it."""
    import sentencepiece
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    sp = sentencepiece.SentencePieceProcessor(model_file=model_path)
    vocab = {sp.id_to_piece(i): i for i in range(sp.vocab_size())}
    merges = []
    for piece, i in vocab.items():
        local = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += [(a, b, sp.get_score(i)) for a, b in sorted(local, key=lambda x: (vocab[x[0]], vocab[x[1]]))]
    merges = [(a, b) for a, b, _ in sorted(merges, key=lambda m: m[2], reverse=True)]
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_special_tokens([AddedToken(x, normalized=normalized) for x in ("<unk>", "<s>", "</s>")])
    return t


def styles(texts, args):
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers as pre
    level = decoders.ByteLevel()

    def split(pattern):
        return pre.Sequence([pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    spaced = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    yield "gpt2", lambda: train(texts, pre.ByteLevel(add_prefix_space=False), level)
    yield "gpt2-prefix", lambda: train(texts, pre.ByteLevel(add_prefix_space=True), level)
    yield "bytes-uncut", lambda: train([x[:40] for x in texts], pre.ByteLevel(add_prefix_space=False, use_regex=False), level, size=600)
    yield "llama3", lambda: train(texts, split(LLAMA3), level)
    yield "llama3-whole", lambda: train(texts, split(LLAMA3), level, ignore_merges=True)
    yield "qwen2", lambda: train(texts, split(QWEN2), level)
    yield "meta-always", lambda: train(texts, pre.Metaspace(), decoders.Metaspace(), byte_level=False, unk_token="<unk>",
                                       special=("<unk>", "<s>"))
    yield "meta-first", lambda: train(texts, pre.Metaspace(prepend_scheme="first"), decoders.Metaspace(), byte_level=False,
                                      unk_token="<unk>", fuse_unk=True, special=("<unk>", "<s>"))
    yield "meta-never", lambda: train(texts, pre.Metaspace(prepend_scheme="never"), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]),
                                      byte_level=False, byte_fallback=True, unk_token="<unk>", special=("<unk>", "<s>"))
    yield "meta-whole", lambda: train([x[:40] for x in texts], pre.Metaspace(split=False), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), size=900,
                                      byte_level=False, byte_fallback=True, unk_token="<unk>", special=("<unk>", "<s>"))
    yield "llama2", lambda: train([x[:40] for x in texts], pre.Metaspace(split=False, prepend_scheme="never"), spaced, size=900, byte_level=False,
                                  byte_fallback=True, unk_token="<unk>", fuse_unk=True, special=("<unk>", "<s>"),
                                  normalizer=normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))
    if args.model:
        yield "mistral", lambda: mistral(args.model, False)
        yield "mistral-normalized", lambda: mistral(args.model, True)


def check_classes(args, lib):
    """Every character after a letter, a digit, a sign and a line break: a tokenizer whose merges show where words end."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers as pre
    alphabet = sorted(pre.ByteLevel.alphabet())
    merges = [(a, x) for a in "a1!\u010a'" for x in alphabet]
    vocab = {x: i for i, x in enumerate(alphabet + [a + x for a, x in merges])}
    for name, pattern in (("gpt2", None), ("llama3", LLAMA3), ("qwen2", QWEN2)):
        t = Tokenizer(models.BPE(vocab, merges))
        t.pre_tokenizer = (pre.Sequence([pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(False, use_regex=False)])
                           if pattern else pre.ByteLevel(False))
        t.decoder = decoders.ByteLevel()
        path = os.path.join(args.dir, f"classes-{name}.json")
        t.save(path)
        hola, different = Hola(lib, path), []
        for c in [*range(0xd800), *range(0xe000, 0x110000)]:
            text = f"a{chr(c)}1{chr(c)}!{chr(c)}\n{chr(c)} '{chr(c)}a"
            if hola.encode(text.encode()) != t.encode(text).ids:
                different.append(c)
        ranges = []
        for c in different:
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        print(f"classes {name}: {len(different)} of 1,112,064 characters differ",
              " ".join(f"{a:x}-{b:x}" for a, b in ranges), flush=True)


def check_json(args, lib):
    from tokenizers import Tokenizer
    os.makedirs(args.dir, exist_ok=True)
    texts = [x for f in args.files for x in documents(f, 2e6)]
    texts = [p for x in texts for p in x.split("\n\n")][:20000] + [x for x in FRAGMENTS if x != "\x00"]  # hola refuses a NUL in a token
    FRAGMENTS.extend(["<l>", " <l> ", "<r>", " <r>\n ", "<lr>", "  <lr>  ", "the cat", "the cats", " the cat ", "<|end|>"])
    if not args.only:
        check_classes(args, lib)
    for name, make in styles(texts, args):
        if args.only and not name.startswith(args.only):
            continue
        path = os.path.join(args.dir, name + ".json")
        make().save(path)
        oracle, hola = Tokenizer.from_file(path), Hola(lib, path)
        assert hola.size == oracle.get_vocab_size(), (hola.size, oracle.get_vocab_size())
        rng = random.Random(args.seed)
        n = 0
        for _ in range(args.random):
            text = random_text(rng)
            # Its Metaspace decoder drops every space of the first token, also one that the text had inside it; and it
            # does not know special tokens for special once they are normalized. docs/tokenizer.md
            n += compare(name, hola, lambda x: oracle.encode(x, add_special_tokens=False).ids,
                         oracle.decode if name not in ("meta-whole", "mistral-normalized") else None, text)
        print(f"{name}: {args.random:,} random texts, {n:,} ids, all equal", flush=True)
        compare_files(name, hola, lambda x: oracle.encode(x, add_special_tokens=False).ids, args.files, args.mb * 1e6)


SHAPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "tokenizers")
HARD = ["\u0301", "\u0323", "\u0316", "\u0345", "\u0327", "\u093c", "\u094d", "\u05b0", "\u064b", "\u0e38", "\u3099", "\u309a",
        "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "\u00c5", "\u212b", "\u1e9b", "\u0958", "\u2adc", "\ufb01", "\uff21",
        "\uff11", "\u337f", "\u0130", "\u03a3", "\u01c4", "\u0967", "\U0001d7d8", "\u00bd", "\u2460", "\U0001f3fd", "\ufe0f",
        "'LL", "'\u017f", "'Re", "\r", "/", "_", "$", "\u20ac", "\u2019", "\u3002", "\uff01", "\u060c", "A", "Zz", "aB", "\u01c5x",
        "<|endoftext|>", "<|im_start|>", "<think>", "the cat", "<l>", "<r>", "na\u00efve", "nai\u0308ve", "Caf\u00e9", "Stra\u00dfe",
        "<mask>", ">>TITLE<<", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<start_of_turn>", "\u00e9\u00e8"]


def hard_text(rng):
    """Texts where marks, scripts, cases and added tokens meet."""
    kind = rng.random()
    if kind < 0.5:
        return random_text(rng)
    if kind < 0.8:
        return "".join(rng.choice(HARD if rng.random() < 0.5 else FRAGMENTS) for _ in range(rng.randrange(16)))
    if kind < 0.9:
        return "".join(rng.choice("aA1.\u00e9\u0301\u0323\u4e00\u3042\u0661' \n\r\t") for _ in range(rng.randrange(30)))
    base = rng.choice([0x300, 0x590, 0x610, 0x900, 0xe00, 0x1100, 0x1ab0, 0x1dc0, 0x2000, 0x20d0, 0x2100, 0x3000, 0xa640, 0xfb00, 0xfe00,
                       0xff00, 0x10a00, 0x11000, 0x11300, 0x1d100, 0x1e000, 0x1f100])
    return "".join(chr(base + rng.randrange(256)) if rng.random() < 0.7 else rng.choice(HARD) for _ in range(rng.randrange(20)))


def all_pairs(path, out):
    """The same shape with a token for every pair of bytes, merged in random order: every cut shows in the ids."""
    made = json.load(open(path, encoding="utf-8"))
    from tokenizers import pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in letters for b in letters]
    random.Random(1).shuffle(pairs)
    made["added_tokens"] = [x for x in made["added_tokens"] if len(x["content"]) > 2]
    first = [x["content"] for x in made["added_tokens"]]
    for i, x in enumerate(made["added_tokens"]):
        x["id"] = i
    made["post_processor"] = None
    made["model"]["vocab"] = {x: i for i, x in enumerate(first + letters + [a + b for a, b in pairs])}
    made["model"]["merges"] = [f"{a} {b}" for a, b in pairs]
    with open(out, "w", encoding="utf-8") as f:
        json.dump(made, f)
    return out


def check_shapes(args, lib):
    from tokenizers import Tokenizer
    names = sorted(x[:-5] for x in os.listdir(SHAPES) if x != "expected.json")
    for name in [x for x in names if x.startswith(args.only or "")]:
        path = os.path.join(SHAPES, name + ".json")
        if args.dir:
            if "ByteLevel" not in open(path, encoding="utf-8").read():
                continue
            os.makedirs(args.dir, exist_ok=True)
            path = all_pairs(path, os.path.join(args.dir, name + ".json"))
        oracle, hola, rng = Tokenizer.from_file(path), Hola(lib, path), random.Random(args.seed)
        latin = [x.content for x in oracle.get_added_tokens_decoder().values() if any(0x7f < ord(c) < 0x180 for c in x.content)]
        n = 0
        for _ in range(0, args.random, 500):
            texts = [hard_text(rng) for _ in range(500)]
            for i, one in enumerate(oracle.encode_batch_fast(texts, add_special_tokens=False)):
                # Its byte decoder takes the letters of Latin-1 in added tokens for bytes. docs/tokenizer.md
                decode = i % 10 == 0 and not any(oracle.token_to_id(x) in one.ids for x in latin)
                n += compare(name, hola, lambda x: one.ids, oracle.decode if decode else None, texts[i])
        print(f"{name}: {args.random:,} random texts, {n:,} ids, all equal", flush=True)
        compare_files(name, hola, lambda x: oracle.encode(x, add_special_tokens=False).ids, args.files, args.mb * 1e6)


def check_unicode(args, lib):
    """Every character between two letters, through each class of patterns and each normalizer: a vocabulary of bytes
    shows the normalized text itself, and that of a pattern shows where words are cut."""
    from tokenizers import Tokenizer
    os.makedirs(args.dir, exist_ok=True)
    base = json.load(open(os.path.join(SHAPES, "gpt2.json"), encoding="utf-8"))
    base["added_tokens"] = []
    # of the large blocks of one kind, every 16th: ideographs, Hangul, private use
    large = ((0x3400, 0x9fff), (0xac00, 0xd7a3), (0xe000, 0xf8ff), (0x17000, 0x18cff), (0x20000, 0x10ffff))
    characters = [chr(c) for c in range(1, 0x110000) if not 0xd800 <= c <= 0xdfff and (c % 16 == 0 or not any(a < c < b for a, b in large))]
    many = ["a".join(characters[i:i + 64]) for i in range(0, len(characters), 64)]

    def check(name, normalizer, pre, texts):
        base["normalizer"], base["pre_tokenizer"] = normalizer, pre
        path = os.path.join(args.dir, "unicode.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(base, f)
        oracle, hola = Tokenizer.from_file(path), Hola(lib, path)
        for text, one in zip(texts, oracle.encode_batch_fast(texts, add_special_tokens=False)):
            compare(name, hola, lambda x: one.ids, None, text)
        print(f"unicode: {name}: all equal", flush=True)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    marks = ["\u0301", "\u0323", "\u0345", "\u0334", "\u093c", "\u3099", "\u094d", "\u05b0", "\u064b", "\u0e38", "\u302a", "\u1161", "\u11a8"]
    pairs = ["".join("a" + c + m + "a" + m + c for m in marks) for c in characters if ord(c) < 0x30000]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        check(form, {"type": form}, byte_level, many)
        check(form + " with marks", {"type": form}, byte_level, pairs)
    for kind in ("Lowercase", "StripAccents"):
        check(kind, {"type": kind}, byte_level, many)
    check("Strip", {"type": "Strip", "strip_left": True, "strip_right": True}, byte_level, [x + "a" + x for x in characters[:20000]])
    # Removed takes the class away, so that the ids are those of the rest
    for pattern in ["\\p{%s}" % x for x in "L M N P S Z C Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()] + [
            "\\s", "\\S", "\\d", "\\D", "\\w", "\\W", ".", "(?i:[sk])", "[^\\p{L}]"]:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": False}
        check(pattern, None, {"type": "Sequence", "pretokenizers": [split, byte_level]}, many)
    removed = {"type": "Punctuation", "behavior": "Removed"}
    check("Punctuation", None, {"type": "Sequence", "pretokenizers": [removed, byte_level]}, many)
    for kind in ("Whitespace", "WhitespaceSplit"):
        check(kind, None, {"type": "Sequence", "pretokenizers": [{"type": kind}, byte_level]}, many)


def check_train(args, lib):
    """`hola tokenizer train` against BpeTrainer: the same vocabulary and merges, and the file loads there."""
    import subprocess
    from tokenizers import Tokenizer, models, pre_tokenizers as pre, trainers
    os.makedirs(args.dir, exist_ok=True)
    for path in args.files:
        out = os.path.join(args.dir, "trained.json")
        start = time.time()
        subprocess.run([args.hola, "tokenizer", "train", "-o", out, "--vocab-size", str(args.vocab_size), path], check=True)
        middle = time.time()
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        with open(path, encoding="utf-8", newline="") as f:
            t.train_from_iterator([f.read()], trainers.BpeTrainer(
                vocab_size=args.vocab_size, min_frequency=2, special_tokens=["<s>", "</s>"], show_progress=False,
                initial_alphabet=pre.ByteLevel.alphabet()))
        end = time.time()
        want, got = json.loads(t.to_str())["model"], json.load(open(out))["model"]
        merges = [x if isinstance(x, str) else " ".join(x) for x in want["merges"]]
        if want["vocab"] != got["vocab"] or merges != got["merges"]:
            sys.exit(f"DIFFERENT: the tokenizers trained on {path}")
        hola, oracle, rng = Hola(lib, out), Tokenizer.from_file(out), random.Random(args.seed)
        for _ in range(args.random // 10):
            text = random_text(rng)
            compare("trained", hola, lambda x: oracle.encode(x, add_special_tokens=False).ids, oracle.decode, text,
                    "<s>" not in text and "</s>" not in text)
        print(f"train: {os.path.basename(path)}: {len(got['vocab']):,} tokens, {len(merges):,} merges, all equal; hola "
              f"{middle - start:.1f} s, oracle {end - middle:.1f} s", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=["spm", "json", "shapes", "unicode", "train"])
    p.add_argument("--lib", required=True)
    p.add_argument("--model")
    p.add_argument("--dir")
    p.add_argument("--only", help="json: styles whose names begin so")
    p.add_argument("--hola", default="./hola")
    p.add_argument("--vocab-size", type=int, default=8000)
    p.add_argument("--mb", type=float, default=10)
    p.add_argument("--random", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("files", nargs="*")
    args = p.parse_intermixed_args()
    lib = load_library(args.lib)
    {"spm": check_spm, "json": check_json, "shapes": check_shapes, "unicode": check_unicode, "train": check_train}[args.kind](args, lib)


if __name__ == "__main__":
    main()
