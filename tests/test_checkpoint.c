/* test_checkpoint.c -- checkpoints, the run's directory and metrics.jsonl: full disks, killed writers, damage. */
#define _GNU_SOURCE
#include "model/config.h"
#include "model/model.h"
#include "model/trainer.h"
#include "temp.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/rundir.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const char config_text[] =
    "{\"model_type\":\"hola\",\"hidden_size\":16,\"num_hidden_layers\":1,\"num_heads\":1,\"head_dim\":16,"
    "\"expand_v\":1,"
    "\"intermediate_size\":16,\"vocab_size\":19,\"cache_window\":4,\"cache_chunk\":8}";

static hola_model *new_model(void) {
    hola_config cfg;
    hola_model *m;
    CHECK_OK(hl_config_parse(&cfg, config_text, (int64_t)strlen(config_text), "test"));
    CHECK_OK(hola_model_new(&m, &cfg, 1, &(hola_options){.threads = 1}));
    return m;
}

/* A model after some updates, with its moments. */
static hola_trainer *trained(hola_model *m) {
    const int32_t ids[9] = {1, 2, 3, 4, 5, 18, 7, 3, 9};
    hola_trainer *t;
    CHECK_OK(hola_trainer_new(&t, m, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hola_trainer_accumulate(t, ids, 9, NULL, 0, 0.125, NULL, NULL));
        CHECK_OK(hola_trainer_update(t, 1e-2, NULL));
    }
    return t;
}

static struct hl_checkpoint checkpoint(hola_model *m, hola_trainer *t, int64_t step) {
    struct hl_trainer_view v = hl_trainer_view(t);
    return (struct hl_checkpoint){.model = m,
                                  .m = v.m,
                                  .v = v.v,
                                  .state = {.step = step,
                                            .updates = 3,
                                            .tokens = 12345678901,
                                            .cursor = 77,
                                            .skipped = 2,
                                            .skipped_in_row = 1,
                                            .seed = 9,
                                            .seconds = 0.1,
                                            .val_loss = (double)NAN,
                                            .best_val = 1.0 / 3,
                                            .best_step = 4}};
}

static char *path_of(const char *a, const char *b) {
    char *p = hl_path_join(a, b);
    assert_non_null(p);
    return p;
}
static bool there(const char *dir, const char *name) {
    struct stat st;
    char *p = path_of(dir, name);
    bool yes = lstat(p, &st) == 0;
    free(p);
    return yes;
}

static void comes_back(void **state) {
    char *dir = temp_new(), *at = path_of(dir, "step-00000012"), *extra = path_of(dir, "tokenizer.json");
    hola_model *m = new_model(), *n;
    hola_trainer *t = trained(m), *u;
    struct hl_checkpoint c = checkpoint(m, t, 12);
    const char *const files[] = {extra, NULL};
    struct hl_train_state s;
    (void)state;
    temp_write(dir, "tokenizer.json", "{}", 2);
    c.files = files;
    CHECK_OK(hl_checkpoint_write(dir, &c));
    CHECK_OK(hl_checkpoint_write(dir, &c)); /* in the place of one that is there */
    assert_true(there(at, "tokenizer.json"));
    assert_int_equal(temp_entries(dir, NULL), 2);
    CHECK_OK(hl_checkpoint_state(at, &s));
    assert_true(s.step == 12 && s.updates == 3 && s.tokens == 12345678901 && s.cursor == 77 && s.skipped == 2 &&
                s.skipped_in_row == 1 && s.seed == 9 && s.seconds == 0.1 && isnan(s.val_loss) &&
                s.best_val == 1.0 / 3 && s.best_step == 4);
    CHECK_OK(hola_model_load(&n, at, NULL));
    CHECK_OK(hola_trainer_new(&u, n, NULL));
    struct hl_trainer_view x = hl_trainer_view(t), y = hl_trainer_view(u);
    assert_true(memcmp(x.m, y.m, (size_t)x.n * sizeof(real)) != 0); /* empty so far */
    CHECK_OK(hl_checkpoint_moments(at, n, &y));
    assert_memory_equal(x.m, y.m, (size_t)x.n * sizeof(real));
    assert_memory_equal(x.v, y.v, (size_t)x.n * sizeof(real));
    assert_memory_equal(x.params, y.params, (size_t)x.n * sizeof(real));
    hola_trainer_free(u);
    /* a rank's part of it, as another number of ranks cuts it */
    for (int r = 0; r < 3; r++) {
        CHECK_OK(hl_trainer_new_part(&u, n, NULL, r, 3));
        y = hl_trainer_view(u);
        CHECK_OK(hl_checkpoint_moments(at, n, &y));
        assert_memory_equal(x.v + y.first, y.v, (size_t)y.n * sizeof(real));
        hola_trainer_free(u);
    }
    hola_trainer_free(t);
    hola_model_free(m), hola_model_free(n);
    free(at), free(extra);
    temp_remove(dir);
}

