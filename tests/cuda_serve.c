/* cuda_serve.c -- the server's engine with a model on a device: it is ready before its first request, and many at once
 * are answered as each alone: with the same ids in the emulator, on a device up to rounding, since the kernel of a
 * product depends on the rows of a pass. */
#define _GNU_SOURCE
#include "cuda.h"
#include "cuda/device.h"
#include "serve/engine_internal.h"
#include "serve_case.h"

enum { PROMPTS = 6, TOKENS = 6 };
static const int64_t length[PROMPTS] = {1, 5, 64, 70, 150, 300};
static const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};

/* How far these ids were from the likeliest after the prompt and each other, in logits, for a session alone. */
static double below_likeliest(hola_model *m, const int32_t *prompt, int64_t n, const int32_t *ids) {
    float x[CASE_VOCAB];
    double gap = 0;
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, prompt, n, x));
    for (int i = 0; i < TOKENS; i++) {
        float most = x[0];
        for (int j = 1; j < CASE_VOCAB; j++) most = x[j] > most ? x[j] : most;
        gap = fmax(gap, (double)(most - x[ids[i]]));
        CHECK_OK(hola_session_feed(s, ids + i, 1, x));
    }
    hola_session_free(s);
    return gap;
}

static void answers(void **state) {
    struct rig g;
    struct asked *a[PROMPTS];
    int32_t *ids = random_ids(400, 256, 3);
    double worst = 0, least = 1e30;
    hola_model *m = case_model_on("cuda");
    (void)state;
    if (!m) skip();
    const double most = dev_emulated(m->backend) ? 0 : 0.5;
    rig_open_with(&g, m, NULL);
    rig_stop(&g);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    g.o.parallel = 100; /* more than the thread could have added by now */
    g.o.cache_mem = 10 * hl_session_cost(s, CASE_VOCAB);
    hola_session_free(s);
    hl_state_pool_free(&m->states, m->backend);
    rig_start(&g);
    assert_int_equal(hl_state_pool_kept(&m->states), 110); /* memory of sessions and snapshots is there */
    for (int i = 0; i < PROMPTS; i++) {
        struct hl_serve_request *r = case_request(&g, ids + i, length[i], TOKENS);
        r->sampling = likeliest;
        a[i] = case_submit(&g, r);
    }
    case_wait(&g, NULL);
    for (int i = 0; i < PROMPTS; i++) {
        const struct answer *x = &a[i]->answer[0];
        assert_int_equal(a[i]->error, HL_NO_ERROR);
        assert_int_equal(x->n, TOKENS);
        const double gap = below_likeliest(m, ids + i, length[i], x->ids);
        const double wrong = below_likeliest(m, ids + i + 1, length[i], x->ids); /* another prompt is seen */
        if (!(gap <= most && wrong > 3))
            fail_msg("a prompt of %d tokens: %.2g below, of another prompt %.2g", (int)length[i], gap, wrong);
        worst = fmax(worst, gap), least = fmin(least, wrong);
        asked_free(a[i]);
    }
    assert_true(atomic_load(&g.e->overlapped) > 0); /* text is made while a step runs */
    print_message("ids are up to %.2g below the likeliest, those of another prompt at least %.2g\n", worst, least);
    free(ids);
    rig_close(&g);
}

/* What the backend is asked for: graphs, and rows of passes. The device of the tests has no graphs. */
static struct {
    uint64_t key[4096];
    int used[4096];  /* times before the engine had started */
    int keys, later; /* later: keys that were new when the engine had started */
    bool started;
    int64_t most_prompts; /* in a pass */
} seen;
static bool note_key(struct hl_backend *b, uint64_t key) {
    (void)b;
    for (int i = 0; i < seen.keys; i++)
        if (seen.key[i] == key) {
            seen.used[i] += !seen.started;
            return false;
        }
    assert_true(seen.keys < 4096);
    seen.used[seen.keys] = !seen.started;
    seen.key[seen.keys++] = key;
    seen.later += seen.started;
    return false; /* the work has to be done all the same */
}
static hola_status (*cut_rows)(struct hl_backend *, struct hl_rows *, int64_t);
static hola_status note_rows(struct hl_backend *b, struct hl_rows *rows, int64_t C) {
    if (seen.started && rows->T > rows->n && rows->n > seen.most_prompts) seen.most_prompts = rows->n;
    return cut_rows(b, rows, C);
}

/* A burst of prompts and streams with several samplings, of lengths that the start did not try: their steps are known
 * graphs, nothing takes new memory, which would end all graphs, and prompts share passes. */
