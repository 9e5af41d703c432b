/* prepare.h -- text, or a synthetic task, to a directory of token shards that dataset.h reads.
 *
 * DIR/train_000000.bin.., DIR/val_000000.bin.., the tokenizer's file, and DIR/dataset.json, which says until
 * the very end that the rest is not complete. Whatever fails, no part of a dataset is left behind; a killed
 * run leaves one that the loader refuses and the next run replaces. The result depends on the input, the
 * options and the seed, not on the number of threads. */
#ifndef HL_PREPARE_H
#define HL_PREPARE_H
#include "data/chat.h"
#include "data/mqar.h"
#include "data/recall.h"
#include "data/source.h"

enum hl_split { HL_SPLIT_TRAIN, HL_SPLIT_VAL, HL_SPLITS };

/* All of the run so far; both splits together. */
struct hl_prepare_counts {
    int64_t documents, bytes, tokens; /* bytes of text */
    int64_t done, all;                /* bytes of files (samples) read, and of all; all 0: unknown */
};

enum hl_generate { HL_GENERATE_NOTHING, HL_GENERATE_RECALL, HL_GENERATE_MQAR };

struct hl_prepare_opts {
    const char *out;
    const char *tokenizer; /* directory, file or "byte" */
    const char *const *inputs;
    int64_t n_inputs;
    struct hl_source_opts source;
    const char *field;  /* of a line of JSON */
    bool chat;          /* lines of JSON are conversations (chat.h) */
    bool loss_on_all;   /* ... and all of them is trained, not the answers alone */
    const char *look;   /* chat template: "none", or as hl_template_open takes it */
    bool skip_bad;      /* malformed lines are counted, not an error */
    bool no_bos;        /* nothing in front of documents */
    bool force;         /* replace a dataset that is there */
    double val;         /* chance of a document to be one of val; where that chose none, val is the last document
                          or, if it is large, its last tokens. 0: no val */
    int64_t val_tokens; /* val has at most this many; 0: any number */
    int64_t shard_tokens;
    uint64_t seed;
    int threads;               /* 0: one per processor */
    enum hl_generate generate; /* instead of tokenizer and inputs */
    int64_t samples;
    struct hl_recall recall;
    struct hl_mqar mqar;
    void (*progress)(void *ctx, const struct hl_prepare_counts *c); /* NULL: none; after every batch */
    void *ctx;
};

struct hl_prepare_result {
    struct hl_prepare_counts all;
    int64_t empty, bad; /* documents without text, lines that were skipped */
    int64_t vocab;
    int32_t bos; /* -1: none in front of documents */
    double seconds;
    char look[256];              /* chat template, "": no conversations */
    bool guessed;                /* ... because neither the options nor the tokenizer's files name one */
    int64_t answers, unanswered; /* that are trained; conversations left out because they have none */
    struct {
        int64_t documents, bytes, tokens, shards, trained;
    } split[HL_SPLITS];
};

hola_status hl_prepare(const struct hl_prepare_opts *o, struct hl_prepare_result *r);

#endif
