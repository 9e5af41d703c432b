/* bench.h -- the parts of `hola bench`: the machine's limits and the model's times. */
#ifndef HOLA_CLI_BENCH_H
#define HOLA_CLI_BENCH_H
#include "cli/cli.h"
#include "model/model.h"

double bench_median(double *x, int n); /* sorts x */

/* What this machine can do, measured here and now. 0: not measured (no BLAS in this build). */
struct bench_limits {
    double blas;      /* flop/s of the best product the installed BLAS makes, on all threads */
    double own;       /* flop/s of ours at the same sizes; on a device that of its library, bf16 */
    double bandwidth; /* bytes/s read from memory, on all threads; on a device read and written by a copy */
};
/* Keeps the better of what is there and a new measurement: the machine may be shared. */
void bench_limits_measure(struct bench_limits *l, struct hl_backend *backend);

/* Seconds spent in each op since the start; the model runs on the timed table while this is on. */
struct bench_op {
    const char *name;
    double seconds;
    int64_t calls;
};
enum { BENCH_OPS = 64 };
int bench_ops_start(hola_model *m); /* returns how many ops there are */
void bench_ops_stop(hola_model *m, struct bench_op out[BENCH_OPS]);

struct bench_train {
    double seconds, forward, backward, update; /* of one step; medians */
    double tokens_per_s, flops;                /* flops: 6 x parameters x tokens / seconds */
    double ratio;                              /* of the other model's step to this one's, paired; 0: alone */
};
/* Alternates steps of the models (other may be NULL) so that both see the same machine. */
hola_status bench_train(hola_model *m, hola_model *other, int64_t batch, int64_t seq, bool fp8, int repeats,
                        struct bench_train *out);

struct bench_infer {
    double seconds, tokens_per_s, flops, bytes; /* per pass or per token; flops and bytes per second */
    double ratio;
};
hola_status bench_prefill(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out);
hola_status bench_decode(hola_model *m, hola_model *other, int64_t tokens, int repeats, struct bench_infer *out);
/* logits: all of them to the host, else the likeliest ids alone */
hola_status bench_decode_batch(hola_model *m, int64_t n, int64_t tokens, bool logits, int repeats,
                               struct bench_infer *out);
/* Time per token and resident memory of one session after 1,000 tokens, and after `tokens` of them. */
struct bench_context {
    int64_t tokens, resident, session;
    double seconds_per_token, bytes; /* bytes: moved per second */
};
hola_status bench_contexts(hola_model *m, int64_t tokens, struct bench_context out[2]);

#endif