static void ready(void **state) {
    enum { N = 7, LONG = 40 };
    struct rig g;
    struct asked *a[4 * N];
    int32_t *ids = random_ids(400, 256, 3);
    hola_model *m = case_model_on("cuda");
    int n = 0;
    (void)state;
    if (!m) skip();
    memset(&seen, 0, sizeof seen);
    m->decoder.off = true; /* steps by ops, whatever their number */
    m->backend->graphs.replay = note_key;
    cut_rows = m->backend->storage.cut_rows;
    m->backend->storage.cut_rows = note_rows;
    rig_open_with(&g, m, NULL);
    rig_stop(&g);
    g.o.parallel = N;
    rig_start(&g);
    assert_true(seen.keys >= 2 * N);
    for (int i = 0; i < seen.keys; i++) assert_true(seen.used[i] >= 3); /* runs, is captured, is replayed */
    assert_true(g.e->pace.power[false][0] > 0 && g.e->pace.power[true][0] > 0);
    for (int i = 0; i < HL_PACE_POWERS; i++) g.e->pace.power[true][i] = 1e-6; /* the emulator takes seconds */
    const struct hl_cuda *c = m->backend->device;
    const struct hl_activations *acts = &m->infer;
    const struct hl_cuda was = *c;
    const struct hl_activations acts_were = *acts;
    const struct hl_candidate *candidates = m->candidates;
    seen.started = true;
    for (int all = 0; all < 2; all++) { /* the second time: some that need more logits than the start took */
        for (int i = 0; i < 2 * N; i++) {
            struct hl_serve_request *r = case_request(&g, ids + i, all ? 77 + 17 * i : 63 + i, LONG);
            r->sampling = i % 2 ? likeliest : hola_sampling_default();
            if (all && i % 3 == 0) r->sampling.top_k = 60 * (i % 2) + 60, r->sampling.temp = 1;
            a[n++] = case_submit(&g, r);
        }
        case_wait(&g, NULL);
        if (!all) assert_int_equal(seen.later, 0);
    }
    assert_true(seen.later > 0); /* it is counted */
    assert_true(seen.most_prompts > 1);
    assert_true(c->scratch == was.scratch);
    assert_int_equal(c->rows_room, was.rows_room);
    assert_true(acts->block == acts_were.block && acts->logits == acts_were.logits && m->candidates == candidates);
    while (n > 0) {
        assert_int_equal(a[--n]->error, HL_NO_ERROR);
        asked_free(a[n]);
    }
    free(ids);
    rig_close(&g);
}

/* A conversation that was parked in a file goes on, through a block of host memory that is used again. */
static void parked(void **state) {
    struct rig g;
    char *dir = temp_new();
    int32_t *ids = random_ids(400, 256, 3), first[TOKENS];
    hola_model *m = case_model_on("cuda");
    (void)state;
    if (!m) skip();
    rig_open_with(&g, m, NULL);
    hola_session *s, *back;
    char path[4200];
    snprintf(path, sizeof path, "%s/s", dir);
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, 100, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hola_session_save(s, path, HOLA_F32));
        assert_int_equal(hl_state_pool_kept(&m->staging), 1);
        CHECK_OK(hola_session_new(&back, m));
        CHECK_OK(hola_session_load(back, path));
        assert_int_equal(hl_state_pool_kept(&m->staging), 1);
        CHECK_OK(hola_session_step_sample(&back, 1, ids + 100, &likeliest, first + i));
        assert_int_equal(first[i], first[0]);
        hola_session_free(back);
    }
    /* packed beside a pass, from a copy on the host */
    struct hl_restore_point *copy;
    char *want, *file;
    int64_t n, bytes;
    uint64_t hash;
    CHECK_OK(hl_model_hash(m, &hash));
    CHECK_OK(hl_snapshot_make(s, path, HOLA_BF16, &want, &n));
    CHECK_OK(hl_snapshot_copy(&copy, s, path));
    CHECK_OK(hola_session_feed(s, ids, 5, NULL));
    CHECK_OK(hl_snapshot_pack(m, hash, copy, path, HOLA_BF16, &file, &bytes));
    assert_int_equal(bytes, n);
    assert_memory_equal(file, want, (size_t)n);
    hl_snapshot_free(m, copy);
    assert_int_equal(hl_state_pool_kept(&m->staging), 1);
    free(file), free(want);
    hola_session_free(s);
    free(ids);
    temp_remove(dir);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(ready), cmocka_unit_test(parked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
