/* test_train.c -- the schedule; runs that stop and go on, to the last bit; parts of an update; plots. */
#define _GNU_SOURCE
#include "model/config.h"
#include "model/trainer.h"
#include "temp.h"
#include "data/shard.h"
#include "train/batch.h"
#include "train/checkpoint.h"
#include "plot/training_plot.h"
#include "train/memory.h"
#include "train/tensorboard.h"
#include "train/train.h"
#include "train/watch.h"
#include <unistd.h>

#define PI 3.14159265358979323846

/* ---- schedule ---- */

static void schedule(void **state) {
    struct hl_schedule s = {
        .kind = HL_COSINE, .peak = 4e-4, .floor = 0.1, .warmup = 1000, .steps = 28610, .decay = 100};
    (void)state;
    for (int64_t n = 0; n < s.steps; n += n < 1010 ? 1 : 97) {
        double want = n < 1000 ? (double)(n + 1) / 1001
                               : 0.1 + 0.9 * 0.5 * (1 + cos(PI * (double)(n + 1 - 1000) / (28610 - 1000 + 1)));
        assert_true(fabs(hl_schedule_lr(&s, n) / 4e-4 - want) < 1e-12);
    }
    assert_true(hl_schedule_lr(&s, 28609) > 4e-5 && hl_schedule_lr(&s, 28609) < 4.0001e-5);
    assert_true(fabs(hl_schedule_lr(&s, 0) - 4e-4 / 1000) > 1e-10); /* warmup over U steps would be wrong */
    s.kind = HL_CONSTANT;
    assert_true(hl_schedule_lr(&s, 999) < 4e-4 && hl_schedule_lr(&s, 1000) == 4e-4 &&
                hl_schedule_lr(&s, 28609) == 4e-4);
    s.kind = HL_LINEAR;
    assert_true(fabs(hl_schedule_lr(&s, 14305) / 4e-4 - (1 - 0.9 * 13306 / 27611)) < 1e-12);
    s.kind = HL_WSD;
    assert_true(hl_schedule_lr(&s, 28509) == 4e-4);
    assert_true(fabs(hl_schedule_lr(&s, 28510) / 4e-4 - (1 - 0.9 / 101)) < 1e-12);
    assert_true(fabs(hl_schedule_lr(&s, 28609) / 4e-4 - (1 - 0.9 * 100 / 101)) < 1e-12);
    s = (struct hl_schedule){.kind = HL_COSINE, .peak = 1, .floor = 0.1, .warmup = 5, .steps = 5};
    assert_true(hl_schedule_lr(&s, 4) == 5.0 / 6); /* a run that is nothing but warmup */
}

/* ---- runs ---- */

enum { STEPS = 12, SEQ = 32, BATCH = 128, VOCAB = 61 };

static void make_data(const char *dir, const char *name, int64_t n, uint64_t seed) {
    struct hl_shards w;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    /* documents of some length that begin with 1; each token mostly follows from the one before */
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = check_mix(seed + (uint64_t)i);
        ids[i] = 2 + (int32_t)(r / 5 % (VOCAB - 2));
        if (i % 41 == 0) ids[i] = 1;
        else if (r % 5) ids[i] = 2 + (ids[i - 1] * 7 + 3) % (VOCAB - 2);
    }
    CHECK_OK(hl_shards_begin(&w, dir, name, VOCAB, 1000));
    CHECK_OK(hl_shards_write(&w, ids, NULL, n));
    CHECK_OK(hl_shards_end(&w));
    w.keep = true;
    hl_shards_free(&w);
    free(ids);
}

static const char config_text[] =
    "{\"model_type\":\"hola\",\"hidden_size\":32,\"num_hidden_layers\":2,\"num_heads\":2,\"head_dim\":16,"
    "\"expand_v\":1,"
    "\"intermediate_size\":48,\"vocab_size\":61,\"cache_window\":4,\"cache_chunk\":16}";

