/* eval_model.h -- a model that is evaluated: its weights, tokenizer, hash, and the settings that follow from
 * it. */
#ifndef HOLA_CLI_EVAL_MODEL_H
#define HOLA_CLI_EVAL_MODEL_H
#include "cli/eval.h"

struct eval_loaded {
    hola_model *model;
    hola_tokenizer *tokenizer;
};
/* Fills *m without its results. Close it in any case. */
hola_status eval_model_open(struct eval_loaded *l, const struct eval_opts *o, struct eval_model *m);
void eval_model_close(struct eval_loaded *l);
/* What DIR/tokenizer_config.json says about BOS; true where it says nothing. */
hola_status eval_adds_bos(const char *dir, bool *out);

#endif
