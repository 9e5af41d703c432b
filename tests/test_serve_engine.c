/* test_serve_engine.c -- the engine without a network: every sequence gives what it gives alone, whoever else comes,
 * leaves, waits or fails. */
#define _GNU_SOURCE
#include "serve_case.h"
#include "serve/engine_internal.h"
#include <fcntl.h>

/* Prompts of every length up to three pieces: the cut into pieces changes no bit. */
static void lengths(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(300, 256, 3), want[20];
    (void)state;
    for (int64_t n = 1; n <= 200; n += n < 70 ? 1 : 7) {
        struct hl_serve_request *r = case_request(&g, ids, n, 20);
        r->cache_prompt = false;
        struct asked *a = case_ask(&g, r);
        alone(g.model, ids, n, 20, 1, want);
        assert_int_equal(a->answer[0].n, 20);
        if (memcmp(a->answer[0].ids, want, sizeof want)) fail_msg("a prompt of %d tokens: other ids", (int)n);
        assert_int_equal(a->answer[0].finish, HL_FINISH_LENGTH);
        assert_int_equal(a->answer[0].prompt_n, n);
        asked_free(a);
    }
    free(ids);
    rig_close(&g);
}

static bool cancelled(int i) { return i % 10 == 5 || i % 13 == 6; }
/* Many at once, of all lengths, with samplings of their own, some cut off: those that end are as alone. */
static void crowd(void **state) {
    enum { N = 60 };
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(3000, 256, 4), want[80];
    struct asked *a[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        const int64_t n = i % 9 == 0 ? 1500 : 1 + (int64_t)(check_mix((uint64_t)i) % 150);
        struct hl_serve_request *r = case_request(&g, ids + i, n, cancelled(i) ? ENDLESS : 10 + i);
        r->seed = (uint64_t)i;
        r->cache_prompt = false;
        if (i % 7 == 3) r->logprobs = 2;
        a[i] = case_submit(&g, r);
        if (i % 10 == 5) a[i]->cancel_after = 3;
        if (i % 13 == 6) { /* at once */
            atomic_store(&r->cancelled, true);
            hl_serve_nudge(g.e);
        }
    }
    case_wait(&g, NULL);
    for (int i = 0; i < N; i++) {
        const int64_t n = i % 9 == 0 ? 1500 : 1 + (int64_t)(check_mix((uint64_t)i) % 150);
        const struct answer *x = &a[i]->answer[0];
        alone(g.model, ids + i, n, 10 + i, (uint64_t)i, want);
        assert_int_equal(a[i]->error, HL_NO_ERROR);
        const int64_t compared = x->n < 10 + i ? x->n : 10 + i;
        if (memcmp(x->ids, want, (size_t)compared * sizeof *want)) fail_msg("sequence %d: other ids than alone", i);
        if (!cancelled(i)) assert_int_equal(x->n, 10 + i);
        else assert_int_equal(x->finish, HL_FINISH_NONE);
        for (int k = 0; i % 7 == 3 && k < x->n && k < 256; k++) assert_true(x->logprob[k] < 0 && x->logprob[k] > -30);
        asked_free(a[i]);
    }
    const struct hl_serve_metrics *m = hl_serve_metrics(g.e);
    assert_true(atomic_load(&m->step_sessions) > atomic_load(&m->steps)); /* they shared steps */
    assert_true(case_overlap == (atomic_load(&g.e->overlapped) > 0));
    assert_int_equal(atomic_load(&m->running), 0);
    free(ids);
    rig_close(&g);
}

/* The text is that of the ids, in order and whole, with and without a stop string, of one or several answers. */
static void texts(void **state) {
    enum { N = 8, TOKENS = 300 };
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(200, 256, 9);
    struct asked *a[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        struct hl_serve_request *r = case_request(&g, ids + i, 20, TOKENS);
        if (i % 2) case_stop(r, "no such text, but one that is looked for");
        r->n = 1 + i % 3;
        a[i] = case_submit(&g, r);
    }
    case_wait(&g, NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a[i]->error, HL_NO_ERROR);
        for (int k = 0; k < 1 + i % 3; k++) {
            const struct answer *x = &a[i]->answer[k];
            char text[TOKENS];
            int64_t n = 0;
            assert_int_equal(x->n, TOKENS);
            for (int j = 0; j < TOKENS; j++)
                if (x->ids[j] < 256) text[n++] = (char)x->ids[j];
            assert_int_equal(x->n_text, n);
            assert_memory_equal(x->text, text, (size_t)n);
        }
        asked_free(a[i]);
    }
    free(ids);
    rig_close(&g);
}

