/* generate.h -- the parts of hola generate: prompts, streamed text, one sequence, many, a conversation. */
#ifndef HOLA_CLI_GENERATE_H
#define HOLA_CLI_GENERATE_H
#include "cli/args.h"
#include "chat/template.h"
#include "cli/cli.h"
#include "core/text.h"
#include <stdio.h>

struct gen_opts {
    const char *model, *prompt, *file, *ids, *prompts, *tokenizer, *save, *load, *in_prefix, *in_suffix, *chat_template;
    struct arg_list stop;
    int64_t predict, seed, threads, parallel, logits, lookup;
    hola_sampling sampling;
    int backend, dtype, products;
    bool json, interactive, chat, no_bos, ignore_eos, quiet;
};

/* Shared by all sequences. */
struct gen {
    const struct gen_opts *o;
    hola_model *model;
    hola_tokenizer *t;        /* NULL: ids in, ids out */
    hola_tokenizer *more;     /* tokenizer for continuing a text: adds no leading space */
    struct hl_template *look; /* --chat: the template; NULL: raw prompts */
    int32_t eos;              /* -1: none */
    int64_t vocab;
};

/* Ctrl-C: the first is recorded, the second ends the process. */
void gen_catch_signals(void);
bool gen_interrupted(void);
void gen_forget_interrupt(void);

/* ---- generate_prompt.c ---- */

struct gen_prompt {
    int32_t *ids; /* malloced */
    int64_t n;
};
/* Opens g->t and g->more; not needed for ids. Prints errors, as do the others here. */
int gen_open_tokenizer(struct gen *g);
void gen_close_tokenizer(struct gen *g);
/* The ids of a text; first: it begins the sequence, so BOS comes first. */
int gen_encode(const struct gen *g, const char *text, int64_t len, bool first, const char *what,
               struct gen_prompt *out);
/* The prompt given by the options: -p, -f, --ids or a pipe. */
int gen_read_prompt(const struct gen *g, bool first, struct gen_prompt *out);
/* All lines of --prompts; *out and each one's ids are malloced. */
int gen_read_prompts(const struct gen *g, bool first, struct gen_prompt **out, int64_t *n);

/* ---- generate_run.c ---- */

enum gen_end { GEN_GOES_ON, GEN_LENGTH, GEN_EOS, GEN_STOP, GEN_INTERRUPT };
struct gen_run {
    const struct gen *g;
    hola_session *session;
    hola_history *history;    /* or NULL */
    struct gen_prompt source; /* ids to draft from that the session no longer holds; borrowed */
    bool show;                /* stream the text to standard output */
    struct hl_text text;      /* the whole text, with --json and --prompts */
    int64_t prompt_tokens, n, room;
    int64_t earlier;  /* generated in earlier turns */
    int32_t *ids;     /* sampled: with --json and --prompts all, else the last */
    json_t *logprobs; /* with --logits */
    bool unfed;       /* the last one has not been fed */
    bool no_memory;   /* out of memory for the ids or the text */
    bool closed;      /* the template's end-of-answer token was sampled */
    enum gen_end end;
    double prefill, decode; /* seconds */
};
int gen_run_begin(struct gen_run *r, const struct gen *g, hola_session *s);
void gen_run_free(struct gen_run *r);
/* Feeds the prompt; an interrupt stops it. */
int gen_run_prompt(struct gen_run *r, const struct gen_prompt *p);
/* Records a sampled token, before it is fed, and text that is final. false: out of memory. */
bool gen_run_note(struct gen_run *r, int32_t id);
bool gen_run_text(struct gen_run *r, const char *text, int64_t len);
int gen_run_all(struct gen_run *r, bool show); /* until the end */
json_t *gen_run_json(const struct gen_run *r);
void gen_run_report(const struct gen_run *r); /* on stderr */

/* ---- generate_batch.c, generate_chat.c ---- */

int gen_batch(const struct gen *g, hola_session *base, const struct gen_prompt *p, int64_t n);
int gen_chat(struct gen_run *r, const struct gen_prompt *first);

#endif
