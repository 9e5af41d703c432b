/* params_case.h -- the small model of the tests of tensors and files. */
#ifndef HL_PARAMS_CASE_H
#define HL_PARAMS_CASE_H
#include "check.h"
#include "model/config.h"
#include "model/params.h"

/* A small model: 2 layers, d 32, 2 heads of 16, I 64, vocabulary 61, tied. */
static inline hola_config small(hola_model_type type) {
    hola_config c;
    hl_config_defaults(&c, type);
    c.hidden_size = 32;
    c.num_hidden_layers = 2;
    c.num_heads = c.num_v_heads = c.num_kv_heads = 2;
    c.head_dim = c.head_v_dim = 16;
    c.intermediate_size = 64;
    c.vocab_size = 61;
    c.tie_word_embeddings = true;
    return c;
}

static inline real *block_new(const struct hl_params *p) { return check_new(p->total); }

#endif
