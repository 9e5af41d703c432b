/* train.c -- train a small model on a text, from C: train TEXT OUT [STEPS]
 *
 * Bytes are the tokens, so no tokenizer has to be trained first. For large data use `hola train`, which adds
 * checkpoints, validation and multi-node training. */
#include <hola.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROW = 128, ROWS = 4 }; /* a step: 4 rows of 128 tokens */

static char *read_file(const char *path, int64_t *len) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (*len = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)*len);
    if (text && fread(text, 1, (size_t)*len, f) != (size_t)*len) free(text), text = NULL;
    if (f) fclose(f);
    return text;
}

static hola_status tiny_config(hola_config *c) {
    hola_status s = hola_config_preset(c, "46m", HOLA_TYPE_HOLA);
    c->hidden_size = 64, c->intermediate_size = 128, c->num_hidden_layers = 2;
    c->num_heads = c->num_v_heads = 2, c->head_dim = c->head_v_dim = 32;
    c->vocab_size = 258, c->bos_token_id = 256, c->eos_token_id = 257; /* the tokenizer "byte" */
    return s == HOLA_OK ? hola_config_check(c) : s;
}

static hola_status run(hola_trainer *t, const int32_t *ids, int64_t n, int64_t steps) {
    static const int64_t starts[ROWS] = {0, ROW, 2 * ROW, 3 * ROW}; /* every row starts from an empty state */
    hola_status s = HOLA_OK;
    for (int64_t step = 0; step < steps && s == HOLA_OK; step++) {
        const int64_t first = step * (ROW * ROWS) % (n - ROW * ROWS + 1);
        double loss = 0, norm = 0;
        int64_t targets = 0;
        s = hola_trainer_accumulate(t, ids + first, ROW * ROWS, starts, ROWS, 1.0 / (ROWS * (ROW - 1)), &loss,
                                    &targets);
        if (s == HOLA_OK) s = hola_trainer_update(t, 3e-3, &norm);
        if (s == HOLA_OK && (step % 10 == 0 || step == steps - 1))
            printf("step %lld  loss %.3f  gradient %.2f\n", (long long)step, loss / (double)targets, norm);
    }
    return s;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: train TEXT OUT [STEPS]\n"), 2;
    const long long steps = argc > 3 ? atoll(argv[3]) : 200;
    int64_t len = 0, n = 0;
    int32_t *ids = NULL;
    hola_config config;
    hola_model *model = NULL;
    hola_tokenizer *bytes = NULL;
    hola_trainer *trainer = NULL;
    char *text = read_file(argv[1], &len);
    if (!text || len < ROW * ROWS)
        return fprintf(stderr, "train: %s: cannot be read, or has fewer than %d bytes\n", argv[1], ROW * ROWS), 1;

    hola_status s = tiny_config(&config);
    if (s == HOLA_OK) s = hola_tokenizer_load(&bytes, "byte");
    if (s == HOLA_OK) s = hola_tokenizer_encode(bytes, text, len, 0, &ids, &n);
    if (s == HOLA_OK) s = hola_model_new(&model, &config, 1, NULL);
    if (s == HOLA_OK) s = hola_trainer_new(&trainer, model, NULL);
    if (s == HOLA_OK) s = run(trainer, ids, n, steps);
    hola_trainer_free(trainer); /* the model keeps the trained weights */
    if (s == HOLA_OK) s = hola_model_save(model, argv[2], HOLA_F32);
    if (s == HOLA_OK) printf("%s: hola generate -m %s --tokenizer byte -p ...\n", argv[2], argv[2]);
    else fprintf(stderr, "train: %s\n", hola_last_error());

    hola_free(ids);
    free(text);
    hola_tokenizer_free(bytes);
    hola_model_free(model);
    return s == HOLA_OK ? 0 : 1;
}