struct watch {
    volatile sig_atomic_t stop;
    int64_t steps, notes;
    int64_t stop_at;             /* asked to stop after the first slice that step ... */
    enum hl_train_phase stop_in; /* ... has of this */
    char note[512];
};
static void on_work(void *ctx, const struct hl_train_work *x) {
    struct watch *w = ctx;
    assert_true(x->done >= 0 && x->done <= x->of);
    if (x->step == w->stop_at && x->phase == w->stop_in && x->done == 1) w->stop = 1;
}
static void on_step(void *ctx, const struct hl_metric *m, const struct hl_train_step *x) {
    struct watch *w = ctx;
    assert_true(x->seconds > 0);
    /* a fresh model guesses: over all rows of the batch the loss is that of 61 equal tokens */
    if (m->step == 1) assert_true(fabs(m->loss - log(61)) < 0.02 * log(61));
    w->steps++;
}
static void on_note(void *ctx, const char *line) {
    struct watch *w = ctx;
    w->notes++;
    snprintf(w->note, sizeof w->note, "%s", line);
}

static struct hl_train options(const char *data, const char *out, struct watch *w) {
    struct hl_train o = {.data = data,
                         .out = out,
                         .steps = STEPS,
                         .batch_tokens = BATCH,
                         .micro_tokens = 2 * SEQ,
                         .seq_len = SEQ,
                         .schedule = {.peak = 3e-3, .floor = 0.1, .warmup = 3, .decay = -1},
                         .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 1},
                         .seed = 5,
                         .eval_every = 4,
                         .save_every = 5,
                         .keep = 3,
                         .model = {.threads = 1},
                         .stop = &w->stop,
                         .diverge = 2,
                         .report = {.ctx = w, .work = on_work, .step = on_step, .note = on_note}};
    CHECK_OK(hl_config_parse(&o.config, config_text, (int64_t)strlen(config_text), "test"));
    return o;
}

static char *path_of(const char *a, const char *b) {
    char *p = hl_path_join(a, b);
    assert_non_null(p);
    return p;
}

/* what must not differ between two ways to the same step */
static void same_curve(const char *a, const char *b) {
    char *pa = path_of(a, "metrics.jsonl"), *pb = path_of(b, "metrics.jsonl");
    struct hl_metrics_history x, y;
    CHECK_OK(hl_metrics_history_read(&x, pa));
    CHECK_OK(hl_metrics_history_read(&y, pb));
    assert_int_equal(x.n, y.n);
    assert_int_equal(x.bad + y.bad, 0);
    for (int64_t i = 0; i < x.n; i++) {
        const struct hl_metric *p = &x.at[i], *q = &y.at[i];
        assert_int_equal(p->step, i + 1);
        if (p->step != q->step || p->loss != q->loss || p->grad_norm != q->grad_norm || p->lr != q->lr ||
            p->tokens != q->tokens || p->epoch != q->epoch || isfinite(p->val_loss) != isfinite(q->val_loss) ||
            (isfinite(p->val_loss) && p->val_loss != q->val_loss))
            fail_msg("step %d: loss %.17g and %.17g, norm %.17g and %.17g", (int)p->step, p->loss, q->loss,
                     p->grad_norm, q->grad_norm);
    }
    hl_metrics_history_free(&x);
    hl_metrics_history_free(&y);
    free(pa);
    free(pb);
}

static bool same_file(const char *a, const char *b, const char *name) {
    int64_t n, k;
    char *x = temp_read(a, name, &n), *y = temp_read(b, name, &k);
    bool same = n == k && memcmp(x, y, (size_t)n) == 0;
    free(x);
    free(y);
    return same;
}

