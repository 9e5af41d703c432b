/* gguf_keys.h -- tokenizers in GGUF files. A file's keys are turned into the tokenizer.model or the tokenizer.json that
 * says the same, which the readers of these files take, and back. */
#ifndef HL_GGUF_TOKENIZER_H
#define HL_GGUF_TOKENIZER_H
#include "gguf/gguf.h"

/* Appends the keys of the tokenizer at path (a file, a directory, another GGUF file; of a directory without a tokenizer
 * none) and of the tokenizer_config.json beside it, for a model of this vocabulary. llama: as llama.cpp knows them, and what it does not know is refused; otherwise
 * a tokenizer.json goes along as it is. */
hola_status hl_gguf_put_tokenizer(struct hl_gguf_keys *k, const char *path, int64_t vocab, bool llama);

bool hl_gguf_has_tokenizer(const struct hl_gguf *g);
/* The tokenizer in a GGUF file as the content of a tokenizer file, which *name names (a constant). *out is yours, empty
 * before. HOLA_EIO: the file has none. */
hola_status hl_gguf_tokenizer(const struct hl_gguf *g, struct hl_text *out, const char **name);

/* Where a tokenizer file is to be copied, a GGUF file cannot be one: HOLA_ENOTSUP. */
hola_status hl_gguf_refuse_copy(const char *path);

/* What else goes along, as the text of a tokenizer_config.json: a chat template, and whether BOS begins a text. *out is
 * yours, NULL where both are as without one. */
hola_status hl_gguf_tokenizer_config(const struct hl_gguf *g, char **out);
hola_status hl_gguf_tokenizer_config_read(const char *path, char **out);

/* The word patterns that GGUF files know by a name (tokenizer.ggml.pre). */
struct hl_gguf_pre {
    const char *name;
    bool whole_words; /* ignore_merges */
    const char *json; /* the pre_tokenizer of a tokenizer.json */
};
extern const struct hl_gguf_pre hl_gguf_pre[];

#endif