/* Every sequence with another sampling, together in a step: as each alone. */
static void samplings(void **state) {
    enum { N = 12, TOKENS = 24 };
    struct rig g;
    rig_open(&g, NULL);
    rig_stop(&g);
    g.o.parallel = N;
    rig_start(&g);
    int32_t *ids = random_ids(200, 256, 7);
    struct asked *a[N];
    hola_sampling p[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        p[i] = hola_sampling_default();
        if (i % 3 == 0) p[i].temp = 0;
        else p[i].temp = 0.5 + 0.1 * i, p[i].top_k = i % 3 == 1 ? 5 * i : 40;
        if (i % 4 == 2) p[i].repeat_penalty = 1.3, p[i].repeat_last_n = 8 * i;
        if (i == 11) p[i].top_k = 0, p[i].top_p = 1; /* all logits, from the time that it joins */
        struct hl_serve_request *r = case_request(&g, ids + i, i == 11 ? 120 : 20, TOKENS);
        r->sampling = p[i], r->seed = (uint64_t)i;
        a[i] = case_submit(&g, r);
    }
    case_wait(&g, NULL);
    for (int i = 0; i < N; i++) {
        hola_session *s;
        int32_t want[TOKENS];
        CHECK_OK(hola_session_new(&s, g.model));
        hola_session_seed(s, (uint64_t)i);
        CHECK_OK(hola_session_feed(s, ids + i, i == 11 ? 120 : 20, NULL));
        CHECK_OK(hola_session_sample(s, &p[i], &want[0]));
        for (int k = 1; k < TOKENS; k++) CHECK_OK(hola_session_step_sample(&s, 1, &want[k - 1], &p[i], &want[k]));
        hola_session_free(s);
        assert_int_equal(a[i]->error, HL_NO_ERROR);
        if (memcmp(a[i]->answer[0].ids, want, sizeof want)) fail_msg("sequence %d: other ids than alone", i);
        asked_free(a[i]);
    }
    free(ids);
    rig_close(&g);
}

