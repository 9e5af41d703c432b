/* generate.c -- continue a prompt, printing the text as it is generated: generate MODEL [PROMPT]
 *
 *     cc generate.c $(pkg-config --cflags --libs hola) -o generate */
#include <hola.h>
#include <stdio.h>

static bool print(void *ctx, int32_t id, const char *text, int64_t len) {
    (void)ctx, (void)id;
    return fwrite(text, 1, (size_t)len, stdout) == (size_t)len && fflush(stdout) == 0; /* return false to stop */
}

int main(int argc, char **argv) {
    const char *prompt = argc > 2 ? argv[2] : "Once upon a time";
    hola_options where = HOLA_OPTIONS_INIT;
    hola_generate_opts how = HOLA_GENERATE_INIT;
    hola_model *model = NULL;
    hola_tokenizer *tokenizer = NULL;
    hola_session *session = NULL;
    hola_status s = HOLA_EINVAL;
    if (argc < 2) return fprintf(stderr, "usage: generate MODEL [PROMPT]\n"), 2;

    where.backend = "auto"; /* a GPU if there is one */
    how.max_tokens = 100;
    how.on_token = print;
    if ((s = hola_model_load(&model, argv[1], &where)) == HOLA_OK &&
        (s = hola_tokenizer_load(&tokenizer, argv[1])) == HOLA_OK &&
        (s = hola_session_new(&session, model)) == HOLA_OK &&
        (s = hola_session_feed_text(session, tokenizer, prompt, -1, NULL)) == HOLA_OK)
        s = hola_generate(session, tokenizer, &how, NULL, NULL);
    if (s == HOLA_OK) putchar('\n');
    else fprintf(stderr, "generate: %s\n", hola_last_error());

    hola_session_free(session);
    hola_tokenizer_free(tokenizer);
    hola_model_free(model);
    return s == HOLA_OK ? 0 : 1;
}
