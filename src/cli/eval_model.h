/* eval_model.h -- a model under evaluation: weights, tokenizer, hash, and settings derived from them. */
#ifndef HOLA_CLI_EVAL_MODEL_H
#define HOLA_CLI_EVAL_MODEL_H
#include "cli/eval.h"

struct eval_loaded {
    hola_model *model;
    hola_tokenizer *tokenizer;
};
/* Fills *m except for its results. Close it even after a failure. */
hola_status eval_model_open(struct eval_loaded *l, const struct eval_opts *o, struct eval_model *m);
void eval_model_close(struct eval_loaded *l);
/* The BOS setting of DIR/tokenizer_config.json; true if it has none. */
hola_status eval_adds_bos(const char *dir, bool *out);

#endif