static int64_t blocks_kept(hola_model *m) { return hl_state_pool_kept(&m->states); }
static void wait_for_blocks(hola_model *m, int64_t n) {
    for (int i = 0; i < 10000 && blocks_kept(m) != n; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(blocks_kept(m), n);
}
/* Sessions' memory is there before the engine takes requests, and none is added by `parallel` answers at once. What
 * snapshots take is there again as soon as the engine is idle. */
static void memory_ahead(void **state) {
    struct rig g;
    struct hl_state taken[100];
    struct asked *a[4];
    (void)state;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(100, 256, 4);
    assert_int_equal(blocks_kept(g.model), 4);
    rig_stop(&g);
    g.o.parallel = 100; /* more than the thread could have added by now */
    rig_start(&g);
    assert_int_equal(blocks_kept(g.model), 100);
    rig_stop(&g);
    g.o.parallel = 4;
    rig_start(&g);
    for (int i = 0; i < 4; i++) {
        struct hl_serve_request *r = case_request(&g, ids, 30 + i, 10);
        r->cache_prompt = false;
        a[i] = case_submit(&g, r);
    }
    case_wait(&g, NULL);
    for (int i = 0; i < 4; i++) asked_free(a[i]);
    assert_int_equal(blocks_kept(g.model), 100);
    for (int i = 0; i < 100; i++)
        CHECK_OK(hl_state_new(&taken[i], &g.model->state, g.model->backend, &g.model->states));
    for (int i = 0; i < 3; i++) {
        asked_free(case_ask(&g, case_request(&g, ids + i, 30, 10)));
        wait_for_blocks(g.model, 4);
    }
    assert_int_equal(atomic_load(&hl_serve_metrics(g.e)->snapshots), 6);
    for (int i = 0; i < 100; i++) hl_state_free(&taken[i], g.model->backend, &g.model->states);
    free(ids);
    rig_close(&g);
}

/* The first token goes out before the prompt's snapshot, a copy of the state, is made: here the engine waits while it
 * announces the token, because the pipe is full, and has taken one block, not two. */
static void token_before_snapshot(void **state) {
    struct rig g;
    int fd[2];
    char page[4096];
    (void)state;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(100, 256, 4);
    wait_for_blocks(g.model, 4);
    assert_int_equal(pipe2(fd, O_NONBLOCK), 0);
    memset(page, 1, sizeof page);
    while (write(fd[1], page, sizeof page) > 0) {}
    while (write(fd[1], page, 1) > 0) {}
    assert_int_equal(fcntl(fd[1], F_SETFL, 0), 0);
    g.events.wake = fd[1];
    struct asked *a = case_submit(&g, case_request(&g, ids, 30, 4));
    for (int held = 0; held < 20;) { /* it holds the queue's lock while it writes */
        const bool free_now = pthread_mutex_trylock(&g.events.lock) == 0;
        if (free_now) pthread_mutex_unlock(&g.events.lock);
        held = free_now ? 0 : held + 1;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_int_equal(blocks_kept(g.model), 3);
    while (read(fd[0], page, sizeof page) > 0) {}
    case_wait(&g, NULL);
    asked_free(a);
    a = case_ask(&g, case_request(&g, ids, 30, 4)); /* and there is one in the end */
    assert_int_equal(a->answer[0].cached_n, 30);
    asked_free(a);
    free(ids);
    rig_close(&g);
    close(fd[0]), close(fd[1]);
}

/* Several prompts, several answers each: choice i is what seed + i gives. */
static void choices(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(300, 256, 5), want[12];
    (void)state;
    struct hl_serve_request *r = case_request(&g, ids, 100, 12);
    r->prompts = 3, r->n = 5;
    free(r->prompt[0].ids);
    free(r->prompt);
    r->prompt = calloc(3, sizeof *r->prompt);
    for (int i = 0; i < 3; i++) {
        r->prompt[i] = (struct hl_prompt){malloc(100 * sizeof *ids), 70 + i};
        memcpy(r->prompt[i].ids, ids + 10 * i, 100 * sizeof *ids);
    }
    struct asked *a = case_submit(&g, r), *other = case_submit(&g, case_request(&g, ids + 7, 20, 12));
    case_wait(&g, NULL);
    for (int i = 0; i < 15; i++) {
        alone(g.model, ids + i / 5 * 10, 70 + i / 5, 12, 1 + (uint64_t)i, want);
        assert_int_equal(a->answer[i].n, 12);
        if (memcmp(a->answer[i].ids, want, sizeof want)) fail_msg("choice %d: other ids", i);
    }
    alone(g.model, ids + 7, 20, 12, 1, want);
    assert_memory_equal(other->answer[0].ids, want, sizeof want);
    asked_free(a), asked_free(other);
    free(ids);
    rig_close(&g);
}

static void prefixes(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(20000, 256, 6), want[20];
    (void)state;
    struct asked *a = case_ask(&g, case_request(&g, ids, 130, 20));
    assert_int_equal(a->answer[0].cached_n, 0);
    alone(g.model, ids, 130, 20, 1, want);
    assert_memory_equal(a->answer[0].ids, want, sizeof want);
    struct asked *again = case_ask(&g, case_request(&g, ids, 130, 20)); /* the same: all of it, and its logits */
    assert_int_equal(again->answer[0].cached_n, 130);
    assert_memory_equal(again->answer[0].ids, want, sizeof want);
    /* the conversation goes on: prompt, answer, more */
    memcpy(ids + 130, a->answer[0].ids, sizeof want);
    struct asked *more = case_ask(&g, case_request(&g, ids, 200, 5));
    assert_int_equal(more->answer[0].cached_n, 149); /* all but the answer's last token */
    ids[100]++;                                      /* another text after 100 tokens: nothing to begin with */
    struct asked *none = case_ask(&g, case_request(&g, ids, 200, 5));
    assert_int_equal(none->answer[0].cached_n, 0);
    asked_free(a), asked_free(again), asked_free(more), asked_free(none);
    /* on the way through a long one */
    a = case_ask(&g, case_request(&g, ids, 10000, 1));
    ids[9000]++;
    more = case_ask(&g, case_request(&g, ids, 10000, 1));
    assert_int_equal(more->answer[0].cached_n, 200 + 8192); /* a snapshot every 8192 tokens that are read */
    struct hl_serve_request *r = case_request(&g, ids, 10000, 1);
    r->cache_prompt = false;
    again = case_ask(&g, r);
    assert_int_equal(again->answer[0].cached_n, 0);
    asked_free(a), asked_free(more), asked_free(again);
    rig_stop(&g);
    /* no memory for snapshots: none are kept, all works */
    g.o.cache_mem = 0;
    rig_start(&g);
    for (int i = 0; i < 2; i++) {
        a = case_ask(&g, case_request(&g, ids, 130, 20));
        assert_int_equal(a->answer[0].cached_n, 0);
        asked_free(a);
    }
    assert_int_equal(atomic_load(&hl_serve_metrics(g.e)->snapshots), 0);
    free(ids);
    rig_close(&g);
}

/* The budget holds: the least recently used goes first. */
static void budget(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    rig_stop(&g);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, g.model));
    g.o.cache_mem = 4 * (hl_session_cost(s, CASE_VOCAB) + 5 * 30 + (int64_t)sizeof(struct hl_prefix_point));
    hola_session_free(s);
    rig_start(&g);
    int32_t *ids = random_ids(500, 256, 7);
    (void)state;
    for (int i = 0; i < 20; i++) asked_free(case_ask(&g, case_request(&g, ids + i, 30, 1)));
    const struct hl_serve_metrics *m = hl_serve_metrics(g.e);
    assert_int_equal(atomic_load(&m->snapshots), 4);
    assert_true(atomic_load(&m->snapshot_bytes) <= g.o.cache_mem);
    struct asked *a = case_ask(&g, case_request(&g, ids + 19, 30, 1));
    assert_int_equal(a->answer[0].cached_n, 30);
    asked_free(a);
    a = case_ask(&g, case_request(&g, ids, 30, 1));
    assert_int_equal(a->answer[0].cached_n, 0);
    asked_free(a);
    free(ids);
    rig_close(&g);
}

