/* ask_document.c -- read a document once, then ask any number of questions: ask_document MODEL FILE QUESTION... A
 *session is small (a few megabytes for any document length) and cheap to clone: every question continues a clone of the
 *session that has read the document, which is never read again. */
#include <hola.h>
#include <stdio.h>
#include <stdlib.h>

static bool show_progress(void *ctx, int64_t done, int64_t total) {
    (void)ctx;
    fprintf(stderr, "\rread %lld of %lld tokens", (long long)done, (long long)total);
    return true; /* return false to cancel */
}

static bool print(void *ctx, int32_t id, const char *text, int64_t len) {
    (void)ctx, (void)id;
    return fwrite(text, 1, (size_t)len, stdout) == (size_t)len;
}

static hola_status ask(const hola_session *read, const hola_tokenizer *t, const char *question) {
    static const char *const stop[] = {"\n"};
    const hola_sampling greedy = {sizeof greedy, 1, 0, 0, 1, 0, 0}; /* temperature 0 */
    hola_generate_opts how = HOLA_GENERATE_INIT;
    hola_session *s = NULL;
    char text[1024];
    how.max_tokens = 64, how.sampling = &greedy, how.on_token = print;
    how.stop = stop, how.n_stop = 1;
    snprintf(text, sizeof text, "\nQuestion: %s\nAnswer:", question);
    hola_status status = hola_session_clone(&s, read);
    if (status == HOLA_OK) status = hola_session_feed_text(s, t, text, -1, NULL);
    printf("%s:", question);
    if (status == HOLA_OK) status = hola_generate(s, t, &how, NULL, NULL);
    putchar('\n');
    hola_session_free(s);
    return status;
}

static char *read_file(const char *path, int64_t *len) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (*len = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)*len);
    if (text && fread(text, 1, (size_t)*len, f) != (size_t)*len) free(text), text = NULL;
    if (f) fclose(f);
    return text;
}

int main(int argc, char **argv) {
    if (argc < 4) return fprintf(stderr, "usage: ask_document MODEL FILE QUESTION...\n"), 2;
    int64_t len = 0, tokens = 0;
    hola_model *model = NULL;
    hola_tokenizer *tokenizer = NULL;
    hola_session *read = NULL;
    char *document = read_file(argv[2], &len);
    if (!document) return fprintf(stderr, "ask_document: %s: empty, or cannot be read\n", argv[2]), 1;

    hola_status s = hola_model_load(&model, argv[1], NULL);
    if (s == HOLA_OK) s = hola_tokenizer_load(&tokenizer, argv[1]);
    if (s == HOLA_OK) s = hola_session_new(&read, model);
    hola_session_on_progress(read, show_progress, NULL);
    if (s == HOLA_OK) s = hola_session_feed_text(read, tokenizer, document, len, &tokens);
    if (s == HOLA_OK)
        fprintf(stderr, "\r%lld tokens in a session of %lld bytes\n", (long long)tokens,
                (long long)hola_session_bytes(read));
    for (int i = 3; i < argc && s == HOLA_OK; i++) s = ask(read, tokenizer, argv[i]);
    if (s != HOLA_OK) fprintf(stderr, "ask_document: %s\n", hola_last_error());

    free(document);
    hola_session_free(read);
    hola_tokenizer_free(tokenizer);
    hola_model_free(model);
    return s == HOLA_OK ? 0 : 1;
}