static void damage_is_named(void **state) {
    char *dir = temp_new(), *at = path_of(dir, "step-00000001");
    hola_model *m = new_model();
    hola_trainer *t = trained(m);
    struct hl_checkpoint c = checkpoint(m, t, 1);
    struct hl_trainer_view v = hl_trainer_view(t);
    struct hl_train_state s;
    int64_t n;
    static const char *const bad[] = {"{", "[]", "{\"step\": -1}", "{\"step\": \"x\"}", "{}"};
    (void)state;
    c.state.updates = 1;
    CHECK_OK(hl_checkpoint_write(dir, &c));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        temp_write(at, "training.json", bad[i], (int64_t)strlen(bad[i]));
        CHECK_FAILS(hl_checkpoint_state(at, &s), HOLA_EFORMAT, "training.json");
    }
    char *whole = temp_read(at, "training.safetensors", &n);
    for (int64_t keep = 0; keep < n; keep += n / 7) {
        temp_write(at, "training.safetensors", whole, keep);
        assert_int_not_equal(hl_checkpoint_moments(at, m, &v), HOLA_OK);
        assert_non_null(strstr(hola_last_error(), "training.safetensors"));
    }
    const float minus = -1;
    memcpy(whole + n - 4, &minus, 4); /* the last second moment */
    temp_write(at, "training.safetensors", whole, n);
    CHECK_FAILS(hl_checkpoint_moments(at, m, &v), HOLA_EFORMAT, "no moment");
    free(whole);
    hola_trainer_free(t);
    hola_model_free(m);
    free(at);
    temp_remove(dir);
}

/* A disk that is full after `limit` bytes of a file: the checkpoint before stays, of the new one nothing. */
static void full_disk(void **state) {
    char *dir = temp_new();
    hola_model *m = new_model();
    hola_trainer *t = trained(m);
    struct hl_checkpoint c = checkpoint(m, t, 1);
    struct rlimit before, small;
    struct hl_train_state s;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    c.state.updates = 1;
    CHECK_OK(hl_checkpoint_write(dir, &c));
    getrlimit(RLIMIT_FSIZE, &before);
    for (rlim_t limit = 0; limit < 20000; limit += 2500) {
        small = before;
        small.rlim_cur = limit;
        c.state.step = 2;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        hola_status got = hl_checkpoint_write(dir, &c);
        char why[256];
        snprintf(why, sizeof why, "%s", hola_last_error());
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(got, HOLA_EIO);
        assert_non_null(strstr(why, "File too large"));
        assert_int_equal(temp_entries(dir, NULL), 1);
    }
    char *at = path_of(dir, "step-00000001");
    CHECK_OK(hl_checkpoint_state(at, &s));
    hola_trainer_free(t);
    hola_model_free(m);
    free(at);
    temp_remove(dir);
}

static json_t *run_object(int64_t steps, const char *schedule) {
    return json_pack("{s:I, s:s, s:{s:i}}", "steps", (json_int_t)steps, "schedule", schedule, "config", "d", 3);
}

static void directory(void **state) {
    char *dir = temp_new(), *out = path_of(dir, "a/run"), target[64] = "";
    struct hl_rundir d, other;
    hola_model *m = new_model();
    hola_trainer *t = trained(m);
    json_t *run = run_object(10, "cosine"), *longer = run_object(20, "cosine"), *options = json_object();
    int64_t step;
    (void)state;
    CHECK_OK(hl_rundir_open(&d, out));
    CHECK_FAILS(hl_rundir_open(&other, out), HOLA_EIO, "another hola");
    hl_rundir_close(&other);
    CHECK_OK(hl_rundir_begin(&d, run, options, false, &step));
    assert_int_equal(step, -1);
    for (int64_t i = 1; i <= 6; i++) {
        struct hl_checkpoint c = checkpoint(m, t, i);
        c.state.updates = 1;
        CHECK_OK(hl_checkpoint_write(d.checkpoints, &c));
        CHECK_OK(hl_rundir_point(&d, "latest", i));
        if (i == 2) CHECK_OK(hl_rundir_point(&d, "best", i));
        CHECK_OK(hl_rundir_prune(&d, 2, i, i < 2 ? 1 : 2));
    }
    assert_int_equal(temp_entries(d.checkpoints, NULL), 3); /* 2, 5, 6 */
    assert_true(there(d.checkpoints, "step-00000002") && there(d.checkpoints, "step-00000005"));
    char *link = path_of(out, "latest");
    assert_int_equal(readlink(link, target, sizeof target - 1), 25);
    assert_string_equal(target, "checkpoints/step-00000006");
    /* what killed runs leave: half a checkpoint, a link, one that was being replaced */
    char *half = path_of(d.checkpoints, ".step-00000007.tmp"), *old = path_of(d.checkpoints, ".step-00000005.old");
    char *five = path_of(d.checkpoints, "step-00000005");
    CHECK_OK(hl_make_dirs(half));
    temp_write(half, "model.safetensors", "x", 1);
    assert_int_equal(rename(five, old), 0);
    temp_write(out, ".metrics.jsonl.tmp-1-2", "x", 1);
    temp_write(out, ".mine", "x", 1);
    hl_rundir_close(&d);
    CHECK_OK(hl_rundir_open(&d, out));
    assert_true(there(d.checkpoints, "step-00000005") && there(out, ".mine"));
    assert_false(there(out, ".metrics.jsonl.tmp-1-2") || there(d.checkpoints, ".step-00000007.tmp"));
    assert_int_equal(temp_entries(d.checkpoints, NULL), 3);
    CHECK_OK(hl_rundir_begin(&d, run, options, false, &step));
    assert_int_equal(step, 6);
    unlink(link); /* killed before it was made */
    CHECK_OK(hl_rundir_begin(&d, run, options, false, &step));
    assert_int_equal(step, 6);
    CHECK_FAILS(hl_rundir_begin(&d, longer, options, false, &step), HOLA_EINVAL, "has steps 10, not 20");
    json_object_set_new(json_object_get(longer, "config"), "d", json_integer(4));
    json_object_set_new(longer, "steps", json_integer(10));
    CHECK_FAILS(hl_rundir_begin(&d, longer, options, false, &step), HOLA_EINVAL, "has d 3, not 4");
    CHECK_OK(hl_rundir_begin(&d, longer, options, true, &step)); /* aside, not away */
    assert_int_equal(step, -1);
    char *aside = path_of(out, "old-1/checkpoints");
    assert_true(there(aside, "step-00000006") && !there(out, "checkpoints") && there(out, "run.json"));
    char *json = path_of(out, "run.json");
    temp_write(out, "metrics.jsonl", "x", 1);
    unlink(json);
    CHECK_FAILS(hl_rundir_begin(&d, run, options, false, &step), HOLA_EINVAL, "no run.json");
    temp_write(out, "run.json", "[", 1);
    CHECK_FAILS(hl_rundir_begin(&d, run, options, false, &step), HOLA_EFORMAT, "run.json");
    hl_rundir_close(&d);
    json_decref(run), json_decref(longer), json_decref(options);
    hola_trainer_free(t);
    hola_model_free(m);
    free(aside), free(json), free(link), free(half), free(old), free(five), free(out);
    temp_remove(dir);
}