static void too_many(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    rig_stop(&g);
    g.o.parallel = 1, g.o.queue = 2;
    rig_start(&g);
    int32_t *ids = random_ids(500, 256, 8);
    struct asked *a[6];
    int full = 0;
    (void)state;
    for (int i = 0; i < 6; i++) a[i] = case_submit(&g, case_request(&g, ids, 300, 200));
    case_wait(&g, NULL);
    for (int i = 0; i < 6; i++) {
        full += a[i]->error == HL_OVERLOADED;
        if (i < 3) assert_int_equal(a[i]->error, HL_NO_ERROR);
        asked_free(a[i]);
    }
    assert_int_equal(full, 3);
    rig_stop(&g);
    g.o.timeout_queue = 0.05;
    rig_start(&g);
    struct asked *first = case_submit(&g, case_request(&g, ids, 300, ENDLESS)),
                 *second = case_submit(&g, case_request(&g, ids, 10, 5));
    case_wait(&g, second);
    assert_int_equal(second->error, HL_OVERLOADED);
    atomic_store(&first->r->cancelled, true);
    hl_serve_nudge(g.e);
    case_wait(&g, NULL);
    asked_free(first), asked_free(second);
    free(ids);
    rig_close(&g);
}

/* A reader that does not read is not stepped, and others are. */
static void held(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(500, 256, 9), want[50];
    (void)state;
    struct hl_serve_request *r = case_request(&g, ids, 20, 50);
    atomic_store(&r->held, true);
    struct asked *slow = case_submit(&g, r);
    struct asked *other = case_ask(&g, case_request(&g, ids + 3, 20, 50));
    assert_true(slow->answer[0].n < 50);
    atomic_store(&slow->r->held, false);
    hl_serve_nudge(g.e);
    case_wait(&g, slow);
    alone(g.model, ids, 20, 50, 1, want);
    assert_memory_equal(slow->answer[0].ids, want, sizeof want);
    asked_free(slow), asked_free(other);
    /* held while it writes: no token that was sampled stays behind */
    const int64_t before = atomic_load(&hl_serve_metrics(g.e)->generated_tokens);
    struct asked *stops = case_submit(&g, case_request(&g, ids, 20, ENDLESS));
    while (stops->answer[0].n < 20) case_take_all(&g);
    atomic_store(&stops->r->held, true);
    int64_t was = -1, now = 0;
    for (struct hl_message *m; (m = hl_queue_take(&g.events, 0.05)) || was != now;) {
        for (struct hl_message *next; m; m = next) next = m->next, case_take(&g, (struct hl_event *)m);
        was = now, now = atomic_load(&hl_serve_metrics(g.e)->generated_tokens) - before;
    }
    assert_int_equal(stops->answer[0].n, now);
    atomic_store(&stops->r->cancelled, true);
    hl_serve_nudge(g.e);
    case_wait(&g, NULL);
    asked_free(stops);
    /* gone between two steps, with a token that was sampled and has no text yet */
    const int64_t then = atomic_load(&hl_serve_metrics(g.e)->generated_tokens);
    struct asked *gone = case_submit(&g, case_request(&g, ids, 20, ENDLESS));
    while (gone->answer[0].n < 20) case_take_all(&g);
    atomic_store(&gone->r->cancelled, true);
    case_wait(&g, NULL);
    assert_int_equal(gone->answer[0].n, atomic_load(&hl_serve_metrics(g.e)->generated_tokens) - then);
    asked_free(gone);
    free(ids);
    rig_close(&g);
}