static void goes_on_to_the_bit(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *whole = path_of(dir, "whole");
    struct hl_train_result r;
    (void)state;
    CHECK_OK(hl_make_dirs(data));
    make_data(data, "train", 1500, 1); /* less than the run needs: it goes into a second epoch */
    make_data(data, "val", 300, 2);
    for (int documents = 0; documents < 2; documents++) {
        struct watch w = {0};
        struct hl_train o = options(data, whole, &w);
        if (documents) { /* llm.c's shards do not say what begins a document: dataset.json does */
            static const char info[] = "{\"version\": 1, \"complete\": true, \"bos_token_id\": 1, \"vocab_size\": 61}";
            temp_write(data, "dataset.json", info, (int64_t)strlen(info));
        }
        o.documents = documents;
        o.restart = documents;
        CHECK_OK(hl_train_run(&o, &r));
        assert_int_equal(r.step, STEPS);
        assert_int_equal(w.steps, STEPS);
        assert_int_equal(w.notes, 0);
        const double low = r.low_val;
        const int64_t low_step = r.low_step;
        assert_true(isfinite(low) && low_step > 0);
        for (int64_t stop_at = 2; stop_at < STEPS - 1; stop_at += 3) {
            char *parts = path_of(dir, "parts");
            /* steps 4 and 8 are evaluated: there the evaluation is cut short, and made up for later */
            const bool looks = stop_at % 4 == 0;
            struct watch v = {.stop_at = looks ? stop_at : stop_at + 1,
                              .stop_in = looks ? HL_TRAIN_VALIDATION : HL_TRAIN_STEP};
            struct hl_train p = options(data, parts, &v);
            p.documents = documents;
            p.restart = true;
            CHECK_OK(hl_train_run(&p, &r));
            assert_true(r.stopped && r.step == stop_at);
            p.restart = false;
            p.model.threads = 2;           /* nor do threads matter */
            v = (struct watch){.stop = 1}; /* asked before the first step: it makes none */
            CHECK_OK(hl_train_run(&p, &r));
            assert_true(r.stopped && r.step == stop_at && v.steps == 0);
            v = (struct watch){0};
            CHECK_OK(hl_train_run(&p, &r));
            assert_int_equal(v.steps, STEPS - stop_at + looks);
            assert_true(!r.stopped && r.low_val == low && r.low_step == low_step);
            same_curve(whole, parts);
            char *a = path_of(whole, "latest"), *b = path_of(parts, "latest");
            assert_true(same_file(a, b, "model.safetensors"));
            assert_true(same_file(a, b, "training.safetensors"));
            free(a), free(b), free(parts);
        }
    }
    free(data), free(whole);
    temp_remove(dir);
}

/* A run with another seed or rate is another run: the comparison above can fail. */
static void other_runs_differ(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *a = path_of(dir, "a"), *b = path_of(dir, "b");
    struct watch w = {0};
    struct hl_train_result r;
    (void)state;
    CHECK_OK(hl_make_dirs(data));
    make_data(data, "train", 1500, 1);
    struct hl_train o = options(data, a, &w);
    o.steps = 2, o.schedule.warmup = 1;
    CHECK_OK(hl_train_run(&o, &r));
    o.out = b, o.seed = 6;
    CHECK_OK(hl_train_run(&o, &r));
    char *x = path_of(a, "latest"), *y = path_of(b, "latest");
    assert_false(same_file(x, y, "model.safetensors"));
    free(x), free(y);
    x = path_of(a, "best"); /* without validation the best is the latest */
    hola_model *m;
    CHECK_OK(hola_model_load(&m, x, NULL));
    hola_model_free(m);
    free(x);

    o.out = a;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_EINVAL, "has seed 5, not 6; --restart");
    o.seed = 5, o.steps = 3;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_EINVAL, "has steps 2, not 3");
    o.steps = 2, o.config.hidden_size = 48;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_EINVAL, "has hidden_size 32, not 48");
    o.config.hidden_size = 32, o.schedule.peak = 1e30, o.adamw.clip = 0, o.out = b, o.restart = true, o.steps = 9;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_ENUMERIC, "5 steps in a row");
    o.batch_tokens = 100;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_EINVAL, "must be a multiple of --seq-len");
    free(data), free(a), free(b);
    temp_remove(dir);
}

/* More steps of a constant rate: the first ones stay as they are. */
static void a_constant_rate_may_go_on(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *a = path_of(dir, "a"), *b = path_of(dir, "b");
    struct watch w = {0};
    struct hl_train_result r;
    (void)state;
    CHECK_OK(hl_make_dirs(data));
    make_data(data, "train", 1500, 1);
    struct hl_train o = options(data, a, &w);
    o.schedule.kind = HL_CONSTANT;
    o.steps = 3;
    CHECK_OK(hl_train_run(&o, &r));
    o.steps = 6;
    CHECK_OK(hl_train_run(&o, &r));
    assert_int_equal(r.step, 6);
    o.out = b;
    CHECK_OK(hl_train_run(&o, &r));
    same_curve(a, b);
    free(data), free(a), free(b);
    temp_remove(dir);
}

