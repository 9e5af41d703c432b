/* engine.h -- inside the engine: scoring (score.c) and generation (generate.c), driven by run.c. */
#ifndef HL_ENGINE_H
#define HL_ENGINE_H
#include "eval/prompt.h"

struct hl_engine {
    hola_model *model;
    const struct hl_eval_opts *opts;
    const struct hl_set *set;
    struct hl_answer *answer;
    const struct hl_eval_hooks *hooks;
    int64_t work, done; /* tokens: of all requests, and so far */
};
hola_status hl_engine_score(struct hl_engine *e, struct hl_items *items);
hola_status hl_engine_generate(struct hl_engine *e);
/* After tokens were worked on, and after an answer came in. */
void hl_engine_progress(struct hl_engine *e, int64_t tokens);
hola_status hl_engine_answered(struct hl_engine *e, int64_t i);
void hl_engine_warn(const struct hl_engine *e, const char *text);
/* Maximum number of states held at a time. */
int64_t hl_engine_room(const hola_model *m, int64_t most_host, int64_t most_device);

#endif
