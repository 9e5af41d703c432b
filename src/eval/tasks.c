/* tasks.c -- the list of tasks, their files, and the profiles. */
#define _POSIX_C_SOURCE 200809L
#include "eval/tasks.h"
#include "core/file.h"
#include <stdlib.h>
#include <unistd.h>

#define NAME(name, text) text,
const char *const hl_profile_names[] = {HL_PROFILE_LIST(NAME) NULL};
#undef NAME
const char *const hl_bos_names[] = {"auto", "never", "always", "double", NULL};
const char *const hl_retrieval_names[] = {"auto", "harness-v0", "harness-v1", "jrt", NULL};
const char *const hl_precision_names[] = {"fp32", "bf16-harness", NULL};

enum hl_bos hl_eval_bos(enum hl_bos asked, enum hl_profile p, bool add_bos_token) {
    if (asked != HL_BOS_AUTO) return asked;
    /* from v0.4.9.2 on as the tokenizer does; before, none */
    return (p == HL_PROFILE_HEAD || p == HL_PROFILE_V0_4_12) && add_bos_token ? HL_BOS_DOUBLE : HL_BOS_NEVER;
}

enum hl_retrieval hl_eval_retrieval(enum hl_retrieval asked, enum hl_profile p) {
    if (asked != HL_RETRIEVAL_AUTO) return asked;
    return p == HL_PROFILE_HEAD || p == HL_PROFILE_BASED ? HL_RETRIEVAL_V1 : HL_RETRIEVAL_V0;
}

#define RULER(name, about) \
    { name, about, NULL, NULL, 1, hl_ruler_task_make, hl_ruler_tally, NULL, true, hl_ruler_task_dump }

static const struct hl_task tasks[] = {
    {"wikitext", "perplexity of WikiText's test articles",
     "wikitext/wiki.test.raw|wikitext/wikitext_document_level.test.jsonl",
     "EleutherAI/wikitext_document_level, wikitext-2-raw-v1, test (or wiki.test.raw of WikiText-2)", 2,
     hl_wikitext_make, hl_perplexity_tally, "word_perplexity", false, NULL},
    {"lambada_openai", "the last word of a passage, OpenAI's form", "lambada/lambada_test.jsonl",
     "EleutherAI/lambada_openai, default, test", 1, hl_lambada_make, hl_lambada_tally, "acc", false, NULL},
    {"lambada_standard", "the last word of a passage, lower-cased and tokenised",
     "lambada/lambada_test_plain_text.txt|lambada/lambada_standard_test.jsonl", "cimec/lambada, test", 1,
     hl_lambada_make, hl_lambada_tally, "acc", false, NULL},
    {"arc_easy", "science questions of schools", "arc_easy/test.jsonl", "allenai/ai2_arc, ARC-Easy, test", 1,
     hl_arc_make, hl_choice_norm_tally, "acc", false, NULL},
    {"arc_challenge", "those that simple methods fail at", "arc_challenge/test.jsonl",
     "allenai/ai2_arc, ARC-Challenge, test", 1, hl_arc_make, hl_choice_norm_tally, "acc_norm", false, NULL},
    {"hellaswag", "how a scene goes on",
     "hellaswag/validation.jsonl|hellaswag/hellaswag_val.jsonl|hellaswag/hellaswag_val.klosax.jsonl",
     "Rowan/hellaswag, validation", 1, hl_hellaswag_make, hl_choice_norm_tally, "acc_norm", false, NULL},
    {"piqa", "everyday physics", "piqa/validation.jsonl", "baber/piqa, validation", 1, hl_piqa_make,
     hl_choice_norm_tally, "acc", false, NULL},
    {"winogrande", "what a pronoun stands for", "winogrande/validation.jsonl",
     "allenai/winogrande, winogrande_xl, validation", 1, hl_winogrande_make, hl_choice_tally, "acc", false, NULL},
    {"boolq", "questions of yes or no about a passage", "boolq/validation.jsonl", "aps/super_glue, boolq, validation",
     2, hl_boolq_make, hl_choice_tally, "acc", false, NULL},
    {"sciq", "science questions with a passage", "sciq/test.jsonl|sciq/validation.jsonl", "allenai/sciq, test", 1,
     hl_sciq_make, hl_choice_norm_tally, "acc", false, NULL},
    {"openbookqa", "elementary science", "openbookqa/test.jsonl", "allenai/openbookqa, main, test", 1,
     hl_openbookqa_make, hl_choice_norm_tally, "acc", false, NULL},
    {"fda", "fields of medical device summaries", "fda/validation.jsonl|fda/fda_rebuilt.jsonl",
     "hazyresearch/based-fda, validation", 1, hl_extract_make, hl_extract_tally, "contains", false, NULL},
    {"swde", "fields of web pages", "swde/validation.jsonl|swde/swde_rebuilt.jsonl",
     "hazyresearch/based-swde-v2, validation", 1, hl_extract_make, hl_extract_tally, "contains", false, NULL},
    {"squad_completion", "answers about a passage, reworded to be completed",
     "squad_completion/validation.jsonl|squad/squad_completion.jsonl", "hazyresearch/based-squad, validation", 1,
     hl_extract_make, hl_extract_tally, "contains", false, NULL},
    {"squad_rebuilt", "answers about a passage", "squad/dev-v1.1.json", "SQuAD 1.1, dev-v1.1.json", 1, hl_squad_make,
     hl_extract_tally, "contains", false, NULL},
    {"text", "perplexity of the file that --text names", NULL, NULL, 1, hl_text_make, hl_perplexity_tally,
     "token_perplexity", false, NULL},
    RULER("niah_single_1", "RULER: a number in a line that repeats"),
    RULER("niah_single_2", "RULER: a number in essays"),
    RULER("niah_single_3", "RULER: a uuid in essays"),
    RULER("niah_multikey_1", "RULER: one of four numbers in essays"),
    RULER("niah_multikey_2", "RULER: a number among lines like it"),
    RULER("niah_multikey_3", "RULER: a uuid among lines like it"),
    RULER("niah_multivalue", "RULER: four numbers of one key"),
    RULER("niah_multiquery", "RULER: four numbers of four keys"),
    RULER("ruler_vt", "RULER: variables that have a value"),
    RULER("ruler_cwe", "RULER: the most common words"),
    RULER("ruler_fwe", "RULER: the most frequent coded words"),
    RULER("ruler_qa_squad", "RULER: a question about one of many passages, SQuAD"),
    RULER("ruler_qa_hotpot", "RULER: a question about one of many passages, HotpotQA"),
    {"passkey", "digits of a pass key in filler, at five depths", NULL, NULL, 1, hl_passkey_make, hl_passkey_tally,
     "acc", true, NULL},
    {"multikey", "digits of one of 1 to 16 pass keys", NULL, NULL, 1, hl_multikey_make, hl_multikey_tally, "keys_16",
     true, NULL},
    {"mqar", "multi-query associative recall, for models of it", NULL, NULL, 1, hl_mqar_task_make, hl_mqar_tally, "acc",
     true, NULL},
};