/* Whoever does not take its events gets a bounded number of them, and the rest once it does. */
static void unread(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(2000, 256, 13), *want = malloc(1200 * sizeof *want);
    (void)state;
    alone(g.model, ids, 30, 1200, 1, want);
    struct hl_serve_request *r = case_request(&g, ids, 30, 1200), *scores = case_request(&g, ids, 2000, 1);
    scores->score_prompt = true, scores->logprobs = 1;
    struct asked *a = case_submit(&g, r), *b = case_submit(&g, scores);
    while (atomic_load(&r->unread) < 512 || atomic_load(&scores->unread) < 512) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    assert_true(atomic_load(&r->unread) == 512 && atomic_load(&scores->unread) <= 512 + 64);
    case_wait(&g, NULL);
    assert_int_equal(a->answer[0].n, 1200);
    assert_memory_equal(a->answer[0].ids, want, 1200 * sizeof *want);
    assert_int_equal(b->prompt_tokens, 2000);
    asked_free(a), asked_free(b);
    free(ids), free(want);
    rig_close(&g);
}

/* Tokens that overflow in one request: that one fails, alone. */
static void not_finite(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(500, 240, 10), want[60], bad[3] = {5, 250, 7};
    (void)state;
    real *row = g.model->rows + g.model->params.tensor[g.model->params.embed].offset + 250 * g.model->cfg.hidden_size;
    rig_stop(&g);
    hola_model_free(g.model);
    g.o.model = g.model = case_model();
    row = g.model->rows + g.model->params.tensor[g.model->params.embed].offset + 250 * g.model->cfg.hidden_size;
    for (int64_t i = 0; i < g.model->cfg.hidden_size; i++) row[i] = NAN;
    rig_start(&g);
    struct asked *a = case_submit(&g, case_request(&g, ids, 40, 60)), *b = case_submit(&g, case_request(&g, bad, 3, 9));
    struct hl_serve_request *r = case_request(&g, ids, 50, 30); /* chosen, then fed */
    r->bias = calloc(1, sizeof *r->bias);
    r->bias[0] = (struct hl_logit_bias){250, 100};
    r->n_bias = 1;
    struct asked *c = case_submit(&g, r);
    case_wait(&g, NULL);
    assert_int_equal(a->error, HL_NO_ERROR);
    assert_int_equal(b->error, HL_NOT_FINITE);
    assert_int_equal(c->error, HL_NOT_FINITE);
    assert_int_equal(c->answer[0].ids[0], 250);
    /* (the answer may hold 250 itself, then it fails too; it does not with this seed) */
    alone(g.model, ids, 40, 60, 1, want);
    assert_memory_equal(a->answer[0].ids, want, sizeof want);
    asked_free(a), asked_free(b), asked_free(c);
    free(ids);
    rig_close(&g);
}

