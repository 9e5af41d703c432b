/* eval.h -- benchmarks as lm-evaluation-harness defines them.
 *
 * A task builds a list of requests from its files; the engine answers them; the task turns the answers into metrics.
 * Three kinds of request come from the harness, the fourth is for probes made of token ids:
 *
 *   loglikelihood  sum of log p(text | context), and whether text is what greedy decoding gives
 *   rolling        sum of log p(text), in windows of max_length tokens
 *   generate       what greedy decoding gives after context
 *   ids            which of the asked next tokens are the most likely ones
 *
 * Answers do not depend on the order of requests or on what shares a pass with them. */
#ifndef HL_EVAL_H
#define HL_EVAL_H
#include "core/status.h"
#include "eval/pystr.h"

enum hl_ask { HL_ASK_LOGLIKELIHOOD, HL_ASK_ROLLING, HL_ASK_GENERATE, HL_ASK_IDS };

enum { HL_UNTIL = 8 };
struct hl_request {
    enum hl_ask kind;
    int64_t doc, choice;
    struct hl_span context, text;
    int64_t chars; /* code points of a choice, what acc_norm divides by */
    /* generate */
    const char *until[HL_UNTIL]; /* stop strings; the rest NULL */
    int64_t max_new;
    struct hl_span target; /* the text to find */
    bool early;            /* decoding ends once the output contains it, ignoring case */
    bool whole;            /* the prompt is never truncated, except with opts.truncate */
    /* ids: next[i] is predicted from ids[..i]; negative: not asked. generate: a prompt instead of context, with ids not
     * NULL and no next */
    const int32_t *ids, *next;
    int64_t n_ids;
};

struct hl_answer {
    bool done, greedy;
    double loglikelihood;
    int64_t tokens;      /* scored or generated */
    struct hl_text text; /* generated text, cut at the first stop string; yours to free */
    bool *top;           /* ids: [n_ids] */
    double score;        /* generate, ids: 0 to 1, from the tally */
};
void hl_answers_free(struct hl_answer *a, int64_t n);

struct hl_doc {
    int64_t first, n; /* range of its requests */
    int64_t gold;
    int64_t words, bytes; /* rolling */
};

/* The documents of a task, with their memory. */
struct hl_set {
    struct hl_request *request;
    struct hl_doc *doc;
    int64_t n, docs, room_n, room_docs;
    char *file;        /* source file; NULL: none */
    const char *note;  /* a note to print */
    char sha256[65];   /* of the file; empty if none */
    const char *split; /* "test", "validation"; NULL: none */
    int version;
    void *own; /* task-specific data */
    void (*own_free)(void *own);
    struct hl_block *blocks;
};
void hl_set_free(struct hl_set *s);
void *hl_set_bytes(struct hl_set *s, int64_t n); /* zeroed memory with the lifetime of the set; NULL: no memory */
struct hl_span hl_set_keep(struct hl_set *s, struct hl_span text); /* a copy; .p NULL: no memory */
hola_status hl_set_doc(struct hl_set *s, struct hl_doc **doc);     /* the next document; later requests belong to it */
hola_status hl_set_ask(struct hl_set *s, const struct hl_request *r);
hola_status hl_set_hash(struct hl_set *s); /* hashes its file into sha256 */

/* ---- figures (figures.c) ---- */

enum { HL_METRICS = 96 }; /* a dozen for each of several lengths */
struct hl_metrics {
    int64_t n; /* documents */
    int count;
    struct hl_figure {
        char name[32];
        double value, error; /* standard error; NAN: none */
        double chance;       /* expected score of guessing; NAN: none */
        /* Documents: value is sum(x) / sum(w), or exp() of it. x NULL: not known; w NULL: all 1. */
        double *x, *w;
        int64_t n;
        bool exponent;
    } metric[HL_METRICS];
};
void hl_metrics_free(struct hl_metrics *m); /* leaves *m empty */
void hl_metric_put(struct hl_metrics *m, const char *name, double value, double error);
/* The mean of x[0..n) and its standard error; x is copied. */
void hl_metric_mean(struct hl_metrics *m, const char *name, const double *x, int64_t n);
/* sum(x) / sum(w), or exp() of it, with the standard error of a ratio over documents. */
void hl_metric_ratio(struct hl_metrics *m, const char *name, const double *x, const double *w, int64_t n,
                     bool exponent);
void hl_metric_chance(struct hl_metrics *m, double chance); /* sets the chance of the last figure */

/* Compares two models' figures on the same task. McNemar's exact test if every document scores 0 or 1, else a normal
 * test on per-document differences (at least HL_LEAST_PAIRS); if documents are unknown or were weighted differently, a
 * normal test on the two standard errors. */
