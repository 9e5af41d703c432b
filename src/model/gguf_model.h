/* gguf_model.h -- a model in a GGUF file: its config and its tensors. docs/format.md says what the file holds. */
#ifndef HL_GGUF_MODEL_H
#define HL_GGUF_MODEL_H
#include "gguf/gguf.h"
#include "model/model.h"
#include "model/safetensors.h"

/* The config in a file, and *text, what its config.json would be; yours to free. */
hola_status hl_gguf_config(const struct hl_gguf *g, hola_config *cfg, char **text);
hola_status hl_gguf_config_read(hola_config *cfg, const char *path);
/* The same with the tensors under our names. g is taken over, and closed on failure too. */
hola_status hl_gguf_model(struct hl_stfile **f, hola_config *cfg, char **text, struct hl_gguf *g);
hola_status hl_gguf_model_open(struct hl_stfile **f, hola_config *cfg, char **text, const char *path);

/* Writes a model of type transformer as the architecture "llama", others as "hola". keys: what the file is to hold
 * besides, the tokenizer; a file without one of "llama" says so. */
hola_status hl_gguf_model_save(const hola_model *m, const char *path, hola_dtype dtype,
                               const struct hl_gguf_keys *keys);

#endif
