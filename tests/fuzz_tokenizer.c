/* fuzz_tokenizer.c -- any bytes as a tokenizer file, then any bytes as a text: refused with a message, or ids that
 * are tokens, the same for any number of threads, and that decode. A file and a text are told apart by a NUL. */
#define MUTATE_RUNS 5000 /* a pattern takes a millisecond to compile */
#include "mutate.h"
#include "tokenizer/tokenizer.h"

#define PIECE(length, text, score, type) "\n" length "\n" text "\x15" score "\x18" type
#define META "\xe2\x96\x81"
#define SPM                                                    \
    PIECE("\x0e", "\x05<unk>", "\x00\x00\x00\x00", "\x02")     \
    PIECE("\x0c", "\x03<s>", "\x00\x00\x00\x00", "\x03")       \
    PIECE("\x0c", "\x03" META, "\x00\x00\x80\xc0", "\x01")     \
    PIECE("\x0a",                                              \
          "\x01"                                               \
          "a",                                                 \
          "\x00\x00\x80\xc0", "\x01")                          \
    PIECE("\x0d", "\x04" META "a", "\x00\x00\x80\xbf", "\x01") \
    PIECE("\x0b",                                              \
          "\x02"                                               \
          "aa",                                                \
          "\x00\x00\x00\xc0", "\x01")                          \
    PIECE("\x0c", "\x03[x]", "\x00\x00\x00\x00", "\x04")       \
    "\x12\x02\x18\x02\x1a\x06\x18\x01 \x00(\x01"
