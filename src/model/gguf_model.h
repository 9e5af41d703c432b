/* gguf_model.h -- a model in a GGUF file: config and tensors. docs/format.md describes the contents. */
#ifndef HL_GGUF_MODEL_H
#define HL_GGUF_MODEL_H
#include "gguf/gguf.h"
#include "model/model.h"
#include "model/safetensors.h"

/* Reads the config; *text is the equivalent config.json, to be freed by the caller. */
hola_status hl_gguf_config(const struct hl_gguf *g, hola_config *cfg, char **text);
hola_status hl_gguf_config_read(hola_config *cfg, const char *path);
/* The same with the tensors under our names. Takes ownership of g and closes it on failure too. */
hola_status hl_gguf_model(struct hl_stfile **f, hola_config *cfg, char **text, struct hl_gguf *g);
hola_status hl_gguf_model_open(struct hl_stfile **f, hola_config *cfg, char **text, const char *path);

/* Writes a model of type transformer as architecture "llama", others as "hola". keys: further keys to write, such as
 * the tokenizer; a "llama" file without one says so. */
hola_status hl_gguf_model_save(const hola_model *m, const char *path, hola_dtype dtype,
                               const struct hl_gguf_keys *keys);

#endif
