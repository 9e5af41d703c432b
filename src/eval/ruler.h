/* ruler.h -- RULER's 13 tasks at any length, with any tokenizer: the samples that lm-evaluation-harness or NVIDIA's
 * scripts would generate, and their scores.
 *
 * A task is generated as its tool does in a fresh process: the seed, then the search for the haystack size, then all
 * samples, from one stream of random numbers (pyrandom.h). With the tool's tokenizer and data, the samples are
 * byte-identical. Where a tool would loop forever because one step of haystack does not fit the length, the haystack
 * shrinks line by line instead; lengths too small even for that are refused.
 *
 * Data, a directory (each task needs what is said; ruler_vt and ruler_fwe need nothing):
 *   wonderwords/VERSION/{noun,adjective,verb}list.txt   niah_*, ruler_cwe: the lists of the Python
 *                                                       package wonderwords (VERSION: opts.words)
 *   PaulGrahamEssays.json                               {"text": ..}; the essay haystacks: niah_single_2, _3,
 *                                                       niah_multikey_1, niah_multivalue, niah_multiquery
 *   nltk_data/tokenizers/punkt_tab/english/             NLTK's sentence boundaries, for the same tasks
 *   squad.json                                          SQuAD 2.0's dev-v2.0.json; or ../squad/dev-v2.0.json
 *   hotpotqa.json                                       HotpotQA, hotpot_dev_distractor_v1.json
 *   english_words.json                                  NVIDIA's ruler_cwe beyond about 100k tokens alone */
#ifndef HL_RULER_H
#define HL_RULER_H
#include "tokenizer/tokenizer.h"

enum hl_ruler_task {
    HL_NIAH_SINGLE_1,
    HL_NIAH_SINGLE_2,
    HL_NIAH_SINGLE_3,
    HL_NIAH_MULTIKEY_1,
    HL_NIAH_MULTIKEY_2,
    HL_NIAH_MULTIKEY_3,
    HL_NIAH_MULTIVALUE,
    HL_NIAH_MULTIQUERY,
    HL_RULER_VT,
    HL_RULER_CWE,
    HL_RULER_FWE,
    HL_RULER_QA_SQUAD,
    HL_RULER_QA_HOTPOT,
    HL_RULER_TASKS
};
const char *hl_ruler_name(enum hl_ruler_task t); /* "niah_single_1", .., "ruler_qa_hotpot" */
/* True, and sets *t, if it is the name of a task, including NVIDIA's vt, cwe, fwe, qa_1 and qa_2. */
bool hl_ruler_find(const char *name, enum hl_ruler_task *t);

enum hl_ruler_variant { HL_RULER_HARNESS, HL_RULER_NVIDIA };

struct hl_ruler_opts {
    enum hl_ruler_task task;
    enum hl_ruler_variant variant;
    int64_t length;  /* tokens, including generated ones */
    int64_t samples; /* 0: 100, the first of the tool's 500 */
    int64_t seed;    /* negative: the tool's own (harness: random 0, numpy 1234; NVIDIA: 42) */
    int bos;         /* tokens that the harness's tokenizer prepends; negative: 1 if there is a BOS */
    int threads;     /* of the tokenizer; 0: one per processor */
    const hola_tokenizer *tokenizer;
    const char *data;  /* the directory above */
    const char *words; /* NULL: "master" */
};
struct hl_ruler_opts hl_ruler_default(void); /* niah_single_1 at 4096, 100 samples; no tokenizer, no data */

struct hl_ruler_sample {
    char *input;
    char *prefix; /* begins the answer. The prompt is input followed by prefix */
    char **refs;
    int64_t n_refs;
    int64_t length;     /* tokens as counted by the tool, including those reserved for the answer; 0: unknown */
    int64_t max_length; /* the target length */
};
struct hl_ruler_set {
    struct hl_ruler_sample *sample;
    int64_t n;
    int64_t units; /* lines, words or documents of haystack that the search found */
};
/* *out is yours, also after a failure: hl_ruler_free() it. */
hola_status hl_ruler_make(const struct hl_ruler_opts *o, struct hl_ruler_set *out);
/* Samples that either tool wrote, one JSON object per line: "input", "outputs", "gen_prefix" or "answer_prefix",
 * "max_length" and "length" where they are; also inside "doc", where --log_samples puts them. The task determines the
 * separator of input and gen_prefix; lines with a different "task" are skipped. */
hola_status hl_ruler_read(const char *path, enum hl_ruler_task task, struct hl_ruler_set *out);
/* Appends lines in this format: "task", "index", "input", "answer_prefix", "outputs", "length", "max_length". */
hola_status hl_ruler_write(enum hl_ruler_task task, const struct hl_ruler_set *s, struct hl_text *out);
void hl_ruler_limit(struct hl_ruler_set *s, int64_t n); /* keeps the first n of each max_length */
void hl_ruler_free(struct hl_ruler_set *s);             /* zeroed ones too */

int64_t hl_ruler_max_new_tokens(enum hl_ruler_task t); /* generation is greedy and ends only at EOS */
/* 0 to 1: the fraction of references contained in the prediction, ignoring case; for NVIDIA's qa tasks 1 if it contains
 * any. pred: len bytes, as decoded. */
double hl_ruler_score(enum hl_ruler_task t, enum hl_ruler_variant v, const char *pred, int64_t len,
                      const struct hl_ruler_sample *s);

#endif
