/* cmd_bench.c -- hola bench: the machine's limits, the model's share of them, and times op by op. */
#include "cli/args.h"
#include "cli/bench.h"
#include "model/quant_file.h"
#include "model/trainer.h"
#include <stdio.h>
#include <stdlib.h>

struct bench_opts {
    const char *preset, *config;
    int64_t threads, batch, seq, prefill, repeats, context, sessions;
    int model_type, backend, precision;
    bool json, quick, train_only, infer_only, alone, recompute;
};

#define OPTS struct bench_opts
static const struct arg options[] = {
    OPT_STRING(0, "preset", preset, "NAME", "model size (default 46m)"),
    OPT_STRING(0, "config", config, "FILE", "config.json of the model, instead of a preset"),
    OPT_CHOICE(0, "model-type", model_type, cli_model_types,
               "type of model (default: hola, or the config's; hola is compared with gated_deltanet)"),
    OPT_INT(0, "batch", batch, 1, 4096, "N", "sequences per training step (default 4)"),
    OPT_INT(0, "seq-len", seq, 2, 1 << 20, "N", "tokens per sequence (default 1024)"),
    OPT_INT(0, "prefill", prefill, 1, 1 << 24, "N", "tokens per prefill (default 2048)"),
    OPT_INT('r', "repeats", repeats, 1, 64, "N", "timed repetitions (default 5)"),
    OPT_INT(0, "sessions", sessions, 0, 4096, "N", "also decode N sequences in a batch"),
    OPT_INT(0, "context", context, 0, INT64_MAX, "N",
            "also compare memory and speed after N tokens with those after 1000"),
    OPT_FLAG(0, "alone", alone, "do not compare with gated_deltanet: half the memory"),
    OPT_FLAG(0, "train-only", train_only, "time only the training step"),
    OPT_FLAG(0, "recompute", recompute, "train as hola train --recompute"),
    OPT_CHOICE(0, "precision", precision, hl_train_precisions,
               "of the large products: auto, bf16, or fp8 (training only)"),
    OPT_FLAG(0, "infer-only", infer_only, "time only prefill and decoding: a fifth of the memory"),
    OPT_FLAG(0, "quick", quick, "small sizes, to see whether it runs"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "bench", "[options]", "Times training, prefill and decoding against this machine's limits.", options};

struct report {
    struct bench_opts o;
    struct bench_limits limits;
    struct bench_train train;
    struct bench_infer prefill[HOLA_DTYPE_COUNT], decode[HOLA_DTYPE_COUNT]; /* by stored type */
    struct bench_infer decode_id, decode_batch, decode_ids;
    struct bench_context context[2];
    struct bench_op ops[BENCH_OPS], decode_ops[BENCH_OPS]; /* of one step, of one token */
    int n_ops;
    int64_t parameters;
    bool paired, device;
};

static double share(double x, double limit) { return limit > 0 ? x / limit : 0; }
/* the reference for arithmetic: BLAS if this build has one, else our own product */
static double peak(const struct report *r) { return r->limits.blas > 0 ? r->limits.blas : r->limits.own; }
/* extra time due to the cache; ratio: gated_deltanet's time over hola's */
static double cache_cost(double ratio) { return ratio > 0 ? 1 / ratio - 1 : 0; }

static const char *const stored[HOLA_DTYPE_COUNT] = {"f32", "bf16", "f16", "int8", "int4"};
static const char *stored_name(char out[CLI_GROUPED], const char *what, int dtype) {
    snprintf(out, CLI_GROUPED, "%s %s", what, stored[dtype]);
    return out;
}

/* One line, if measured; ratio 0: omits the cost of the cache. */
static void print_row(const struct report *r, const char *name, double tokens_per_s, double seconds, double of_limit,
                      double ratio) {
    if (tokens_per_s <= 0) return;
    printf("%-14s %12.1f %12.3f %9.1f%%", name, tokens_per_s, seconds * 1e3, 100 * of_limit);
    if (r->paired && ratio > 0) printf(" %11.1f%%", 100 * cache_cost(ratio));
    printf("\n");
}

/* only one of the two may have been timed */
static const char *op_name(const struct report *r, int i) {
    return r->ops[i].name ? r->ops[i].name : r->decode_ops[i].name;
}

static void print_table(const struct report *r) {
    char n[CLI_GROUPED];
    printf("%s, %s parameters, %s, %d threads%s\n", r->o.preset, cli_grouped(n, r->parameters),
           cli_model_types[r->o.model_type], (int)r->o.threads,
           r->o.precision == HOLA_PRECISION_FP8    ? ", training with FP8 products"
           : r->o.precision == HOLA_PRECISION_BF16 ? ", BF16 products"
                                                   : "");
    if (r->limits.blas > 0) printf("  BLAS sgemm        %8.1f GFLOP/s\n", r->limits.blas * 1e-9);
    printf("  %-17s %8.1f GFLOP/s\n", r->device ? "large product" : "our product", r->limits.own * 1e-9);
    printf("  %-17s %8.1f GB/s\n\n", r->device ? "large copy" : "memory read", r->limits.bandwidth * 1e-9);
    printf("%-14s %12s %12s %10s %12s\n", "", "tokens/s", "ms", "of limit", "cache costs");
    print_row(r, "training step", r->train.tokens_per_s, r->train.seconds, share(r->train.flops, peak(r)),
              r->train.ratio);
    for (int t = 0; t < HOLA_DTYPE_COUNT; t++)
        print_row(r, stored_name(n, "prefill", r->device ? HOLA_BF16 : t), r->prefill[t].tokens_per_s,
                  r->prefill[t].seconds, share(r->prefill[t].flops, peak(r)), r->prefill[t].ratio);
    for (int t = 0; t < HOLA_DTYPE_COUNT; t++)
        print_row(r, stored_name(n, "decode", t), r->decode[t].tokens_per_s, 1 / r->decode[t].tokens_per_s,
                  share(r->decode[t].bytes, r->limits.bandwidth), r->decode[t].ratio);
    print_row(r, "..., id alone", r->decode_id.tokens_per_s, 1 / r->decode_id.tokens_per_s,
              share(r->decode_id.bytes, r->limits.bandwidth), 0);
    print_row(r, "decode, many", r->decode_batch.tokens_per_s, 1 / r->decode_batch.tokens_per_s,
              share(r->decode_batch.bytes, r->limits.bandwidth), 0);
    print_row(r, "..., ids alone", r->decode_ids.tokens_per_s, 1 / r->decode_ids.tokens_per_s,
              share(r->decode_ids.bytes, r->limits.bandwidth), 0);
    if (r->train.seconds > 0)
        printf("\nof a training step: forward %.1f ms, backward %.1f ms, update %.1f ms\n", r->train.forward * 1e3,
               r->train.backward * 1e3, r->train.update * 1e3);
    if (r->train.used > 0)
        printf("memory of training: %.2f GB predicted, %.2f used\n", (double)r->train.predicted * 1e-9,
               (double)r->train.used * 1e-9);
    double step = 0, token = 0;
    for (int i = 0; i < r->n_ops; i++) step += r->ops[i].seconds, token += r->decode_ops[i].seconds;
    printf("  %-18s %21s %21s\n", "op", "training step", "decoded token, bf16");
    for (int i = 0; i < r->n_ops; i++)
        if (r->ops[i].calls || r->decode_ops[i].calls)
            printf("  %-18s %10.2f ms %6.1f%% %10.1f us %6.1f%%\n", op_name(r, i), r->ops[i].seconds * 1e3,
                   100 * share(r->ops[i].seconds, step), r->decode_ops[i].seconds * 1e6,
                   100 * share(r->decode_ops[i].seconds, token));
    for (int i = 0; i < 2 && r->context[1].tokens; i++)
        printf("after %s tokens: %.3f ms/token, %.1f%% of limit, %.1f MB resident, session %.1f MB\n",
               cli_grouped(n, r->context[i].tokens), r->context[i].seconds_per_token * 1e3,
               100 * share(r->context[i].bytes, r->limits.bandwidth), (double)r->context[i].resident * 1e-6,
               (double)r->context[i].session * 1e-6);
}

static json_t *infer_json(const struct bench_infer *x, double of_limit) {
    return json_pack("{s:f,s:f,s:f,s:f}", "tokens_per_s", x->tokens_per_s, "seconds", x->seconds, "of_limit", of_limit,
                     "cache_cost", cache_cost(x->ratio));
}

static int print_report(const struct report *r) {
    if (!r->o.json) {
        print_table(r);
        return CLI_OK;
    }
    json_t *ops = json_object(), *decode_ops = json_object(), *contexts = json_array();
    for (int i = 0; i < r->n_ops; i++) {
        if (r->ops[i].calls) json_object_set_new(ops, op_name(r, i), json_real(r->ops[i].seconds));
        if (r->decode_ops[i].calls) json_object_set_new(decode_ops, op_name(r, i), json_real(r->decode_ops[i].seconds));
    }
    for (int i = 0; i < 2 && r->context[1].tokens; i++)
        json_array_append_new(contexts, json_pack("{s:I,s:I,s:I,s:f,s:f}", "tokens", (json_int_t)r->context[i].tokens,
                                                  "resident_bytes", (json_int_t)r->context[i].resident, "session_bytes",
                                                  (json_int_t)r->context[i].session, "seconds_per_token",
                                                  r->context[i].seconds_per_token, "of_limit",
                                                  share(r->context[i].bytes, r->limits.bandwidth)));
    json_t *root = json_pack(
        "{s:s,s:s,s:s,s:I,s:I,s:{s:f,s:f,s:f},s:{s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I},s:o,s:o,s:o,s:o,s:o,s:o}",
        "preset", r->o.preset, "model_type", cli_model_types[r->o.model_type], "precision",
        hl_train_precisions[r->o.precision], "parameters", (json_int_t)r->parameters, "threads",
        (json_int_t)r->o.threads, "limits", "blas_flops", r->limits.blas, "own_flops", r->limits.own,
        "read_bytes_per_s", r->limits.bandwidth, "train", "tokens", (json_int_t)(r->o.batch * r->o.seq), "tokens_per_s",
        r->train.tokens_per_s, "seconds", r->train.seconds, "forward", r->train.forward, "backward", r->train.backward,
        "update", r->train.update, "of_limit", share(r->train.flops, peak(r)), "cache_cost", cache_cost(r->train.ratio),
        "predicted_bytes", (json_int_t)r->train.predicted, "used_bytes", (json_int_t)r->train.used, "decode_id",
        infer_json(&r->decode_id, share(r->decode_id.bytes, r->limits.bandwidth)), "decode_batch",
        infer_json(&r->decode_batch, share(r->decode_batch.bytes, r->limits.bandwidth)), "decode_ids",
        infer_json(&r->decode_ids, share(r->decode_ids.bytes, r->limits.bandwidth)), "train_ops", ops, "decode_ops",
        decode_ops, "context", contexts);
    for (int t = 0; t < HOLA_DTYPE_COUNT; t++) {
        char name[CLI_GROUPED];
        if (t > HOLA_BF16 && r->decode[t].tokens_per_s <= 0) continue; /* not measured in this run */
        snprintf(name, sizeof name, t == HOLA_F32 ? "prefill" : "prefill_%s", stored[t]);
        json_object_set_new(root, name, infer_json(&r->prefill[t], share(r->prefill[t].flops, peak(r))));
        snprintf(name, sizeof name, "decode_%s", stored[t]);
        json_object_set_new(root, name, infer_json(&r->decode[t], share(r->decode[t].bytes, r->limits.bandwidth)));
    }
    return cli_print_json(root);
}

/* Converts the model's matrices to this type, as if loaded from such a file. */
static hola_status keep_as(hola_model *m, hola_dtype dtype) {
    if (!m) return HOLA_OK;
    hola_status s = hl_model_need_rows(m);
    for (int64_t i = 0; i < m->params.n; i++)
        if (!hl_is_quant(dtype) || hl_quant_file_takes(&m->params, i)) m->stored[i] = dtype;
    hl_model_lay_out_states(m);
    m->stale = true;
    return s;
}

static struct bench_training training(const struct report *r) {
    return (struct bench_training){r->o.batch, r->o.seq, (hola_precision)r->o.precision, r->o.recompute};
}
/* One training step with every op timed; then one block of decoded tokens. */
static hola_status time_train_ops(struct report *r, hola_model *m) {
    const struct bench_training how = training(r);
    struct bench_train once;
    r->n_ops = bench_ops_start(m);
    hola_status s = bench_train(m, NULL, &how, 1, &once);
    bench_ops_stop(m, r->ops);
    for (int i = 0; i < r->n_ops; i++) r->ops[i].seconds /= 2; /* warm-up and one repetition */
    return s;
}
static hola_status time_decode_ops(struct report *r, hola_model *m, int64_t tokens) {
    struct bench_infer once;
    r->n_ops = bench_ops_start(m);
    hola_status s = bench_decode(m, NULL, tokens, 1, &once);
    bench_ops_stop(m, r->decode_ops);
    for (int i = 0; i < r->n_ops; i++) r->decode_ops[i].seconds /= 2 * (double)tokens;
    return s;
}

static hola_status measure(struct report *r, hola_model *m, hola_model *gdn) {
    const struct bench_training how = training(r);
    const int n = (int)r->o.repeats;
    const int64_t decode = r->o.quick ? 8 : 256;
    hola_status s = HOLA_OK;
    bench_limits_measure(&r->limits, m->backend);
    if (!r->o.infer_only) s = bench_train(m, gdn, &how, n, &r->train);
    if (s == HOLA_OK && !r->o.infer_only) s = time_train_ops(r, m);
    if (r->o.train_only) return s;
    if (s == HOLA_OK) s = bench_prefill(m, gdn, r->o.prefill, n, &r->prefill[HOLA_F32]);
    bench_limits_measure(&r->limits, m->backend);
    if (s == HOLA_OK && !r->device) s = bench_decode(m, gdn, decode, n, &r->decode[HOLA_F32]);
    if (s == HOLA_OK && !r->device) s = keep_as(m, HOLA_BF16); /* a device already has them in bf16 */
    if (s == HOLA_OK && !r->device) s = keep_as(gdn, HOLA_BF16);
    if (s == HOLA_OK && !r->device) s = bench_prefill(m, gdn, r->o.prefill, n, &r->prefill[HOLA_BF16]);
    if (s == HOLA_OK) s = bench_decode(m, gdn, decode, n, &r->decode[HOLA_BF16]);
    if (s == HOLA_OK && m->backend->ops.topk) s = bench_decode_batch(m, 1, decode, false, n, &r->decode_id);
    if (s == HOLA_OK && r->o.sessions)
        s = bench_decode_batch(m, r->o.sessions, r->o.quick ? 2 : 64, true, n, &r->decode_batch);
    if (s == HOLA_OK && r->o.sessions)
        s = bench_decode_batch(m, r->o.sessions, r->o.quick ? 2 : 64, false, n, &r->decode_ids);
    if (s == HOLA_OK) s = time_decode_ops(r, m, decode);
    for (int t = HOLA_INT8; t <= HOLA_INT4 && !r->device; t++) {
        if (s == HOLA_OK) s = keep_as(m, (hola_dtype)t);
        if (s == HOLA_OK) s = keep_as(gdn, (hola_dtype)t);
        if (s == HOLA_OK) s = bench_prefill(m, gdn, r->o.prefill, n, &r->prefill[t]);
        if (s == HOLA_OK) s = bench_decode(m, gdn, decode, n, &r->decode[t]);
    }
    bench_limits_measure(&r->limits, m->backend);
    if (s == HOLA_OK && r->o.context) s = bench_contexts(m, r->o.context, r->context);
    return s;
}

int cmd_bench(int argc, char **argv) {
    struct report r = {.o = {.batch = 4, .seq = 1024, .prefill = 2048, .repeats = 5, .model_type = -1}};
    hola_config cfg;
    hola_model *m = NULL, *gdn = NULL;
    int rc = args_parse(&command, argc, argv, &r.o);
    if (rc != ARGS_RUN) return rc;
    if (r.o.precision == HOLA_PRECISION_FP8 && r.o.infer_only)
        return cli_usage("bench", "--precision fp8 is of training only");
    if (r.o.preset && r.o.config) return cli_usage("bench", "either --preset NAME or --config FILE");
    if (!r.o.preset && !r.o.config) r.o.preset = "46m";
    if (r.o.quick) r.o.batch = 1, r.o.seq = 64, r.o.prefill = 64, r.o.repeats = 1;
    const bool bf16 = r.o.precision == HOLA_PRECISION_BF16;
    const hola_options opt = {.threads = (int)r.o.threads,
                              .backend = cli_backend(r.o.backend),
                              .precision = bf16 ? HOLA_PRECISION_BF16 : HOLA_PRECISION_AUTO};
    hola_status s = cli_config(&cfg, r.o.preset, r.o.config, r.o.model_type);
    if (s == HOLA_OK) r.o.model_type = cfg.model_type;
    if (r.o.config) r.o.preset = r.o.config;
    if (s == HOLA_OK) s = hola_model_new(&m, &cfg, 1, &opt);
    if (s == HOLA_OK && cfg.model_type == HOLA_TYPE_HOLA && !r.o.alone) {
        r.paired = true;
        cfg.model_type = HOLA_TYPE_GATED_DELTANET;
        s = hola_model_new(&gdn, &cfg, 1, &opt);
    }
    if (s == HOLA_OK) {
        r.parameters = hola_config_parameters(&m->cfg);
        r.o.threads = hl_pool_threads(m->backend->pool);
        r.device = !m->backend->host;
        s = measure(&r, m, gdn);
    }
    rc = s == HOLA_OK ? print_report(&r) : cli_fail_library();
    hola_model_free(m);
    hola_model_free(gdn);
    return rc;
}
