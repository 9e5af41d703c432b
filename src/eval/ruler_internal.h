/* ruler_internal.h -- shared by the RULER files: lists of spans, drafts of samples, the tasks. */
#ifndef HL_RULER_INTERNAL_H
#define HL_RULER_INTERNAL_H
#include "eval/pyrandom.h"
#include "eval/pystr.h"
#include "eval/ruler.h"
#include <jansson.h>

/* ---- lists of spans, and files (ruler_text.c) ---- */

struct hl_ruler_span {
    const char *text;
    int64_t n;
    int32_t value;
};
struct hl_spans {
    struct hl_ruler_span *at;
    int64_t n, cap;
};
hola_status hl_spans_add(struct hl_spans *v, const char *text, int64_t n, int32_t value);
int hl_span_compare(const void *a, const void *b); /* by bytes, then length: Python's order of str */
void hl_spans_sort(struct hl_spans *v, bool unique);
const struct hl_ruler_span *hl_spans_find(const struct hl_spans *v, const char *text, int64_t n); /* sorted; NULL: no */
/* The path of a data file; if it is missing, one line that names its source. free() *path. */
hola_status hl_ruler_file(const char *dir, const char *name, const char *source, char **path);
/* JSON of any type. json_decref() it. */
hola_status hl_ruler_json(const char *dir, const char *name, const char *source, json_t **out);

/* ---- sentences (ruler_punkt.c) ---- */

struct hl_punkt;
hola_status hl_punkt_new(struct hl_punkt **out, const char *dir);
void hl_punkt_free(struct hl_punkt *p);
/* The sentences of a text whose only white space is single spaces, none at its ends: as nltk.sent_tokenize
 * (3.9) cuts it. *out is emptied first. */
hola_status hl_punkt_split(const struct hl_punkt *p, const char *text, int64_t n, struct hl_spans *out);

/* ---- words (ruler_words.c) ---- */

struct hl_lexicon;
/* niah: the sorted set of "adjective-noun"; cwe: that of nouns, adjectives and verbs */
hola_status hl_lexicon_new(struct hl_lexicon **out, const struct hl_ruler_opts *o, bool pairs);
void hl_lexicon_free(struct hl_lexicon *w);
int64_t hl_lexicon_count(const struct hl_lexicon *w);
void hl_lexicon_get(const struct hl_lexicon *w, int64_t i, struct hl_text *out); /* appends it */

/* ---- a task being made ---- */

enum { HL_INNER_SEED = 42 }; /* of the harness's generators that are recreated each time */

struct hl_draft {
    struct hl_text text;       /* the counted part of a sample */
    struct hl_text head, tail; /* counted with it in the harness's search */
    int64_t cut;               /* offset of the answer's prefix in text; -1: it is `prefix` */
    struct hl_text prefix;
    char **refs;
    int64_t n_refs;
    bool failed; /* the tool would have raised an exception here */
};
void hl_draft_clear(struct hl_draft *d);
void hl_draft_free(struct hl_draft *d);
hola_status hl_draft_ref(struct hl_draft *d, const char *text, int64_t n);

struct hl_ruler_gen {
    const struct hl_ruler_opts *o;
    bool nvidia;
    int64_t length, reserve; /* tokens: of a sample, kept for its answer */
    int64_t extra;           /* counted once in addition to the text: an example */
    int64_t step, cap;       /* of the search; maximum units, 0: unlimited */
    bool cap_late;           /* the harness checks cap before it adds a step */
    int64_t probe;           /* NVIDIA: units of the first text */
    uint64_t inner_seed;
    struct hl_mt random, numpy; /* the streams of the process */
    void *state;                /* task-specific */
};
struct hl_ruler_kind {
    hola_status (*open)(struct hl_ruler_gen *g);                   /* data, and the numbers above */
    void (*close)(struct hl_ruler_gen *g);                         /* after a failed open too */
    int64_t (*least)(const struct hl_ruler_gen *g, int64_t index); /* minimum units */
    /* *d is cleared before */
    hola_status (*build)(struct hl_ruler_gen *g, int64_t units, int64_t index, bool search, struct hl_draft *d);
    hola_status (*finish)(struct hl_ruler_gen *g, struct hl_draft *d);     /* NULL: nothing to do */
    hola_status (*make)(struct hl_ruler_gen *g, struct hl_ruler_set *out); /* instead of search and build */
};
extern const struct hl_ruler_kind hl_ruler_niah, hl_ruler_vt, hl_ruler_cwe, hl_ruler_fwe, hl_ruler_qa;

/* Tokens of a, b and c (b, c: NULL where not wanted) one after the other, as the tool counts them. */
hola_status hl_ruler_count(const struct hl_ruler_gen *g, const struct hl_text *a, const struct hl_text *b,
                           const struct hl_text *c, int64_t *n);
/* The number of units that the tool finds to fit, and one sample of up to that many, in *d. */
hola_status hl_ruler_search(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, int64_t *units);
hola_status hl_ruler_draw(struct hl_ruler_gen *g, const struct hl_ruler_kind *k, int64_t units, int64_t index,
                          struct hl_draft *d, int64_t *length);
/* Moves a draft into the set. */
hola_status hl_ruler_keep(struct hl_ruler_gen *g, struct hl_draft *d, int64_t length, struct hl_ruler_set *out);
hola_status hl_ruler_too_short(const struct hl_ruler_gen *g);

#define HL_NOISE "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

#endif
