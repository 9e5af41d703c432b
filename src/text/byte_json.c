/* byte_json.c -- see byte_json.h. */
#include "text/byte_json.h"
#include "core/file.h"
#include "text/tokenizer_json.h"
#include <stdlib.h>
#include <string.h>

static json_t *special(int id, const char *text) {
    return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0,
                     "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
}

static json_t *bytes(void) {
    json_t *vocab = json_object();
    for (int b = 0; vocab && b < 256; b++) {
        const uint32_t c = hl_char_of_byte((unsigned char)b); /* below 0x800: at most two bytes */
        const char two[3] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)), 0}, one[2] = {(char)c, 0};
        const char *text = c >= 0x80 ? two : one;
        if (json_object_set_new(vocab, text, json_integer(b)) != 0) return json_decref(vocab), NULL;
    }
    return vocab;
}

hola_status hl_byte_json_write(const char *path) {
    /* no pattern: the text is one word, as nothing is ever merged */
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 0);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", bytes(), "merges");
    json_t *root = json_pack("{s:s, s:n, s:n, s:[o, o], s:n, s:o, s:n, s:O, s:o}", "version", "1.0",
                             "truncation", "padding", "added_tokens", special(256, "<|begin_of_text|>"),
                             special(257, "<|end_of_text|>"), "normalizer", "pre_tokenizer", level,
                             "post_processor", "decoder", level, "model", model);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    hola_status s =
        text ? hl_write_file(path, text, (int64_t)strlen(text)) : hl_fail(HOLA_ENOMEM, "%s: no memory", path);
    free(text);
    json_decref(root);
    return s;
}