/* ---- parts of an update ---- */

static void parts_are_the_whole(void **state) {
    enum { RANKS = 3, N = 90 };
    struct watch w = {0};
    struct hl_train o = options("", "", &w);
    hola_model *m[RANKS + 1];
    hola_trainer *t[RANKS + 1];
    struct hl_trainer_view v[RANKS + 1];
    int32_t ids[N];
    double squares = 0, norm;
    (void)state;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(i * i % VOCAB);
    for (int r = 0; r <= RANKS; r++) {
        CHECK_OK(hola_model_new(&m[r], &o.config, 3, NULL));
        CHECK_OK(hl_trainer_new_part(&t[r], m[r], &o.adamw, r % RANKS, r < RANKS ? RANKS : 1));
        v[r] = hl_trainer_view(t[r]);
        assert_true(r == RANKS || v[r].part * RANKS >= v[r].total);
    }
    for (int step = 0; step < 3; step++) {
        for (int r = 0; r <= RANKS; r++)
            CHECK_OK(hola_trainer_accumulate(t[r], ids, N, NULL, 0, 1.0 / (N - 1), NULL, NULL));
        squares = 0;
        for (int r = 0; r < RANKS; r++) squares += hl_trainer_sumsq(t[r]);
        CHECK_OK(hola_trainer_update(t[RANKS], 1e-3, &norm));
        assert_true(fabs(sqrt(squares) - norm) < 1e-12 * norm);
        for (int r = 0; r < RANKS; r++) hl_trainer_apply(t[r], 1e-3, norm), hl_trainer_clear(t[r]);
        for (int r = 0; r < RANKS; r++)
            for (int q = 0; q < RANKS; q++)
                memcpy(v[q].params + v[r].first, v[r].params + v[r].first, (size_t)v[r].n * sizeof(real));
        assert_memory_equal(v[0].params, v[RANKS].params, (size_t)v[0].total * sizeof(real));
    }
    for (int r = 0; r < RANKS; r++) {
        assert_memory_equal(v[r].m, v[RANKS].m + v[r].first, (size_t)v[r].n * sizeof(real));
        assert_int_equal(hl_trainer_view(t[r]).updates, 3);
    }
    for (int r = 0; r <= RANKS; r++) hola_trainer_free(t[r]), hola_model_free(m[r]);
}

/* ---- plots ---- */

static void plots(void **state) {
    char *dir = temp_new(), *html = path_of(dir, "p.html"), *svg = path_of(dir, "p.svg"), *text;
    struct hl_metric many[3000],
        one = {.step = 1, .loss = 2, .lr = 1, .grad_norm = (double)NAN, .tok_per_s = 5, .val_loss = (double)NAN};
    struct hl_metrics_history h[3] = {{.n = 3000, .at = many}, {.n = 1, .at = &one}, {0}};
    const struct hl_plot_run run[3] = {{"a<b>&\"", dir, &h[0]}, {"one", NULL, &h[1]}, {"none", NULL, &h[2]}};
    (void)state;
    for (int i = 0; i < 3000; i++)
        many[i] = (struct hl_metric){.step = i + 1,
                                     .loss = i == 7 ? (double)NAN : 3,
                                     .lr = 1e-4,
                                     .grad_norm = i == 9 ? 1e30 : 1,
                                     .tok_per_s = 1e5,
                                     .val_loss = i % 100 ? (double)NAN : 3 + 4e-16};
    CHECK_OK(hl_plot_write(html, run, 3, 30));
    text = temp_read(dir, "p.html", NULL);
    assert_non_null(strstr(text, "content=\"30\""));
    assert_non_null(strstr(text, "a\\u003cb>&\\\"")); /* text, not markup */
    assert_null(strstr(strstr(text, "id=\"data\""), "nan"));
    assert_non_null(strstr(text, "\"best\":{\"step\":"));
    assert_null(strstr(text, "http://www.w3.org/1999")); /* nothing is loaded from anywhere */
    free(text);
    CHECK_OK(hl_plot_write(svg, run, 3, 0));
    text = temp_read(dir, "p.svg", NULL);
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_null(strstr(text, "script"));
    free(text);
    free(html), free(svg);
    temp_remove(dir);
}

