/* generate.h -- the parts of hola generate: prompts, the text as it comes, one sequence, many, a conversation. */
#ifndef HOLA_CLI_GENERATE_H
#define HOLA_CLI_GENERATE_H
#include "cli/args.h"
#include "cli/cli.h"
#include "core/text.h"
#include <stdio.h>

struct gen_opts {
    const char *model, *prompt, *file, *ids, *prompts, *tokenizer, *save, *load, *in_prefix, *in_suffix;
    struct arg_list stop;
    int64_t predict, seed, threads, parallel, logits;
    hola_sampling sampling;
    int backend, dtype;
    bool json, interactive, no_bos, ignore_eos, quiet;
};

/* What all sequences share. */
struct gen {
    const struct gen_opts *o;
    hola_model *model;
    hola_tokenizer *t;    /* NULL: ids in, ids out */
    hola_tokenizer *more; /* the same for a text that goes on: no space is put in front */
    int32_t eos;          /* -1: none */
    int64_t vocab, piece; /* piece: tokens fed between two looks at Ctrl-C */
};

/* Ctrl-C: the first one is noted, the second ends the process. */
void gen_catch_signals(void);
bool gen_interrupted(void);
void gen_forget_interrupt(void);

/* ---- generate_prompt.c ---- */

struct gen_prompt {
    int32_t *ids; /* malloced */
    int64_t n;
};
/* g->t and g->more; ids alone do without. Prints what is wrong, like the others here. */
int gen_open_tokenizer(struct gen *g);
void gen_close_tokenizer(struct gen *g);
/* The ids of a text; first: it begins the sequence, so BOS comes before it. */
int gen_encode(const struct gen *g, const char *text, int64_t len, bool first, const char *what,
               struct gen_prompt *out);
/* The prompt that the options name: -p, -f, --ids or a pipe. */
int gen_read_prompt(const struct gen *g, bool first, struct gen_prompt *out);
/* All lines of --prompts; *out is malloced, as is each one's ids. */
int gen_read_prompts(const struct gen *g, bool first, struct gen_prompt **out, int64_t *n);

/* ---- generate_text.c ---- */

/* Bytes come out when they can no longer be part of a stop string or of a character that is not complete. */
struct gen_text {
    const struct gen *g;
    int32_t before[8]; /* the last ids: what a piece decodes to may depend on them */
    int n_before;
    struct hl_text text; /* from the first byte that is kept */
    int64_t out;         /* bytes of it that are written */
    bool keep;           /* all of it, not only what is not out yet */
    bool stopped, any;
};
void gen_text_begin(struct gen_text *t, const struct gen *g, const hola_session *s, bool keep);
/* false: out of memory, or an id without a text; printed. */
bool gen_text_add(struct gen_text *t, int32_t id);
/* What may go out now; end: nothing more comes. Writes it to f, or only counts it (NULL). */
void gen_text_flush(struct gen_text *t, bool end, FILE *f);
/* As a JSON string: bytes that are no UTF-8 become U+FFFD. */
json_t *gen_text_json(const char *data, int64_t len);

/* ---- generate_run.c ---- */

enum gen_end { GEN_GOES_ON, GEN_LENGTH, GEN_EOS, GEN_STOP, GEN_INTERRUPT };
struct gen_run {
    const struct gen *g;
    hola_session *session;
    hola_history *history; /* or NULL */
    float *logits;         /* room for the vocabulary */
    struct gen_text text;
    int64_t prompt_tokens, n, room;
    int64_t earlier;  /* written in the turns before */
    int32_t *ids;     /* sampled; with --json all of them, else the last */
    json_t *logprobs; /* with --logits */
    bool pending;     /* the last one has not been fed */
    bool chosen;      /* the next one is known: `next` */
    int32_t next;
    enum gen_end end;
    double prefill, decode; /* seconds */
};
int gen_run_begin(struct gen_run *r, const struct gen *g, hola_session *s);
void gen_run_free(struct gen_run *r);
/* Feeds the prompt in pieces, with logits at its end; an interrupt leaves the rest unfed. */
int gen_run_prompt(struct gen_run *r, const struct gen_prompt *p);
/* Chooses the next token and takes it up; r->end says whether another one may follow. Feeds nothing. */
int gen_run_choose(struct gen_run *r);
int gen_run_feed(struct gen_run *r);           /* the token that was chosen */
int gen_run_all(struct gen_run *r, FILE *out); /* until the end, streaming to out (NULL: nowhere) */
json_t *gen_run_json(const struct gen_run *r);
void gen_run_report(const struct gen_run *r); /* on stderr */

/* ---- generate_batch.c, generate_chat.c ---- */

int gen_batch(const struct gen *g, hola_session *base, const struct gen_prompt *p, int64_t n);
int gen_chat(struct gen_run *r, const struct gen_prompt *first);

#endif
