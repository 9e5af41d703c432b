/* many_sessions.c -- several texts at once, as in a server: every step feeds one token of each and samples the next, in
 * one pass. many_sessions MODEL PROMPT... */
#include <hola.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 32 };

static hola_status step_all(hola_session **session, int n, int32_t (*ids)[TOKENS], int32_t *next) {
    const hola_sampling sampling = HOLA_SAMPLING_INIT;
    hola_status s = HOLA_OK;
    for (int i = 0; i < n && s == HOLA_OK; i++) { /* the first token is sampled from the prompt's logits */
        hola_session_seed(session[i], (uint64_t)i);
        s = hola_session_sample(session[i], &sampling, &next[i]);
    }
    for (int k = 0; k < TOKENS && s == HOLA_OK; k++) {
        for (int i = 0; i < n; i++) ids[i][k] = next[i];
        s = hola_session_step_sample(session, n, next, &sampling, next);
    }
    return s;
}

static hola_status print_all(const hola_tokenizer *t, int n, int32_t (*ids)[TOKENS]) {
    hola_status s = HOLA_OK;
    for (int i = 0; i < n && s == HOLA_OK; i++) {
        char *text;
        int64_t len;
        s = hola_tokenizer_decode(t, ids[i], TOKENS, &text, &len);
        if (s == HOLA_OK) printf("%d: %.*s\n", i + 1, (int)len, text);
        hola_free(text);
    }
    return s;
}

int main(int argc, char **argv) {
    const int n = argc - 2;
    if (n < 1) return fprintf(stderr, "usage: many_sessions MODEL PROMPT...\n"), 2;
    hola_model *model = NULL;
    hola_tokenizer *tokenizer = NULL;
    hola_session **session = calloc((size_t)n, sizeof *session);
    int32_t(*ids)[TOKENS] = calloc((size_t)n, sizeof *ids), *next = calloc((size_t)n, sizeof *next);
    if (!session || !ids || !next) return fprintf(stderr, "many_sessions: no memory\n"), 1;

    hola_status s = hola_model_load(&model, argv[1], NULL);
    if (s == HOLA_OK) s = hola_tokenizer_load(&tokenizer, argv[1]);
    for (int i = 0; i < n && s == HOLA_OK; i++) {
        s = hola_session_new(&session[i], model);
        if (s == HOLA_OK) s = hola_session_feed_text(session[i], tokenizer, argv[2 + i], -1, NULL);
    }
    if (s == HOLA_OK) s = step_all(session, n, ids, next);
    if (s == HOLA_OK) s = print_all(tokenizer, n, ids);
    if (s != HOLA_OK) fprintf(stderr, "many_sessions: %s\n", hola_last_error());

    for (int i = 0; i < n; i++) hola_session_free(session[i]);
    free(session), free(ids), free(next);
    hola_tokenizer_free(tokenizer);
    hola_model_free(model);
    return s == HOLA_OK ? 0 : 1;
}
