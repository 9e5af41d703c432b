/* test_train.c -- the schedule; runs that stop and go on, to the last bit; parts of an update; plots. */
#define _GNU_SOURCE
#include "model/config.h"
#include "model/trainer.h"
#include "temp.h"
#include "data/shard.h"
#include "train/batch.h"
#include "plot/training_plot.h"
#include "train/train.h"

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
    CHECK_OK(hl_shards_write(&w, ids, n));
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
    int64_t stop_at, steps, notes;
    char note[512];
};
static void on_step(void *ctx, const struct hl_metric *m, double seconds) {
    struct watch *w = ctx;
    assert_true(seconds > 0);
    /* a fresh model guesses: over all rows of the batch the loss is that of 61 equal tokens */
    if (m->step == 1) assert_true(fabs(m->loss - log(61)) < 0.02 * log(61));
    w->steps++;
    if (m->step + 1 == w->stop_at) w->stop = 1; /* seen in the next step, which is then the last */
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
                         .report = {.ctx = w, .step = on_step, .note = on_note}};
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
        for (int64_t stop_at = 2; stop_at < STEPS - 1; stop_at += 3) {
            char *parts = path_of(dir, "parts");
            struct watch v = {.stop_at = stop_at};
            struct hl_train p = options(data, parts, &v);
            p.documents = documents;
            p.restart = true;
            CHECK_OK(hl_train_run(&p, &r));
            assert_true(r.stopped && r.step == stop_at);
            p.restart = false;
            p.model.threads = 2;           /* nor do threads matter */
            v = (struct watch){.stop = 1}; /* asked before the first step: it makes that one */
            CHECK_OK(hl_train_run(&p, &r));
            assert_true(r.stopped && r.step == stop_at + 1);
            v = (struct watch){0};
            CHECK_OK(hl_train_run(&p, &r));
            assert_int_equal(v.steps, STEPS - stop_at - 1);
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
    const struct hl_plot_run run[3] = {{"a<b>&\"", &h[0]}, {"one", &h[1]}, {"none", &h[2]}};
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
    assert_non_null(strstr(text, "content='30'"));
    assert_non_null(strstr(text, "a&lt;b>&amp;&quot;"));
    assert_null(strstr(text, "nan"));
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedule),
                                       cmocka_unit_test(goes_on_to_the_bit),
                                       cmocka_unit_test(other_runs_differ),
                                       cmocka_unit_test(a_constant_rate_may_go_on),
                                       cmocka_unit_test(parts_are_the_whole),
                                       cmocka_unit_test(plots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
