/* train.h -- a training run from token shards to checkpoints: the loop behind `hola train`.
 *
 * The same options in the same directory go on where the run stopped, to the same numbers, bit for bit. The
 * library does not print: what is worth saying goes to the report's functions. */
#ifndef HL_TRAIN_H
#define HL_TRAIN_H
#include "train/dist.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include <signal.h>

struct hl_train_begin {
    int64_t steps, step; /* of the run; done already */
    int64_t parameters, train_tokens, val_tokens, tokens_per_step;
    int64_t trained;       /* targets of an epoch of conversations; -1: text, all of it is */
    int64_t slices;        /* micro-batches of a step, on this rank */
    int64_t memory, left;  /* bytes that the run takes, predicted; free before it began, 0: not known */
    bool device;           /* ... of a device, not of the host */
    double epochs;         /* that the steps make */
    double flop_per_token; /* 6 x trained parameters of the matrices, the usual measure */
};

/* Where the run is between two calls of `step`. */
enum hl_train_phase { HL_TRAIN_STEP, HL_TRAIN_VALIDATION, HL_TRAIN_BENCHMARKS, HL_TRAIN_SAVING };
struct hl_train_work {
    enum hl_train_phase phase;
    int64_t step;     /* that is being made, from 1 */
    int64_t done, of; /* slices */
};

/* Figures of benchmarks: what hl_train.benchmark fills. */
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
    double peak;                           /* flop/s of one large product here; 0: not measured */
    const struct hl_train_figures *figure; /* NULL: none at this step */
};
struct hl_train_report {
    void *ctx;
    void (*begin)(void *ctx, const struct hl_train_begin *b);
    void (*work)(void *ctx, const struct hl_train_work *w); /* before the first slice and after each */
    void (*step)(void *ctx, const struct hl_metric *m, const struct hl_train_step *x);
    void (*note)(void *ctx, const char *line); /* what deserves attention and does not end the run */
};

/* How the exact memory is trained, where that differs from the rest. */
struct hl_train_memory {
    bool only;      /* everything else stays as it is */
    double rate;    /* times the learning rate of the others; 0: 1 */
    bool own_decay; /* weight decay `decay` instead of that of the others */
    double decay;
    const char *layers; /* NULL, or "1,3": the only layers that have one; elsewhere gates are closed for good */
};

struct hl_train {
    const char *data, *out;
    const char *from;   /* NULL, or the model directory to start with */
    hola_config config; /* the model's; that of `from`, or that with an exact memory, where there is one */
    struct hl_train_memory memory;
    int64_t steps; /* 0: `epochs` */
    double epochs; /* passes over the data; 0: one, without the last rows that fill no step */
    int64_t batch_tokens, micro_tokens, seq_len;
    bool documents;              /* packed rows with resets, as conversations always are; else runs across documents */
    struct hl_schedule schedule; /* its steps come from here; warmup, decay -1: default */
    hola_train_opts adamw;
    uint64_t seed;
    int64_t eval_every, eval_tokens;      /* 0: default */
    int64_t save_every, keep, plot_every; /* plot_every 0: with the evaluations */
    bool restart, tensorboard;
    double diverge;       /* nats above the lowest mean loss that end the run (watch.h); 0: never */
    int64_t max_memory;   /* bytes that the run may take; 0: what is free */
    const char *settings; /* NULL, or the text of settings.json */
    hola_options model;
    const struct hl_dist *dist;
    const volatile sig_atomic_t *stop; /* set: finish the slice, save the last whole step, return */
    /* NULL, or benchmarks of the model as it is, with every validation. HOLA_OK and *stopped: it was asked to stop. */
    hola_status (*benchmark)(void *ctx, hola_model *m, struct hl_train_figures *out, bool *stopped);
    void *benchmark_ctx;
    struct hl_train_report report;
};

struct hl_train_result {
    int64_t step, skipped;
    bool stopped;
    double best_val, low_val; /* of the checkpoint `best`; the lowest of the run; NaN: none */
    int64_t best_step, low_step;
    int64_t latest; /* step of the last checkpoint; -1: none */
    bool speaks;    /* of several ranks that failed, the one whose message counts */
};
hola_status hl_train_run(const struct hl_train *o, struct hl_train_result *r);

/* gemm_peak.c: flop/s of a 1024^3 product with the model's threads, some tens of milliseconds; 0: unknown. */
double hl_gemm_peak(hola_model *m);

#endif