static void lines(void **state) {
    char *dir = temp_new(), *path = path_of(dir, "metrics.jsonl");
    struct hl_metrics_log w;
    struct hl_metrics_history h;
    struct hl_metric m = {
        .loss = 1.0 / 3, .lr = 1e-4, .grad_norm = 2, .tok_per_s = 10, .seconds = 1, .val_loss = (double)NAN};
    (void)state;
    CHECK_OK(hl_metrics_open(&w, path, 0));
    for (m.step = 1; m.step <= 5; m.step++) CHECK_OK(hl_metrics_add(&w, &m, NULL));
    m.loss = (double)INFINITY, m.val_loss = 0.1;
    CHECK_OK(hl_metrics_add(&w, &m, NULL));
    CHECK_OK(hl_metrics_sync(&w));
    hl_metrics_close(&w);
    CHECK_OK(hl_metrics_history_read(&h, path));
    assert_int_equal(h.n, 6);
    assert_true(h.at[0].loss == 1.0 / 3 && isnan(h.at[0].val_loss) && isnan(h.at[5].loss) && h.at[5].val_loss == 0.1);
    hl_metrics_history_free(&h);

    FILE *f = fopen(path, "a"); /* a killed run, and somebody's hand */
    fputs("nonsense\n{\"step\": 2.5}\n{\"step\": 7, \"loss\": 1", f);
    fclose(f);
    CHECK_OK(hl_metrics_history_read(&h, path));
    assert_int_equal(h.n, 6);
    assert_int_equal(h.bad, 3);
    hl_metrics_history_free(&h);
    int64_t all, kept;
    char *before = temp_read(dir, "metrics.jsonl", &all);
    CHECK_OK(hl_metrics_open(&w, path, 4));
    char *after = temp_read(dir, "metrics.jsonl", &kept);
    assert_memory_equal(before, after, (size_t)kept);
    assert_int_equal(strncmp(before + kept, "{\"step\": 5,", 11), 0);

    /* a full disk: lines wait, none is cut, all are there in the end */
    struct rlimit limit, small;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    small = limit;
    small.rlim_cur = (rlim_t)kept + 200;
    setrlimit(RLIMIT_FSIZE, &small);
    hola_status got[3];
    for (m.step = 5; m.step <= 7; m.step++) got[m.step - 5] = hl_metrics_add(&w, &m, NULL);
    struct stat st;
    stat(path, &st);
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_true(got[0] == HOLA_OK && got[1] == HOLA_EIO && got[2] == HOLA_EIO);
    assert_true(st.st_size == w.size);
    CHECK_OK(hl_metrics_add(&w, &m, NULL));
    hl_metrics_close(&w);
    CHECK_OK(hl_metrics_history_read(&h, path));
    assert_true(h.n == 8 && h.bad == 0);
    for (int i = 0; i < 8; i++) assert_int_equal(h.at[i].step, i + 1);
    hl_metrics_history_free(&h);
    free(before), free(after), free(path);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(comes_back), cmocka_unit_test(damage_is_named),
                                       cmocka_unit_test(full_disk), cmocka_unit_test(directory),
                                       cmocka_unit_test(lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