/* ---- a run that goes wrong ---- */

static struct hl_watch fed(double limit, const double *loss, int64_t n, double last, int64_t times) {
    struct hl_watch w;
    hl_watch_begin(&w, limit);
    for (int64_t i = 0; i < n + times; i++) {
        const struct hl_metric m = {.step = i + 1, .loss = i < n ? loss[i] : last, .val_loss = (double)NAN};
        hl_watch_add(&w, &m);
    }
    return w;
}

static void divergence_is_seen(void **state) {
    const double down[] = {10, 9, 8, 7, 6, 5, 4, 4, 4, 4};
    (void)state;
    struct hl_watch w = fed(2, down, 10, 50, HL_WATCH_STEPS - 1); /* a spike, however high, may pass */
    assert_false(hl_watch_diverged(&w));
    w = fed(2, down, 10, 50, HL_WATCH_STEPS);
    assert_true(hl_watch_diverged(&w));
    w = fed(2, down, 10, (double)NAN, HL_WATCH_STEPS);
    assert_true(hl_watch_diverged(&w));
    w = fed(0, down, 10, 50, HL_WATCH_STEPS); /* turned off */
    assert_false(hl_watch_diverged(&w));
    w = fed(2, down, 10, 5.5, 1000); /* not that far above */
    assert_false(hl_watch_diverged(&w));
    assert_true(hl_watch_ended_badly(&w, 12.5));
    assert_false(hl_watch_ended_badly(&w, 11.5));

    const double val[] = {7, 6, 6.1, 6.2, 6.3, 6.4, 5.9, 6.0, 6.0, 6.001, 6.5};
    const int64_t warned[] = {5, 10}; /* once for each lowest: the third above it */
    int64_t k = 0;
    hl_watch_begin(&w, 2);
    for (int64_t i = 0; i < 11; i++) {
        const struct hl_metric m = {.step = i + 1, .loss = 5, .val_loss = val[i]};
        hl_watch_add(&w, &m);
        if (!hl_watch_rising(&w, &m)) continue;
        assert_true(k < 2);
        assert_int_equal(m.step, warned[k++]);
    }
    assert_int_equal(k, 2);
    assert_true(w.low_val == 5.9 && w.low_step == 7);
}

/* No checkpoint is written of a model without a finite loss; those that are there stay. */
static void a_broken_model_is_not_kept(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *out = path_of(dir, "a");
    struct watch w = {0};
    struct hl_train_result r;
    (void)state;
    CHECK_OK(hl_make_dirs(data));
    make_data(data, "train", 1500, 1);
    struct hl_train o = options(data, out, &w);
    o.schedule = (struct hl_schedule){.kind = HL_CONSTANT, .peak = 1e30, .warmup = 0, .decay = -1};
    o.steps = 3, o.save_every = 1, o.adamw.clip = 0;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_ENUMERIC, "no checkpoint was written. Try a lower --lr (it was 1e+30)");
    assert_int_equal(r.latest, -1);
    assert_int_equal(w.notes, 2); /* steps 1 and 2 said that they have none */
    char *latest = path_of(out, "latest"), *best = path_of(out, "best");
    assert_int_equal(access(latest, F_OK), -1);
    assert_int_equal(access(best, F_OK), -1);
    w = (struct watch){0};
    o.restart = true, o.steps = 20, o.diverge = 0; /* turned off: it goes on to its end, which is one all the same */
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_ENUMERIC, "the model's loss is not finite");
    assert_int_equal(r.step, 20);
    assert_true(r.skipped >= 19);
    free(data), free(out), free(latest), free(best);
    temp_remove(dir);
}

/* ---- memory ---- */

/* A step of 64 rows whose activations take most of the memory; its data is made. */
static struct hl_train wide_run(const char *data, const char *out, struct watch *w) {
    CHECK_OK(hl_make_dirs(data));
    make_data(data, "train", 9000, 1);
    struct hl_train o = options(data, out, w);
    o.config.hidden_size = 256, o.config.intermediate_size = 1024, o.seq_len = 64, o.batch_tokens = 4096;
    o.steps = 1, o.schedule.warmup = 0;
    return o;
}

