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
    double epochs;         /* that the steps make */
    double flop_per_token; /* 6 x trained parameters of the matrices, the usual measure */
    double peak;           /* flop/s of one large product here; 0: not measured */
};
struct hl_train_report {
    void *ctx;
    void (*begin)(void *ctx, const struct hl_train_begin *b);
    void (*step)(void *ctx, const struct hl_metric *m, double seconds); /* seconds: of this step */
    void (*note)(void *ctx, const char *line); /* something went wrong that does not end the run */
};

struct hl_train {
    const char *data, *out;
    const char *from;   /* NULL, or the model directory to start with */
    hola_config config; /* the model's; that of `from` where there is one */
    int64_t steps;      /* 0: one epoch */
    int64_t batch_tokens, micro_tokens, seq_len;
    bool documents;              /* packed rows with resets; else runs across documents */
    struct hl_schedule schedule; /* its steps come from here; warmup, decay -1: default */
    hola_train_opts adamw;
    uint64_t seed;
    int64_t eval_every, eval_tokens;      /* 0: default */
    int64_t save_every, keep, plot_every; /* plot_every 0: with the evaluations */
    bool restart;
    hola_options model;
    const struct hl_dist *dist;
    const volatile sig_atomic_t *stop; /* set: finish the step, save, return */
    struct hl_train_report report;
};

struct hl_train_result {
    int64_t step;
    bool stopped;
    bool speaks; /* of several ranks that failed, the one whose message counts */
};
hola_status hl_train_run(const struct hl_train *o, struct hl_train_result *r);

/* peak.c: flop/s of a 1024^3 product with the model's threads, some tens of milliseconds; 0: unknown. */
double hl_gemm_peak(hola_model *m);

#endif