enum hl_test { HL_TEST_NONE, HL_TEST_MCNEMAR, HL_TEST_PAIRED, HL_TEST_UNPAIRED };
extern const char *const hl_test_names[];
enum { HL_LEAST_PAIRS = 10 };
struct hl_comparison {
    double difference; /* b - a */
    double p;          /* two-sided; NAN: no test */
    enum hl_test test;
};
struct hl_comparison hl_figure_compare(const struct hl_figure *a, const struct hl_figure *b);

/* ---- options ---- */

#define HL_PROFILE_LIST(X)         \
    X(HEAD, "harness-head")        \
    X(V0_4_8, "harness-0.4.8")     \
    X(V0_4_9_1, "harness-0.4.9.1") \
    X(V0_4_12, "harness-0.4.12")   \
    X(BASED, "based")
#define HL_PROFILE_ENUM(name, text) HL_PROFILE_##name,
enum hl_profile { HL_PROFILE_LIST(HL_PROFILE_ENUM) HL_PROFILES };
#undef HL_PROFILE_ENUM
extern const char *const hl_profile_names[]; /* NULL-terminated */

enum hl_bos { HL_BOS_AUTO, HL_BOS_NEVER, HL_BOS_ALWAYS, HL_BOS_DOUBLE };
extern const char *const hl_bos_names[];
enum hl_retrieval { HL_RETRIEVAL_AUTO, HL_RETRIEVAL_V0, HL_RETRIEVAL_V1, HL_RETRIEVAL_JRT };
extern const char *const hl_retrieval_names[];
enum hl_precision { HL_PRECISION_F32, HL_PRECISION_BF16 };
extern const char *const hl_precision_names[];

struct hl_eval_opts {
    const char *data; /* directory */
    const char *text; /* the file of the task `text` */
    int64_t limit;    /* maximum documents per task, the first ones; 0: all */
    enum hl_profile profile;
    enum hl_bos bos;             /* not HL_BOS_AUTO: hl_eval_bos() */
    enum hl_retrieval retrieval; /* likewise: hl_eval_retrieval() */
    enum hl_precision precision;
    int64_t max_length;
    int64_t length;      /* of generated prompts, in tokens; 0: the task's default */
    const char *prompts; /* RULER: reads samples from this file instead */
    bool nvidia;         /* RULER as in NVIDIA's scripts */
    int64_t seed;        /* of generated prompts; negative: the task's default */
    bool truncate;       /* truncate prompts that do not fit, instead of refusing them */
    int threads;
    const hola_tokenizer *tokenizer;
};
/* What auto means: the profile's, for a tokenizer whose tokenizer_config.json says add_bos_token. */
enum hl_bos hl_eval_bos(enum hl_bos asked, enum hl_profile p, bool add_bos_token);
enum hl_retrieval hl_eval_retrieval(enum hl_retrieval asked, enum hl_profile p);

struct hl_task {
    const char *name;
    const char *about;
    const char *files;   /* "a|b": the first of these that exists in the data directory; NULL: none needed */
    const char *dataset; /* source of the files */
    int version;
    hola_status (*make)(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);
    void (*tally)(const struct hl_task *t, const struct hl_set *s, struct hl_answer *a, struct hl_metrics *out);
    const char *main; /* the metric shown first in tables */
    bool sized;       /* prompts are generated to a length */
    /* May be NULL. Appends the generated prompts, one per line, in the format of opts.prompts */
    hola_status (*dump)(const struct hl_task *t, const struct hl_set *s, struct hl_text *out);
};
const struct hl_task *hl_task_at(int64_t i); /* NULL: no more */
const struct hl_task *hl_task_find(const char *name);
/* Builds the task's requests, including file, hash and limit. On failure *out is empty. */
hola_status hl_task_make(const struct hl_task *t, const struct hl_eval_opts *o, struct hl_set *out);

/* ---- the engine ---- */

struct hl_eval_hooks { /* each may be NULL */
    void *ctx;
    /* fraction of the work done, 0 to 1; called at the latest some tokens after an answer */
    void (*progress)(void *ctx, double part, int64_t tokens);
    /* answer i is complete */
    hola_status (*answered)(void *ctx, int64_t i, const struct hl_answer *a);
    void (*warn)(void *ctx, const char *text);
};
/* Checks that all requests can be answered with these settings: tokenises them without running the model. */
hola_status hl_eval_check(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s);
/* Answers all requests that are not done yet; answer [s->n]. */
hola_status hl_eval_run(hola_model *m, const struct hl_eval_opts *o, const struct hl_set *s, struct hl_answer *answer,
                        const struct hl_eval_hooks *hooks);

#endif