static void memory_is_predicted_and_refused(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *out = path_of(dir, "a"), *run = path_of(out, "run.json");
    struct watch w = {0};
    struct hl_train_result r;
    struct hl_memory m;
    hola_model *model;
    (void)state;
    struct hl_train o = wide_run(data, out, &w);
    o.micro_tokens = 4096;
    CHECK_OK(hola_model_new(&model, &o.config, 1, &o.model));
    struct hl_slice_shape shape = {.tokens = 4096, .pieces = 64};
    CHECK_OK(hl_memory_predict(&m, model, &shape, 1, 4096));
    struct hl_memory fp8 = {0};
    shape.fp8 = true; /* the simulation's floats: two activations as wide as the widest, a weight and its codes */
    CHECK_OK(hl_memory_predict(&fp8, model, &shape, 1, 4096));
    assert_true(fp8.slice - m.slice > 2 * 4096 * 1024 * 4 && fp8.slice - m.slice < 4 * 4096 * 2048 * 4);
    hola_model_free(model);
    assert_true(m.held > 0 && m.slice > 4096 * 2 * 256 * 4 && m.fixed > 3 * 4 * hola_config_parameters(&o.config));
    o.max_memory = m.held + m.fixed + m.slice / 2;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_ENOMEM, "--micro-tokens 1024 fits"); /* a half less what is held since */
    assert_int_equal(access(run, F_OK), -1);                                    /* nothing is left of it */
    o.max_memory = m.held + m.fixed / 2;
    CHECK_FAILS(hl_train_run(&o, &r), HOLA_ENOMEM, "only a smaller model fits");
    o.max_memory = 0, o.micro_tokens = 1024;
    CHECK_OK(hl_train_run(&o, &r));
    free(data), free(out), free(run);
    temp_remove(dir);
}

static int64_t slice_rows_of(const char *out) {
    char *latest = path_of(out, "latest");
    struct hl_train_state t;
    CHECK_OK(hl_checkpoint_state(latest, &t));
    free(latest);
    return t.slice_rows;
}
/* Without --micro-tokens a slice is what fits; a run that goes on has the slices that it began with. */
static void slices_fit_and_stay(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *out = path_of(dir, "a"), *all = path_of(dir, "b");
    struct watch w = {0};
    struct hl_train_result r;
    struct hl_memory m;
    hola_model *model;
    (void)state;
    struct hl_train o = wide_run(data, out, &w);
    o.schedule.kind = HL_CONSTANT;
    CHECK_OK(hola_model_new(&model, &o.config, 1, &o.model));
    CHECK_OK(hl_memory_predict(&m, model, &(struct hl_slice_shape){.tokens = 4096, .pieces = 64}, 1, 4096));
    hola_model_free(model);
    o.micro_tokens = 0;
    o.max_memory = m.held + m.fixed + m.slice / 2;
    CHECK_OK(hl_train_run(&o, &r));
    const int64_t rows = slice_rows_of(out);
    assert_true(rows >= 4 && rows < 64);
    o.steps = 2, o.max_memory = 0;
    CHECK_OK(hl_train_run(&o, &r));
    assert_int_equal(slice_rows_of(out), rows);
    o.out = all; /* with all memory: the whole step in one slice */
    CHECK_OK(hl_train_run(&o, &r));
    assert_int_equal(slice_rows_of(all), 64);
    free(data), free(out), free(all);
    temp_remove(dir);
}

/* A run whose checkpoint does not say its slices, being of an earlier version or of several ranks, goes on with the
 * 32,768 tokens of these, not with all that fits. */
static void slices_of_earlier_runs_stay(void **state) {
    char *dir = temp_new(), *data = path_of(dir, "data"), *out = path_of(dir, "a");
    struct watch w = {0};
    struct hl_train_result r;
    (void)state;
    struct hl_train o = wide_run(data, out, &w);
    o.config.hidden_size = 32, o.config.intermediate_size = 48, o.batch_tokens = 65536;
    o.schedule.kind = HL_CONSTANT, o.micro_tokens = 32768;
    CHECK_OK(hl_train_run(&o, &r));
    assert_int_equal(slice_rows_of(out), 0);
    o.steps = 2, o.micro_tokens = 0;
    CHECK_OK(hl_train_run(&o, &r));
    assert_int_equal(slice_rows_of(out), 512);
    free(data), free(out);
    temp_remove(dir);
}

