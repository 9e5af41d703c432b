/* gguf_pre.c -- word patterns that GGUF files name, as the pre_tokenizer of a tokenizer.json. */
#include "tokenizer/gguf_keys.h"
#include <stddef.h>

#define BYTES(regex) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" regex "}"
#define SEQUENCE(first, last) "{\"type\":\"Sequence\",\"pretokenizers\":[" first "," last "]}"
#define SPLIT(regex) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"

#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS(numbers) \
    "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" numbers "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" SPACES
#define SPACES "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* Of several names for one pattern the first is written. */
const struct hl_gguf_pre hl_gguf_pre[] = {
    {"gpt-2", false, BYTES("true")},
    {"phi-2", false, BYTES("true")},
    {"olmo", false, BYTES("true")},
    {"mpt", false, BYTES("true")},
    {"smollm", false, SEQUENCE(DIGITS, BYTES("true"))},
    {"starcoder", false, SEQUENCE(DIGITS, BYTES("true"))},
    {"refact", false, SEQUENCE(DIGITS, BYTES("true"))},
    {"command-r", false, SEQUENCE(DIGITS, BYTES("true"))},
    {"codeshell", false, SEQUENCE(DIGITS, BYTES("true"))},
    {"llama-bpe", true, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}{1,3}")), BYTES("false"))},
    {"llama3", true, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}{1,3}")), BYTES("false"))},
    {"llama-v3", true, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}{1,3}")), BYTES("false"))},
    {"dbrx", false, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}{1,3}")), BYTES("false"))},
    {"smaug-bpe", false, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}{1,3}")), BYTES("false"))},
    {"qwen2", false, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}")), BYTES("false"))},
    {"deepseek-r1-qwen", false, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}")), BYTES("false"))},
    {"stablelm2", false, SEQUENCE(SPLIT(ENDINGS WORDS("\\\\p{N}")), BYTES("false"))},
    {NULL, false, NULL},
};
