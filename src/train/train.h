/* train.h -- a training run from token shards to checkpoints: the loop behind `hola train`.
 *
 * The same options in the same directory resume the run, with bitwise identical results. The library does not print; it
 * reports through callbacks. */
#ifndef HL_TRAIN_H
#define HL_TRAIN_H
#include "train/dist.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include <signal.h>

struct hl_train_begin {
    int64_t steps, step; /* total; already done */
    int64_t parameters, train_tokens, val_tokens, tokens_per_step;
    int64_t trained;       /* trained targets per epoch of conversations; -1: plain text, all are trained */
    int64_t slices;        /* micro-batches per step on this rank */
    int64_t memory, left;  /* predicted memory of the run, in bytes; free before it began, 0: unknown */
    bool device;           /* ... refers to a device, not the host */
    double epochs;         /* epochs covered by the steps */
    double flop_per_token; /* 6 x trained matrix parameters, the usual estimate */
};

/* What the run is doing between two calls of `step`. */
enum hl_train_phase { HL_TRAIN_STEP, HL_TRAIN_VALIDATION, HL_TRAIN_BENCHMARKS, HL_TRAIN_SAVING };
struct hl_train_work {
    enum hl_train_phase phase;
    int64_t step;     /* current step, from 1 */
    int64_t done, of; /* slices */
};

/* Benchmark results, filled by hl_train.benchmark. */
enum { HL_TRAIN_FIGURES = 128 };
struct hl_train_figures {
    int n;
    struct {
        char name[64]; /* "task/metric" */
        double value;
    } at[HL_TRAIN_FIGURES];
};

struct hl_train_step {
    double seconds;                        /* of this step */
    double peak;                           /* flop/s of one large matrix product on this machine; 0: not measured */
    const struct hl_train_figures *figure; /* NULL: none at this step */
};
struct hl_train_report {
    void *ctx;
    void (*begin)(void *ctx, const struct hl_train_begin *b);
    void (*work)(void *ctx, const struct hl_train_work *w); /* called before the first slice and after each */
    void (*step)(void *ctx, const struct hl_metric *m, const struct hl_train_step *x);
    void (*note)(void *ctx, const char *line); /* a warning that does not end the run */
};

/* How the exact memory is trained, if differently from the rest. */
struct hl_train_memory {
    bool only;      /* freeze everything else */
    double rate;    /* factor on the learning rate of the rest; 0: 1 */
    bool own_decay; /* use weight decay `decay` instead of that of the rest */
    double decay;
    const char *layers; /* NULL, or "1,3": the only layers with a memory; the gates of other layers stay closed */
};

enum { HL_SLICE_TOKENS = 131072 };
struct hl_train {
    const char *data, *out;
    const char *from;   /* NULL, or the model directory to start from */
    hola_config config; /* the model's; that of `from`, possibly with an exact memory added, if given */
    struct hl_train_memory memory;
    int64_t steps; /* 0: `epochs` */
    double epochs; /* passes over the data; 0: one, without the last rows that do not fill a step */
    int64_t batch_tokens, micro_tokens, seq_len; /* micro_tokens 0: up to HL_SLICE_TOKENS, what fits into memory */
    bool documents;              /* packed rows with state resets (always so for conversations); else rows run across
                                  * documents */
    struct hl_schedule schedule; /* its steps are set from here; warmup, decay -1: default */
    hola_train_opts adamw;
    uint64_t seed;
    int64_t eval_every, eval_tokens;      /* 0: default */
    int64_t save_every, keep, plot_every; /* plot_every 0: with every evaluation */
    bool restart, tensorboard;
    double diverge;       /* stop if the loss is this many nats above the lowest mean (watch.h); 0: never */
    int64_t max_memory;   /* memory limit of the run in bytes; 0: what is free */
    const char *settings; /* NULL, or the text of settings.json */
    hola_options model;
    const struct hl_dist *dist;
    const volatile sig_atomic_t *stop; /* when set: finish the slice, save the last whole step, return */
    /* NULL, or benchmarks of the current model, run with every validation. HOLA_OK and *stopped: interrupted by a stop
     * request. */
    hola_status (*benchmark)(void *ctx, hola_model *m, struct hl_train_figures *out, bool *stopped);
    void *benchmark_ctx;
    struct hl_train_report report;
};

struct hl_train_result {
    int64_t step, skipped;
    bool stopped;
    double best_val, low_val; /* of the checkpoint `best`; lowest of the run; NaN: none */
    int64_t best_step, low_step;
    int64_t latest; /* step of the last checkpoint; -1: none */
    bool speaks;    /* if several ranks failed: this one's message is the one to print */
};
hola_status hl_train_run(const struct hl_train *o, struct hl_train_result *r);

/* gemm_peak.c: flop/s of a 1024^3 product with the model's threads; takes some tens of milliseconds; 0: unknown. */
double hl_gemm_peak(hola_model *m);

#endif
