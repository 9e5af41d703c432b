/* prepare.h -- converts text, or a synthetic task, to a directory of token shards for dataset.h.
 *
 * DIR/train_000000.bin.., DIR/val_000000.bin.., the tokenizer's file, and DIR/dataset.json, which marks the dataset as
 * incomplete until the very end. An error leaves no part of a dataset behind; a killed run leaves one that the loader
 * refuses and the next run replaces. The result depends on the input, the options and the seed, not on the number of
 * threads. */
#ifndef HL_PREPARE_H
#define HL_PREPARE_H
#include "data/chat.h"
#include "data/mqar.h"
#include "data/recall.h"
#include "data/source.h"

enum hl_split { HL_SPLIT_TRAIN, HL_SPLIT_VAL, HL_SPLITS };

/* Totals so far, over both splits. */
struct hl_prepare_counts {
    int64_t documents, bytes, tokens; /* bytes of text */
    int64_t done, all;                /* bytes of files (samples) read, and in total; all 0: unknown */
};

enum hl_generate { HL_GENERATE_NOTHING, HL_GENERATE_RECALL, HL_GENERATE_MQAR };

struct hl_prepare_opts {
    const char *out;
    const char *tokenizer; /* directory, file or "byte" */
    const char *const *inputs;
    int64_t n_inputs;
    struct hl_source_opts source;
    const char *field;  /* field of a JSON line */
    bool chat;          /* JSON lines are conversations (chat.h) */
    bool loss_on_all;   /* ... trained on every token, not only the answers */
    const char *look;   /* chat template: "none", or an argument of hl_template_open */
    bool skip_bad;      /* count malformed lines instead of failing */
    bool no_bos;        /* do not start documents with BOS */
    bool force;         /* replace an existing dataset */
    double val;         /* probability that a document goes to val; if none did, val is the last document or,
                         * if that is large, its last tokens. 0: no val */
    int64_t val_tokens; /* at most this many tokens in val; 0: no limit */
    int64_t shard_tokens;
    uint64_t seed;
    int threads;               /* 0: one per processor */
    enum hl_generate generate; /* instead of tokenizer and inputs */
    int64_t samples;
    struct hl_recall recall;
    struct hl_mqar mqar;
    void (*progress)(void *ctx, const struct hl_prepare_counts *c); /* called after every batch; NULL: none */
    void *ctx;
};

struct hl_prepare_result {
    struct hl_prepare_counts all;
    int64_t empty, bad; /* documents without text; skipped lines */
    int64_t vocab;
    int32_t bos; /* -1: documents do not start with one */
    double seconds;
    char look[256];              /* chat template; "": no conversations */
    bool guessed;                /* ... chosen because neither the options nor the tokenizer's files name one */
    int64_t answers, unanswered; /* trained answers; conversations left out because they have none */
    struct {
        int64_t documents, bytes, tokens, shards, trained;
    } split[HL_SPLITS];
};

hola_status hl_prepare(const struct hl_prepare_opts *o, struct hl_prepare_result *r);

#endif
