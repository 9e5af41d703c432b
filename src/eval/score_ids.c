/* score_ids.c -- hola_model_score: the engine of hola eval for sequences of ids. */
#include "eval/eval.h"
#include "model/model.h"
#include <stdlib.h>

static hola_status add(struct hl_set *set, const int32_t *ids, int64_t n, int64_t asked) {
    struct hl_request r = {.kind = HL_ASK_IDS, .ids = ids, .n_ids = n - 1};
    struct hl_doc *doc;
    int32_t *next = hl_set_bytes(set, n * (int64_t)sizeof *next);
    if (!next) return hl_fail(HOLA_ENOMEM, "score: no memory for %lld ids", (long long)n);
    for (int64_t i = 0; i + 1 < n; i++) next[i] = i + 1 < n - asked ? -1 : ids[i + 1];
    r.next = next;
    const hola_status s = hl_set_doc(set, &doc);
    return s == HOLA_OK ? hl_set_ask(set, &r) : s;
}

hola_status hola_model_score(hola_model *m, const int32_t *ids, const int64_t *starts, const int64_t *asked, int64_t n,
                             double *logprobs, bool *greedy) {
    struct hl_eval_opts opts = {.bos = HL_BOS_NEVER};
    struct hl_set set = {0};
    hola_status s = HOLA_OK;
    HL_NEED(m, "the model");
    HL_NEED(ids, "ids");
    HL_NEED(starts, "starts");
    HL_NEED(asked, "asked");
    HL_NEED(logprobs, "logprobs");
    HL_NEED(greedy, "greedy");
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) {
        const int64_t len = starts[i + 1] - starts[i];
        if (asked[i] < 1 || asked[i] >= len)
            s = hl_fail(HOLA_EINVAL, "score: sequence %lld: %lld of %lld ids are asked for", (long long)i,
                        (long long)asked[i], (long long)len);
        if (s == HOLA_OK) s = hl_model_check_ids(m, ids + starts[i], len);
        if (s == HOLA_OK) s = add(&set, ids + starts[i], len, asked[i]);
    }
    struct hl_answer *a = s == HOLA_OK ? calloc((size_t)n + 1, sizeof *a) : NULL;
    if (s == HOLA_OK && !a) s = hl_fail(HOLA_ENOMEM, "score: no memory for %lld answers", (long long)n);
    if (s == HOLA_OK) s = hl_eval_run(m, &opts, &set, a, NULL);
    for (int64_t i = 0; s == HOLA_OK && i < n; i++) logprobs[i] = a[i].loglikelihood, greedy[i] = a[i].greedy;
    if (a) hl_answers_free(a, n);
    hl_set_free(&set);
    return s;
}
