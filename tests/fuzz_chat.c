/* fuzz_chat.c -- any bytes as a line of conversations: refused with one line that names file and line, or a lesson whose
 * tokens are the tokenizer's and of which nothing before the first answer is trained. */
#include "mutate.h"
#include "data/chat.h"

static const char *const lines[] = {
    ("{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\\u0000c\"}, "
     "{\"role\": \"assistant\", \"content\": \"d\", \"weight\": 1}]}"),
    "{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"x\"}], \"weight\": 0}]}",
    "{\"prompt\": \"Q <|im_end|>\", \"completion\": \"A {eos}\"}",
    "{\"messages\": [{\"role\": \"tool\", \"content\": null}]}",
    "{\"messages\": []}",
    "{\"messages\": {\"role\": 5}, \"weight\": 0.5}",
};
static struct seed seed_at(size_t i) {
    if (i >= sizeof lines / sizeof *lines) return (struct seed){NULL, 0};
    return (struct seed){lines[i], strlen(lines[i])};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {NULL, "plain", "chatml", "llama2"};
    static hola_tokenizer *t;
    static struct hl_template *look[4];
    bool guessed;
    if (!t) MUST(hola_tokenizer_load(&t, "byte") == HOLA_OK);
    for (int k = 0; k < 4; k++) {
        const struct hl_record r = {
            .text = (char *)(uintptr_t)data, .len = (int64_t)size, .name = "f", .line = 7, .json = true};
        struct hl_lesson l;
        int64_t bytes = -1, trained = 0;
        if (k > 0 && !look[k]) MUST(hl_template_open(&look[k], names[k], ".", t, &guessed) == HOLA_OK);
        const struct hl_chat c = {.tokenizer = t, .look = look[k], .bos = size % 2, .all = size % 3 == 0};
        const hola_status s = hl_chat_decode(&c, &r, &l, &bytes);
        if (s != HOLA_OK) {
            MUST(s == HOLA_EFORMAT && strncmp(hola_last_error(), "f: line 7: ", 11) == 0);
            MUST(!strchr(hola_last_error(), '\n') && !l.ids.data && !l.trained);
            continue;
        }
        MUST(bytes >= 0 && l.answers >= 0);
        for (int64_t i = 0; i < l.ids.n; i++) {
            MUST(l.ids.data[i] >= 0 && l.ids.data[i] < hola_tokenizer_size(t) && l.trained[i] <= 1);
            trained += l.trained[i];
        }
        MUST((trained > 0) == (l.answers > 0));
        hl_lesson_free(&l);
    }
    return 0;
}