enum { BURST = 40 };
/* The tokens of others between the first and the last of as many answers of no tokens: each ends in the round in which
 * it joined. The first one reads the prompt, the others start as its copies. */
static int64_t between_joins(struct rig *g, const int32_t *ids) {
    struct hl_serve_request *r = case_request(g, ids, 1, 0);
    r->n = BURST;
    struct asked *burst = case_submit(g, r);
    int64_t between = 0, ended = 0;
    while (!burst->ended) {
        struct hl_message *m = hl_queue_take(&g->events, 60), *next;
        if (!m) fail_msg("nothing came for a minute");
        for (; m; m = next) {
            next = m->next;
            between += m->kind == HL_EVENT_TOKEN && ended > 0 && ended < BURST;
            ended += m->kind == HL_EVENT_FINISH;
            case_take(g, (struct hl_event *)m);
        }
    }
    assert_int_equal(ended, BURST);
    asked_free(burst);
    return between;
}

/* Sequences that come in a burst join over several steps: copying a session takes longer than a step here, and whoever
 * writes must not wait for all of them. */
static void joining(void **state) {
    struct rig g;
    hola_config cfg;
    const hola_options opt = {.threads = 1};
    rig_open(&g, NULL);
    rig_stop(&g);
    hola_model_free(g.model);
    CHECK_OK(hl_config_parse(&cfg, CASE_CONFIG, (int64_t)strlen(CASE_CONFIG), "case"));
    cfg.head_dim = 128, cfg.cache_window = 4096; /* 17 MB of state, of which a step reads what the text has filled */
    CHECK_OK(hola_model_new(&g.model, &cfg, 7, &opt));
    g.o.model = g.model;
    g.o.parallel = BURST + 1, g.o.cache_mem = 0;
    rig_start(&g);
    int32_t *ids = random_ids(500, 256, 14);
    (void)state;
    struct asked *writer = case_submit(&g, case_request(&g, ids, 2, 4000));
    while (writer->answer[0].n == 0) case_take_all(&g);
    /* several tries: where a busy machine stops the engine in a step, joining may take as long */
    int64_t most = 0;
    for (int i = 0; i < 10 && most < BURST / 4; i++) {
        const int64_t n = between_joins(&g, ids + 9 + i);
        if (n > most) most = n;
    }
    atomic_store(&writer->r->cancelled, true);
    hl_serve_nudge(g.e);
    case_wait(&g, NULL);
    if (most < BURST / 4) fail_msg("%d sequences joined while one that writes took %d steps", BURST, (int)most);
    asked_free(writer);
    free(ids);
    rig_close(&g);
}

