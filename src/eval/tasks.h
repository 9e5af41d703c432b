/* tasks.h -- the families of tasks; tasks.c lists them. Each function reads `path` into an empty set. */
#ifndef HL_EVAL_TASKS_H
#define HL_EVAL_TASKS_H
#include "eval/eval.h"

/* Whether the set has all requested documents. */
static inline bool hl_set_full(const struct hl_set *s, const struct hl_eval_opts *o) {
    return o->limit > 0 && s->docs >= o->limit;
}

/* wikitext.c: perplexity of texts */
hola_status hl_wikitext_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_text_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_perplexity_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
hola_status hl_wikitext_detokenize(struct hl_span page, struct hl_text *out); /* *out is empty before */
/* Adds the pages of a file of lines as documents: their words and bytes are the page's, the text is
 * detokenised. */
hola_status hl_wikitext_pages(struct hl_span file, const struct hl_eval_opts *o, struct hl_set *out);

/* lambada.c: the last word */
hola_status hl_lambada_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_lambada_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);

/* choice.c: multiple choice */
hola_status hl_arc_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_openbookqa_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_hellaswag_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_piqa_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_winogrande_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_boolq_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_sciq_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
/* acc; with norm also acc_norm */
void hl_choice_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
void hl_choice_norm_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
hola_status hl_hellaswag_clean(struct hl_span s, struct hl_text *out); /* its preprocessing of a text */

/* extract.c: extracting values from documents, by generation */
hola_status hl_extract_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
hola_status hl_squad_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_extract_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);

/* synthetic.c: generated prompts */
hola_status hl_ruler_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_ruler_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
hola_status hl_ruler_task_dump(const struct hl_task *t, const struct hl_set *s, struct hl_text *out);
hola_status hl_passkey_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_passkey_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
hola_status hl_multikey_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_multikey_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
hola_status hl_mqar_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
void hl_mqar_tally(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);

#endif
