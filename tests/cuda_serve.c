/* cuda_serve.c -- the server's engine with a model on a device: it is ready before its first request, and many at once
 * are answered as each alone. */
#define _GNU_SOURCE
#include "serve/prefix.h"
#include "serve_case.h"

enum { PROMPTS = 6, TOKENS = 6 };
static const int64_t length[PROMPTS] = {1, 5, 64, 70, 150, 300};
static const hola_sampling likeliest = {.repeat_penalty = 1, .top_p = 1};

static void alone_on_device(hola_model *m, const int32_t *ids, int64_t n, int32_t *out) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    if (n > 1) CHECK_OK(hola_session_feed(s, ids, n - 1, NULL));
    CHECK_OK(hola_session_step_sample(&s, 1, ids + n - 1, &likeliest, out));
    for (int i = 1; i < TOKENS; i++) CHECK_OK(hola_session_step_sample(&s, 1, out + i - 1, &likeliest, out + i));
    hola_session_free(s);
}

static void answers(void **state) {
    struct rig g;
    struct asked *a[PROMPTS];
    int32_t *ids = random_ids(400, 256, 3), want[TOKENS];
    hola_model *m = case_model_on("cuda");
    (void)state;
    if (!m) skip();
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
        alone_on_device(m, ids + i, length[i], want);
        assert_int_equal(a[i]->error, HL_NO_ERROR);
        assert_int_equal(x->n, TOKENS);
        if (memcmp(x->ids, want, sizeof want)) fail_msg("a prompt of %d tokens: other ids", (int)length[i]);
        alone_on_device(m, ids + i + 1, length[i], want); /* another prompt is seen */
        assert_memory_not_equal(x->ids, want, sizeof want);
        asked_free(a[i]);
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
    hola_session_free(s);
    free(ids);
    temp_remove(dir);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(parked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