#define JSON(normalizer, pre, decoder, more)                                                                \
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, "     \
    "{\"id\": 9, "                                                                                          \
    "\"content\": \"[y]\", \"lstrip\": true, \"rstrip\": true, \"single_word\": true}], "                   \
    "\"normalizer\": " normalizer ", \"pre_tokenizer\": " pre ", \"decoder\": " decoder                     \
    ", \"model\": {\"type\": \"BPE\", " more "\"vocab\": {\"<s>\": 0, \"a\": 1, \"b\": 2, \"\\u0120\": 3, " \
    "\"\\u0120a\": 4, \"ab\": 5, \"\\u2581\": 6, \"aba\": 7, "                                              \
    "\"\\u2581a\": 8}, \"merges\": [\"a b\", [\"\\u0120\", \"a\"], \"ab a\", \"\\u2581 a\"]}}"
#define TEXT "\0 a ab\xff [y] aba <s> \xe2\x96\x81 [x]aa"
#define LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}"
#define METASPACE(scheme) \
    "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"" scheme "\", \"split\": true}"
#define LLAMA                                                                                        \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"}, " \
    "{\"type\": \"Replace\", "                                                                       \
    "\"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}]}"
#define LLAMA_DECODER                                                                                        \
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "             \
    "\"\\u2581\"}, \"content\": "                                                                            \
    "\" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", " \
    "\"start\": 1, "                                                                                         \
    "\"stop\": 0}]}"
#define SPLIT                                                                                               \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "          \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|"                                                                           \
    "'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                                           \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"                                          \
    "\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", " \
    "\"add_prefix_space\": false, \"use_regex\": false}]}"

#define STEPS                                                                                                 \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}, {\"type\": \"NFD\"}, {\"type\": "       \
    "\"Lowercase\"}, {\"type\": \"StripAccents\"}, {\"type\": \"Strip\", \"strip_left\": true, "              \
    "\"strip_right\": true}, {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"\\\\s+|b++\"}, \"content\": " \
    "\"ab\"}, {\"type\": \"NFC\"}, {\"type\": \"Prepend\", \"prepend\": \"a\"}]}"
#define LEVELS                                                                                                     \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\s+$\"}, "   \
    "\"behavior\": \"MergedWithPrevious\", \"invert\": false}, {\"type\": \"Punctuation\", \"behavior\": "         \
    "\"Contiguous\"}, {\"type\": \"Split\", \"pattern\": {\"String\": \"ab\"}, \"behavior\": \"MergedWithNext\", " \
    "\"invert\": true}, " LEVEL_ONLY                                                                               \
    ", {\"type\": \"Digits\", \"individual_digits\": true}, {\"type\": \"Split\", \"pattern\": {\"Regex\": "       \
    "\"(?i:[a-c]|k)?[^\\\\p{Lu}x[yz]]{2,3}+|.\"}, \"behavior\": \"Isolated\", \"invert\": false}]}"
#define LEVEL_ONLY "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define WHITE \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Whitespace\"}, {\"type\": \"WhitespaceSplit\"}]}"
#define MARKS "\0 a\xcc\x81\xcc\xa3 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xef\xac\x81 12ab\xc4\xb0 [y] <s>\xcd\x84\n"

static struct seed seed_at(size_t i) {
    static const char spm[] = SPM TEXT;
    static const char level[] = JSON("null", LEVEL, LEVEL, "\"unk_token\": \"b\", \"fuse_unk\": true, ") TEXT;
    static const char meta[] = JSON("null", METASPACE("first"), METASPACE("first"), "\"unk_token\": \"b\", ") TEXT;
    static const char llama[] = JSON(LLAMA, "null", LLAMA_DECODER, "\"byte_fallback\": true, ") TEXT;
    static const char split[] = JSON("null", SPLIT, LEVEL, "\"ignore_merges\": true, ") TEXT;
    static const char steps[] = JSON(STEPS, METASPACE("always"), LLAMA_DECODER, "\"unk_token\": \"b\", ") MARKS;
    static const char levels[] = JSON("{\"type\": \"NFKD\"}", LEVELS, LEVEL, "") MARKS;
    static const char white[] =
        JSON("{\"type\": \"NFC\"}", WHITE, "{\"type\": \"Fuse\"}", "\"unk_token\": \"b\", ") MARKS;
#define SEED(s) \
    { s, sizeof s - 1 }
    static const struct seed seeds[] = {SEED(spm),   SEED(level),  SEED(meta),  SEED(llama), SEED(split),
                                        SEED(steps), SEED(levels), SEED(white), {NULL, 0}};
    return seeds[i];
}

static void check_text(const hola_tokenizer *t, const char *text, int64_t len) {
    int32_t *ids, *more;
    char *back;
    int64_t n, k, back_len;
    MUST(hola_tokenizer_encode(t, text, len, 1, &ids, &n) == HOLA_OK);
    for (int64_t i = 0; i < n; i++) MUST(ids[i] >= 0 && ids[i] < hola_tokenizer_size(t));
    MUST(hola_tokenizer_encode(t, text, len, 2, &more, &k) == HOLA_OK); /* the words are in the cache now */
    MUST(n == k && (n == 0 || memcmp(ids, more, (size_t)n * sizeof *ids) == 0));
    MUST(hola_tokenizer_decode(t, ids, n, &back, &back_len) == HOLA_OK);
    MUST(back[back_len] == 0);
    free(ids), free(more), free(back);
}

static void check_file(const char *data, int64_t size, const char *text, int64_t len, struct hl_caches *caches) {
    bool json = size > 0 && data[0] == '{';
    hola_tokenizer *t = calloc(1, sizeof *t);
    hola_status s;
    MUST(t);
    t->bos = t->eos = t->bpe.unknown = -1;
    memset(t->bpe.byte, 0xff, sizeof t->bpe.byte);
    s = json ? hl_tokenizer_json_read(t, data, size, "f") : hl_spm_read(t, data, size, "f");
    t->size = t->bpe.size;
    if (s == HOLA_OK) {
        t->caches = caches;
        check_text(t, text, len);
        check_text(t, data, size);
        t->caches = NULL;
    } else MUST(hola_last_error()[0] && s != HOLA_ENOMEM);
    hola_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *file = (const char *)data;
    const char *text = size > 0 && data[0] == '{' ? memchr(data, 0, size) : NULL;
    struct hl_caches *caches;
    hola_tokenizer *plain;
    int64_t n = text ? text - file : (int64_t)size;
    MUST(hl_caches_new(&caches) == HOLA_OK);
    if (!text) /* a model has NULs of its own: the last one counts */
        for (n = (int64_t)size; n > 0 && file[n - 1];) n--;
    if (!text && n > 0) n--;
    check_file(file, n, file + n, (int64_t)size - n, caches);
    MUST(hola_tokenizer_load(&plain, "byte") == HOLA_OK);
    check_text(plain, file, (int64_t)size);
    hola_tokenizer_free(plain);
    hl_caches_free(caches);
    return 0;
}