static void ends(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(500, 256, 11), want[80];
    (void)state;
    alone(g.model, ids, 30, 80, 1, want);
    /* a stop string: three bytes of what it would write */
    const char text[] = {(char)want[20], (char)want[21], (char)want[22], 0};
    struct hl_serve_request *r = case_request(&g, ids, 30, 80);
    case_stop(r, text);
    struct asked *a = case_ask(&g, r);
    assert_int_equal(a->answer[0].finish, HL_FINISH_STOP);
    assert_true(a->answer[0].n <= 23 && a->answer[0].n_text <= 20);
    assert_int_equal(a->answer[0].predicted_n, a->answer[0].n);
    asked_free(a);
    /* EOS is not part of the answer */
    rig_stop(&g);
    g.o.eos = want[7];
    rig_start(&g);
    r = case_request(&g, ids, 30, 80);
    r->ignore_eos = false;
    a = case_ask(&g, r);
    int64_t n = 0;
    while (want[n] != want[7]) n++;
    assert_int_equal(a->answer[0].n, n);
    assert_int_equal(a->answer[0].finish, HL_FINISH_STOP);
    asked_free(a);
    /* nothing is to be written: only read; and with scores */
    r = case_request(&g, ids, 130, 0);
    r->score_prompt = true, r->logprobs = 1;
    a = case_ask(&g, r);
    assert_int_equal(a->prompt_tokens, 130);
    assert_int_equal(a->answer[0].n, 0);
    asked_free(a);
    /* penalties count what was written, a bias decides */
    r = case_request(&g, ids, 30, 40);
    r->bias = calloc(1, sizeof *r->bias);
    r->bias[0] = (struct hl_logit_bias){65, 100}, r->n_bias = 1;
    a = case_ask(&g, r);
    for (int i = 0; i < 40; i++) assert_int_equal(a->answer[0].ids[i], 65);
    asked_free(a);
    r = case_request(&g, ids, 30, 40);
    r->sampling = (hola_sampling){.repeat_penalty = 1, .top_p = 1, .temp = 0};
    r->bias = calloc(1, sizeof *r->bias);
    r->bias[0] = (struct hl_logit_bias){65, 100}, r->n_bias = 1;
    r->frequency = 2, r->presence = 2; /* 100 is used up after some 49 */
    r->max_tokens = 100;
    a = case_ask(&g, r);
    int other = 0;
    for (int i = 0; i < 100; i++) other += a->answer[0].ids[i] != 65;
    assert_true(other > 30 && other < 80);
    asked_free(a);
    free(ids);
    rig_close(&g);
}

static void stopping(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    rig_stop(&g);
    g.o.parallel = 1;
    rig_start(&g);
    int32_t *ids = random_ids(500, 256, 12);
    (void)state;
    struct asked *runs = case_submit(&g, case_request(&g, ids, 30, ENDLESS));
    while (runs->answer[0].n == 0) {
        struct hl_message *m = hl_queue_take(&g.events, 60), *next;
        for (; m; m = next) next = m->next, case_take(&g, (struct hl_event *)m);
    }
    struct asked *waits = case_submit(&g, case_request(&g, ids, 30, 40));
    hl_serve_stop(g.e, 0.05);
    struct asked *late = case_submit(&g, case_request(&g, ids, 30, 40));
    case_wait(&g, NULL);
    assert_int_equal(waits->error, HL_SHUTTING_DOWN);
    assert_int_equal(late->error, HL_SHUTTING_DOWN);
    assert_int_equal(runs->error, HL_NO_ERROR);
    assert_int_equal(runs->answer[0].finish, HL_FINISH_LENGTH);
    assert_true(runs->answer[0].n > 0 && runs->answer[0].n < ENDLESS);
    asked_free(runs), asked_free(waits), asked_free(late);
    /* at once: after all tokens that it had sampled */
    for (int i = 0; i < 20; i++) {
        rig_stop(&g);
        rig_start(&g);
        runs = case_submit(&g, case_request(&g, ids, 30, ENDLESS));
        while (runs->answer[0].n < 3) case_take_all(&g);
        hl_serve_stop(g.e, 0);
        case_wait(&g, NULL);
        assert_int_equal(runs->answer[0].n, runs->answer[0].predicted_n);
        asked_free(runs);
    }
    free(ids);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),        cmocka_unit_test(samplings),
        cmocka_unit_test(lengths),      cmocka_unit_test(crowd),
        cmocka_unit_test(choices),      cmocka_unit_test(prefixes),
        cmocka_unit_test(budget),       cmocka_unit_test(too_many),
        cmocka_unit_test(held),         cmocka_unit_test(ends),
        cmocka_unit_test(not_finite),   cmocka_unit_test(joining),
        cmocka_unit_test(stopping),     cmocka_unit_test(unread),
        cmocka_unit_test(memory_ahead), cmocka_unit_test(token_before_snapshot),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    case_overlap = true;
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
