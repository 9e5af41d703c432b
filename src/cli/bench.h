/* bench.h -- the parts of `hola bench`: the machine's limits and the model's times. */
#ifndef HOLA_CLI_BENCH_H
#define HOLA_CLI_BENCH_H
#include "cli/cli.h"
#include "model/model.h"

double bench_median(double *x, int n); /* sorts x */

/* Measured limits of this machine. 0: not measured (no BLAS in this build). */
struct bench_limits {
    double blas;      /* flop/s of the installed BLAS's best product, all threads */
    double own;       /* flop/s of our own at the same sizes; on a device, of its library in bf16 */
    double bandwidth; /* bytes/s read from memory, all threads; on a device, read plus written by a copy */
};
/* Keeps the better of the previous and a new measurement, because the machine may be shared. */
void bench_limits_measure(struct bench_limits *l, struct hl_backend *backend);

/* Seconds per op since the start; meanwhile the model runs on the timed op table. */
struct bench_op {
    const char *name;
    double seconds;
    int64_t calls;
};
enum { BENCH_OPS = 64 };
int bench_ops_start(hola_model *m); /* returns the number of ops */
void bench_ops_stop(hola_model *m, struct bench_op out[BENCH_OPS]);

struct bench_training {
    int64_t batch, seq; /* sequences and their length */
    hola_precision precision;
    bool recompute;
};
struct bench_train {
    double seconds, forward, backward, update; /* of one step; medians */
    int64_t predicted, used;                   /* bytes, of the model alone; 0: not known, as beside another model */
    double tokens_per_s, flops;                /* flops: 6 x parameters x tokens / seconds */
    double ratio;                              /* the other model's step time over this one's, paired; 0: no other
                                                * model */
};
/* Alternates steps of the models (other may be NULL) so that both see the same machine load. */
hola_status bench_train(hola_model *m, hola_model *other, const struct bench_training *how, int repeats,
                        struct bench_train *out);

struct bench_infer {
    double seconds, tokens_per_s, flops, bytes; /* per pass or per token; flops and bytes per second */
    double ratio;
};
hola_status bench_prefill(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out);
hola_status bench_decode(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out);
/* logits: copy all of them to the host, else only the top ids */
hola_status bench_decode_batch(hola_model *m, int64_t n, int64_t tokens, bool logits, int repeats,
                               struct bench_infer *out);
/* Time per token and resident memory of one session after 1,000 and after `tokens` tokens. */
struct bench_context {
    int64_t tokens, resident, session;
    double seconds_per_token, bytes; /* bytes: moved per second */
};
hola_status bench_contexts(hola_model *m, int64_t tokens, struct bench_context out[2]);

#endif