const struct hl_task *hl_task_at(int64_t i) { return i < (int64_t)(sizeof tasks / sizeof *tasks) ? &tasks[i] : NULL; }

const struct hl_task *hl_task_find(const char *name) {
    for (int64_t i = 0; hl_task_at(i); i++)
        if (strcmp(hl_task_at(i)->name, name) == 0) return hl_task_at(i);
    return NULL;
}

/* The first of the task's files that exists. */
static hola_status find_file(const struct hl_task *t, const char *data, char **out) {
    char *missing = NULL;
    for (const char *name = t->files; name;) {
        const size_t n = strcspn(name, "|");
        char *one = strndup(name, n), *path = one ? hl_path_join(data, one) : NULL;
        free(one);
        if (!path) return free(missing), hl_fail(HOLA_ENOMEM, "%s: no memory for a name", t->name);
        if (access(path, F_OK) == 0) return free(missing), *out = path, HOLA_OK;
        if (missing) free(path);
        else missing = path;
        name = name[n] ? name + n + 1 : NULL;
    }
    hl_fail(HOLA_EIO, "%s: not found; %s needs it: %s", missing, t->name, t->dataset);
    free(missing);
    return HOLA_EIO;
}

static const char *split_of(const char *file) {
    return strstr(file, "valid") || strstr(file, "_val") || strstr(file, "dev-") ? "validation"
           : strstr(file, "test")                                                ? "test"
                                                                                 : NULL;
}

hola_status hl_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out) {
    hola_status st = HOLA_OK;
    *out = (struct hl_set){.version = t->version};
    if (t->files && !o->data) st = hl_fail(HOLA_EINVAL, "%s: --data DIR is required", t->name);
    else if (t->files) st = find_file(t, o->data, &out->file);
    else if (o->text && t->make == hl_text_make) {
        out->file = strdup(o->text);
        if (!out->file) st = hl_fail(HOLA_ENOMEM, "%s: no memory for its name", o->text);
    } else if (t->make == hl_text_make) st = hl_fail(HOLA_EINVAL, "text: --text FILE is required");
    if (st == HOLA_OK && out->file) st = hl_set_hash(out);
    if (st == HOLA_OK && t->files) out->split = split_of(strrchr(out->file, '/'));
    if (st == HOLA_OK) st = t->make(t, o, out);
    if (st == HOLA_OK && out->docs == 0)
        st = hl_fail(HOLA_EFORMAT, "%s: no documents in it", out->file ? out->file : t->name);
    if (st != HOLA_OK) hl_set_free(out);
    return st;
}