/* ---- TensorBoard ---- */

/* Walks the records of a file: lengths and sums must be right. Returns how many there are. */
static int records(const char *dir, const char *name, int64_t *starts) {
    int64_t n, at = 0;
    int count = 0;
    unsigned char *b = (unsigned char *)temp_read(dir, name, &n);
    for (*starts = 0; at < n; count++) {
        uint64_t len = 0;
        uint32_t sum[2] = {0}, want[2];
        for (int i = 0; i < 8; i++) len |= (uint64_t)b[at + i] << (8 * i);
        assert_true(at + 16 + (int64_t)len <= n);
        for (int i = 0; i < 4; i++) sum[0] |= (uint32_t)b[at + 8 + i] << (8 * i);
        for (int i = 0; i < 4; i++) sum[1] |= (uint32_t)b[at + 12 + (int64_t)len + i] << (8 * i);
        want[0] = hl_crc32c(b + at, 8), want[1] = hl_crc32c(b + at + 12, (int64_t)len);
        for (int i = 0; i < 2; i++) assert_int_equal(sum[i], ((want[i] >> 15) | (want[i] << 17)) + 0xa282ead8u);
        /* wall_time is field 1, eight bytes; step field 2, a varint; 0x3a: session_log, {1: 1} */
        assert_int_equal(b[at + 12], 0x09);
        assert_int_equal(b[at + 21], 0x10);
        if (b[at + 23] == 0x3a) {
            *starts = b[at + 22];
            assert_memory_equal(b + at + 24, "\x02\x08\x01", 3);
        }
        if (count == 0)
            assert_memory_equal(b + at + 23,
                                "\x1a\x0d"
                                "brain.Event:2",
                                15);
        at += 16 + (int64_t)len;
    }
    free(b);
    return count;
}

static void tensorboard_files(void **state) {
    char *dir = temp_new(), *tb = path_of(dir, "tb");
    struct hl_tensorboard t;
    struct hl_train_figures f = {.n = 1, .at = {{"lambada/acc", 0.25}}};
    struct hl_metric m = {.step = 1, .loss = 2.5, .lr = 1e-3, .grad_norm = (double)NAN, .val_loss = (double)NAN};
    int64_t starts;
    (void)state;
    assert_int_equal(hl_crc32c("123456789", 9), 0xe3069283u); /* the check value of CRC-32C */
    CHECK_OK(hl_tensorboard_open(&t, dir, 0));
    CHECK_OK(hl_tensorboard_add(&t, &m, NULL));
    m.step = 2, m.val_loss = 3;
    CHECK_OK(hl_tensorboard_add(&t, &m, &f));
    char *first = strdup(strrchr(t.path, '/') + 1);
    hl_tensorboard_close(&t);
    CHECK_OK(hl_tensorboard_open(&t, dir, 1)); /* step 2 is taken back */
    char *second = strdup(strrchr(t.path, '/') + 1);
    hl_tensorboard_close(&t);
    assert_true(strcmp(second, first) > 0); /* read in the order of their names */
    assert_int_equal(records(tb, first, &starts), 3);
    assert_int_equal(starts, 0);
    assert_int_equal(records(tb, second, &starts), 2);
    assert_int_equal(starts, 2);
    free(tb), free(first), free(second);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedule),
                                       cmocka_unit_test(divergence_is_seen),
                                       cmocka_unit_test(a_broken_model_is_not_kept),
                                       cmocka_unit_test(memory_is_predicted_and_refused),
                                       cmocka_unit_test(tensorboard_files),
                                       cmocka_unit_test(goes_on_to_the_bit),
                                       cmocka_unit_test(other_runs_differ),
                                       cmocka_unit_test(a_constant_rate_may_go_on),
                                       cmocka_unit_test(slices_fit_and_stay),
                                       cmocka_unit_test(slices_of_earlier_runs_stay),
                                       cmocka_unit_test(parts_are_the_whole),
                                       cmocka_unit_test(plots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
