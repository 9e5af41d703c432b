/* fuzz_jsonl.c -- any bytes as the file of a benchmark: refused with a message that names file and row, or
 * documents whose requests are whole. The first byte picks the task. */
#define _GNU_SOURCE
#define MUTATE_RUNS 5000 /* each writes a file */
#include "mutate.h"
#include "eval/tasks.h"
#include <sys/stat.h>
#include <unistd.h>

static const char *const rows[][2] = {
    {"wikitext", " = T = \n \n a ( b ) @-@ c \n = U = \n \" x \" 's \n"},
    {"lambada_openai", "{\"text\": \"a b c\"}\n\n{\"text\": \"one\"}\n"},
    {"arc_easy", "{\"id\": \"1\", \"question\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 1}\n"},
    {"arc_challenge", "{\"question\": \"q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", "
                      "\"B\"]}, \"answerKey\": \"B\"}\n"},
    {"hellaswag",
     "{\"activity_label\": \"l\", \"ctx_a\": \"a [x] b\", \"ctx_b\": \"the\", \"endings\": [\"x\", \"y\"], "
     "\"label\": \"1\"}\n"},
    {"piqa", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 0}\n"},
    {"winogrande", "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"2\"}\n"},
    {"boolq", "{\"passage\": \"p\", \"question\": \"q\", \"answer\": true}\n{\"passage\": \"p\", \"question\": \"q\", "
              "\"label\": 0}\n"},
    {"sciq", "{\"support\": \" s\", \"question\": \"q\", \"distractor1\": \"a\", \"distractor2\": \"b\", "
             "\"distractor3\": \"c\", \"correct_answer\": \"d\"}\n"},
    {"openbookqa", "{\"question_stem\": \"q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", \"B\"]}, "
                   "\"answerKey\": \" A\"}\n"},
    {"fda", "{\"text\": \"t Key:\", \"value\": \" v \", \"key\": \"key\"}\n"},
    {"squad_rebuilt", "{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{\"question\": \"q\", \"answers\": "
                      "[{\"text\": \"a\"}]}]}]}]}"},
};
enum { KINDS = sizeof rows / sizeof *rows };

static struct seed seed_at(size_t i) {
    static char text[KINDS][512];
    if (i >= KINDS) return (struct seed){NULL, 0};
    const int n = snprintf(text[i], sizeof text[i], "%c%s", (char)i, rows[i][1]);
    return (struct seed){text[i], (size_t)n};
}

static char dir[] = "/tmp/hola-fuzz-XXXXXX";
static void leave(void) { rmdir(dir); }

/* The task's first file in the directory, its folder made. */
static void place(const struct hl_task *t, char path[256]) {
    const size_t n = strcspn(t->files, "|");
    snprintf(path, 256, "%s/%.*s", dir, (int)n, t->files);
    char *slash = strrchr(path, '/');
    *slash = 0;
    mkdir(path, 0700);
    *slash = '/';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool made;
    char path[256];
    if (!made && (made = mkdtemp(dir) != NULL)) atexit(leave);
    if (!made || size < 1) return 0;
    const struct hl_task *t = hl_task_find(rows[data[0] % KINDS][0]);
    place(t, path);
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(data + 1, 1, size - 1, f) == size - 1);
    fclose(f);
    const struct hl_eval_opts o = {.data = dir, .retrieval = HL_RETRIEVAL_JRT};
    struct hl_set s;
    const hola_status st = hl_task_make(t, &o, &s);
    if (st != HOLA_OK) {
        MUST(strstr(hola_last_error(), path) && !strchr(hola_last_error(), '\n'));
        MUST(s.n == 0 && s.docs == 0 && !s.request);
    }
    for (int64_t i = 0; st == HOLA_OK && i < s.docs; i++) {
        const struct hl_doc *d = &s.doc[i];
        MUST(d->n >= 1 && d->first + d->n <= s.n && d->gold >= 0 && d->gold < (d->n > 1 ? d->n : 1));
        for (int64_t k = d->first; k < d->first + d->n; k++) MUST(s.request[k].doc == i && s.request[k].text.n >= 0);
    }
    hl_set_free(&s);
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    return 0;
}
