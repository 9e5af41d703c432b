/* byte_json.c -- see byte_json.h. */
#include "tokenizer/byte_json.h"
#include "core/file.h"
#include "tokenizer/tokenizer_json.h"
#include <stdlib.h>
#include <string.h>

char *hl_byte_bpe_text(const char *bytes, int64_t n) {
    char *out = malloc(2 * (size_t)n + 1), *to = out; /* the characters are below 0x800 */
    for (int64_t i = 0; out && i < n; i++) {
        const uint32_t c = hl_char_of_byte((unsigned char)bytes[i]);
        if (c >= 0x80) *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    if (out) *to = 0;
    return out;
}

static json_t *special(int id, const char *text) {
    return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0, "lstrip", 0,
                     "rstrip", 0, "normalized", 0, "special", 1);
}

hola_status hl_byte_bpe_write(const char *path, const struct hl_byte_bpe *t) {
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                              "use_regex", t->words);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", t->vocab, "merges", t->merges);
    json_t *root = json_pack("{s:s, s:n, s:n, s:[o, o], s:n, s:o, s:n, s:O, s:o}", "version", "1.0", "truncation",
                             "padding", "added_tokens", special(t->bos_id, t->bos), special(t->eos_id, t->eos),
                             "normalizer", "pre_tokenizer", level, "post_processor", "decoder", level, "model", model);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    hola_status s = text ? hl_write_file(path, text, (int64_t)strlen(text))
                         : hl_fail(HOLA_ENOMEM, "%s: no memory for the tokenizer", path);
    free(text);
    json_decref(root);
    return s;
}

static json_t *all_bytes(void) {
    json_t *vocab = json_object();
    for (int b = 0; vocab && b < 256; b++) {
        const char byte = (char)b;
        char *text = hl_byte_bpe_text(&byte, 1);
        const bool bad = !text || json_object_set_new(vocab, text, json_integer(b)) != 0;
        free(text);
        if (bad) return json_decref(vocab), NULL;
    }
    return vocab;
}

hola_status hl_byte_json_write(const char *path) {
    /* without a pattern the text is one word and nothing is merged */
    const struct hl_byte_bpe t = {.bos = "<|begin_of_text|>",
                                  .eos = "<|end_of_text|>",
                                  .bos_id = 256,
                                  .eos_id = 257,
                                  .vocab = all_bytes(),
                                  .merges = json_array()};
    return hl_byte_bpe_write(path, &t);
}
