/* generate.h -- the parts of hola generate: prompts, the text as it comes, one sequence, many, a conversation. */
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
    int backend, dtype;
    bool json, interactive, chat, no_bos, ignore_eos, quiet;
};

/* What all sequences share. */
struct gen {
    const struct gen_opts *o;
    hola_model *model;
    hola_tokenizer *t;        /* NULL: ids in, ids out */
    hola_tokenizer *more;     /* the same for a text that goes on: no space is put in front */
    struct hl_template *look; /* --chat: what is put around a question; NULL: prompts are as they are */
    int32_t eos;              /* -1: none */
    int64_t vocab;
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

/* ---- generate_run.c ---- */

enum gen_end { GEN_GOES_ON, GEN_LENGTH, GEN_EOS, GEN_STOP, GEN_INTERRUPT };
struct gen_run {
    const struct gen *g;
    hola_session *session;
    hola_history *history;    /* or NULL */
    struct gen_prompt source; /* ids to draft from that the session does not know any more; lent */
    bool show;                /* the text goes to standard output as it comes */
    struct hl_text text;      /* all of it, with --json and --prompts */
    int64_t prompt_tokens, n, room;
    int64_t earlier;  /* written in the turns before */
    int32_t *ids;     /* chosen; with --json and --prompts all of them, else the last */
    json_t *logprobs; /* with --logits */
    bool unfed;       /* the last one has not been fed */
    bool no_memory;   /* for the ids or the text */
    bool closed;      /* the template's token that ends an answer came */
    enum gen_end end;
    double prefill, decode; /* seconds */
};
int gen_run_begin(struct gen_run *r, const struct gen *g, hola_session *s);
void gen_run_free(struct gen_run *r);
/* Feeds the prompt; an interrupt leaves the rest unfed. */
int gen_run_prompt(struct gen_run *r, const struct gen_prompt *p);
/* Takes up a token that was chosen, before it is fed, and text that is certain. false: no memory. */
bool gen_run_note(struct gen_run *r, int32_t id);
bool gen_run_text(struct gen_run *r, const char *text, int64_t len);
int gen_run_all(struct gen_run *r, bool show); /* until the end */
json_t *gen_run_json(const struct gen_run *r);
void gen_run_report(const struct gen_run *r); /* on stderr */

/* ---- generate_batch.c, generate_chat.c ---- */

int gen_batch(const struct gen *g, hola_session *base, const struct gen_prompt *p, int64_t n);
int gen_chat(struct gen_run *r, const struct gen_prompt *first);

#endif
