/* test_lookup.c -- drafts from the text itself: the text is the one that is written without them, to the bit, whatever
 * the model, the sampling, the draft and the way the text ends; and the session goes on alike. */
#define _GNU_SOURCE
#include "mixers/gdn/gdn_layer.h"
#include "model/lookup.h"
#include "model/session.h"
#include "models.h"
#include "temp.h"

static hola_session *session_of(hola_model *m, const int32_t *ids, int64_t n, uint64_t seed) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    CHECK_OK(hola_session_feed(s, ids, n, NULL));
    hola_session_seed(s, seed);
    return s;
}

/* ---- short passes ---- */

/* Passes of len tokens against steps: how many rows of logits have other bits. */
static int64_t unlike(hola_model *m, int64_t len) {
    enum { START = 21, END = 150 }; /* over several blocks of 32 */
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(END, vocab, 77);
    float *x = malloc((size_t)vocab * sizeof *x), *each = malloc((size_t)(vocab * len) * sizeof *each);
    hola_session *a = session_of(m, ids, START, 0), *b = session_of(m, ids, START, 0);
    int64_t bad = 0;
    for (int64_t i = START; i + len <= END; i += len) {
        CHECK_OK(hola_session_feed_each(a, ids + i, len, each));
        for (int64_t j = 0; j < len; j++) {
            CHECK_OK(hola_session_feed(b, ids + i + j, 1, x));
            bad += memcmp(x, each + j * vocab, (size_t)vocab * sizeof *x) != 0;
        }
    }
    hola_session_free(a), hola_session_free(b);
    free(ids), free(x), free(each);
    return bad;
}
static void short_passes_are_steps(void **state) {
    const char *const backends[] = {NULL, "ref", "base", "avx2"};
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (size_t b = 0; b < (v % 4 == 0 ? 4 : 1); b++) {
            hola_config cfg = variant_config(v);
            hola_model *m;
            if (hola_model_new(&m, &cfg, 7, &(hola_options){.threads = 2, .backend = backends[b]}) != HOLA_OK)
                continue; /* a processor without it */
            for (int64_t len = 2; len <= HOLA_STEPS; len += len == 3 ? 4 : 1)
                if (unlike(m, len))
                    fail_msg("%s: a pass of %lld tokens is not so many steps", variants[v].name, (long long)len);
            if (v == 0 && b == 0) assert_true(unlike(m, 16) > 0); /* longer ones round otherwise, and that is seen */
            hola_model_free(m);
        }
}

/* ---- choices after every token ---- */

static hola_sampling sampling_of(int i) {
    hola_sampling p = hola_sampling_default();
    if (i == 0) p.temp = 0;
    if (i == 2) p.temp = 0.2, p.repeat_penalty = 1.3, p.repeat_last_n = 20;
    if (i == 3) p.top_k = 0, p.temp = 1.5, p.min_p = 0;
    if (i == 4) p.temp = 0, p.repeat_penalty = 1.1, p.repeat_last_n = HOLA_RECENT;
    if (i == 5) p.repeat_penalty = 0.9, p.temp = 0.3;
    return p;
}
enum { SAMPLINGS = 6 };

static void choices_are_those_of_steps(void **state) {
    enum { START = 1100, N = 40 };
    hola_model *m = variant_model(0, 1, NULL);
    int32_t *ids = random_ids(START + N, m->cfg.vocab_size, 3), next[HOLA_STEPS], one;
    (void)state;
    for (int i = 0; i < SAMPLINGS; i++) {
        const hola_sampling p = sampling_of(i);
        hola_session *a = session_of(m, ids, START, 11), *b = session_of(m, ids, START, 11);
        for (int64_t at = START, len = 1; at + len <= START + N; at += len, len = len % HOLA_STEPS + 1) {
            CHECK_OK(hola_session_feed_sample(a, ids + at, len, &p, next));
            assert_true(!hola_session_logits(a));
            for (int64_t j = 0; j < len; j++) {
                CHECK_OK(hola_session_step_sample(&b, 1, ids + at + j, &p, &one));
                assert_int_equal(one, next[j]);
            }
        }
        hola_session_free(a), hola_session_free(b);
    }
    hola_session *s = session_of(m, ids, 5, 0);
    CHECK_FAILS(hola_session_feed_sample(s, ids, 0, NULL, next), HOLA_EINVAL, "not 1 to 8");
    CHECK_FAILS(hola_session_feed_sample(s, ids, HOLA_STEPS + 1, NULL, next), HOLA_EINVAL, "not 1 to 8");
    CHECK_FAILS(hola_session_feed_sample(s, &(int32_t){-1}, 1, NULL, next), HOLA_EINVAL, "vocabulary");
    hola_session_free(s);
    free(ids);
    hola_model_free(m);
}

/* ---- whole texts ---- */

enum { LENGTH = 150 };
struct text {
    hola_session *s;
    hola_history *past;
    int32_t ids[LENGTH];
    int64_t n, ahead, behind; /* tokens that came while the session was past them, or before others */
    int64_t before;           /* ids of the prompt */
    int64_t cancel;           /* after so many; 0: never */
    bool forget;              /* a wrong version: the state is lost whenever a draft is taken back */
    hola_end end;
};
static bool hear(void *ctx, int32_t id, const char *text, int64_t len) {
    struct text *t = ctx;
    (void)text, (void)len;
    if (id < 0) return true;
    const int64_t off = hola_session_position(t->s) - t->before - t->n;
    t->ids[t->n++] = id;
    t->ahead += off > 0, t->behind += off < 0;
    if (t->forget && off < 0) memset(t->s->now.state.fixed + t->s->model->state.at[STATE_S], 0, 64);
    return t->n != t->cancel;
}
static struct text new_text(hola_model *m, const int32_t *prompt, int64_t n, uint64_t seed) {
    return (struct text){.s = session_of(m, prompt, n, seed), .before = n};
}
static void write_text(struct text *t, const hola_generate_opts *how) {
    hola_generate_opts o = *how;
    o.size = sizeof o, o.on_token = hear, o.ctx = t;
    CHECK_OK(hola_generate(t->s, NULL, &o, NULL, &t->end));
}

/* Both wrote the same, stand at the same place, and go on alike. Frees them. */
static void compare(struct text *a, struct text *b, const char *what) {
    const size_t bytes = (size_t)a->s->model->cfg.vocab_size * sizeof(float);
    const bool eos = a->end == HOLA_END_EOS;
    const int32_t more[] = {1, 5, 9, 2, 5, 9, 2, 7};
    assert_null(a->s->draft);
    if (a->n != b->n || memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids)) fail_msg("%s: another text", what);
    assert_int_equal(a->end, b->end);
    assert_int_equal(hola_session_position(a->s), hola_session_position(b->s));
    if (!eos && memcmp(hola_session_logits(a->s), hola_session_logits(b->s), bytes)) fail_msg("%s: other logits", what);
    for (size_t i = 0; i < 40; i++) {
        CHECK_OK(hola_session_feed(a->s, &more[i % 8], 1, NULL));
        CHECK_OK(hola_session_feed(b->s, &more[i % 8], 1, NULL));
        if (memcmp(hola_session_logits(a->s), hola_session_logits(b->s), bytes))
            fail_msg("%s: other logits after %zu more", what, i + 1);
    }
    hola_history_free(a->past), hola_history_free(b->past);
    hola_session_free(a->s), hola_session_free(b->s);
}

/* Of a text, every 11th id another: drafts from it are right, up to a place. */
static void spoil(int32_t *to, const int32_t *ids, int64_t n, int64_t vocab) {
    for (int64_t i = 0; i < n; i++) to[i] = i % 11 == 7 ? (int32_t)((ids[i] + 1) % vocab) : ids[i];
}

static void texts_are_the_same(void **state) {
    int64_t ahead = 0, behind = 0;
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, NULL);
        int32_t *prompt = random_ids(64, m->cfg.vocab_size, 9), source[LENGTH];
        for (int i = 32; i < 64; i++) prompt[i] = prompt[i - 32];
        for (int i = 0; i < SAMPLINGS; i++) {
            const bool given = (i + v) % 2; /* a source to draft from, which is nearly the text */
            const hola_sampling p = sampling_of(i);
            const int64_t n = 20 + (v * 7 + i * 5) % 44;
            struct text a = new_text(m, prompt, n, (uint64_t)i), b = new_text(m, prompt, n, (uint64_t)i);
            hola_generate_opts o = {.max_tokens = LENGTH, .sampling = &p, .ignore_eos = true, .lookup = -1};
            write_text(&a, &o);
            assert_true(a.n == LENGTH && a.ahead == 0 && a.behind == 0);
            o.lookup = given ? 1 + i % 3 : 0;
            if (given) spoil(source, a.ids, LENGTH, m->cfg.vocab_size), o.source = source, o.n_source = LENGTH;
            write_text(&b, &o);
            ahead += b.ahead, behind += b.behind;
            compare(&a, &b, variants[v].name);
        }
        free(prompt);
        hola_model_free(m);
    }
    /* Drafts were taken, and taken back. */
    assert_true(ahead > VARIANTS * LENGTH / 2 && behind > VARIANTS * 10);
}

/* Ends in the middle of a draft: by the length, by the caller, by EOS. */
static void texts_end_alike(void **state) {
    const int which[] = {0, 13, 19, 22};
    int64_t inside = 0;
    (void)state;
    for (size_t w = 0; w < sizeof which / sizeof *which; w++) {
        hola_model *m = variant_model(which[w], 1, NULL);
        const hola_sampling p = sampling_of(1);
        int32_t *prompt = random_ids(40, m->cfg.vocab_size, 4);
        struct text whole = new_text(m, prompt, 25, 3);
        write_text(&whole,
                   &(hola_generate_opts){.max_tokens = LENGTH, .sampling = &p, .ignore_eos = true, .lookup = -1});
        for (int64_t n = 1; n < 30; n++)
            for (int way = 0; way < 3; way++) {
                struct text t[2] = {new_text(m, prompt, 25, 3), new_text(m, prompt, 25, 3)};
                hola_generate_opts o = {.max_tokens = way == 0 ? n : LENGTH,
                                        .sampling = &p,
                                        .ignore_eos = way < 2,
                                        .source = whole.ids,
                                        .n_source = whole.n,
                                        .lookup = -1};
                m->cfg.eos_token_id = way == 2 ? whole.ids[n] : -1;
                t[0].cancel = t[1].cancel = way == 1 ? n : 0;
                write_text(&t[0], &o);
                o.lookup = 2;
                write_text(&t[1], &o);
                inside += t[1].ahead;
                assert_int_equal(t[0].end, way == 0 ? HOLA_END_LENGTH : way == 1 ? HOLA_END_CANCELLED : HOLA_END_EOS);
                compare(&t[0], &t[1], variants[which[w]].name);
            }
        free(prompt);
        hola_session_free(whole.s);
        hola_model_free(m);
    }
    assert_true(inside > 300);
}

/* A stop string that ends within a draft, and one that nearly comes. */
static void stop_strings(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const hola_sampling p = sampling_of(1);
    int32_t *prompt = random_ids(40, m->cfg.vocab_size, 4);
    struct text whole = new_text(m, prompt, 25, 3);
    char stop[64];
    (void)state;
    write_text(&whole, &(hola_generate_opts){.max_tokens = LENGTH, .sampling = &p, .ignore_eos = true, .lookup = -1});
    for (int n = 1; n < 30; n++) {
        struct text t[2] = {new_text(m, prompt, 25, 3), new_text(m, prompt, 25, 3)};
        snprintf(stop, sizeof stop, "%d %d", whole.ids[n], whole.ids[n + 1]);
        hola_generate_opts o = {.max_tokens = LENGTH,
                                .sampling = &p,
                                .ignore_eos = true,
                                .lookup = -1,
                                .source = whole.ids,
                                .n_source = whole.n,
                                .stop = &(const char *){stop},
                                .n_stop = 1};
        write_text(&t[0], &o);
        o.lookup = 2;
        write_text(&t[1], &o);
        assert_int_equal(t[0].end, HOLA_END_STOP);
        compare(&t[0], &t[1], "stop");
    }
    free(prompt);
    hola_session_free(whole.s);
    hola_model_free(m);
}

/* The comparison sees a session that comes back from a draft without its state. */
static void a_lost_state_is_caught(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    const hola_sampling p = sampling_of(1);
    int32_t *prompt = random_ids(40, m->cfg.vocab_size, 4), source[LENGTH];
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct text a = new_text(m, prompt, 25, 3), b = new_text(m, prompt, 25, 3);
        hola_generate_opts o = {.max_tokens = LENGTH, .sampling = &p, .ignore_eos = true, .lookup = -1};
        write_text(&a, &o);
        spoil(source, a.ids, LENGTH, m->cfg.vocab_size);
        o.lookup = 2, o.source = source, o.n_source = LENGTH;
        b.forget = wrong;
        write_text(&b, &o);
        assert_true(b.behind > 0);
        assert_int_equal(
            memcmp(hola_session_logits(a.s), hola_session_logits(b.s), (size_t)m->cfg.vocab_size * sizeof(float)) != 0,
            wrong);
        hola_session_free(a.s), hola_session_free(b.s);
    }
    free(prompt);
    hola_model_free(m);
}

/* Beside the caller's own mark, and through a history, which can go back as before. */
static void marks_and_histories(void **state) {
    (void)state;
    for (int v = 0; v < VARIANTS; v += 6) {
        hola_model *m = variant_model(v, 1, NULL);
        int32_t *prompt = random_ids(40, m->cfg.vocab_size, 4), source[LENGTH];
        for (int way = 0; way < 3; way++) { /* a mark; a history; one whose grid is as wide as a pass */
            const hola_history_opts grid = {.every = way == 1 ? 64 : 9, .most = 5};
            const hola_sampling p = sampling_of(v / 6 % 3);
            struct text t[2];
            for (int i = 0; i < 2; i++) {
                t[i] = new_text(m, prompt, 40, 1);
                hola_generate_opts o = {.max_tokens = LENGTH, .sampling = &p, .ignore_eos = true, .lookup = i ? 2 : -1};
                if (i) o.source = source, o.n_source = LENGTH;
                if (way > 0) {
                    hola_session_reset(t[i].s);
                    hola_session_seed(t[i].s, 1);
                    CHECK_OK(hola_history_new(&t[i].past, t[i].s, &grid));
                    CHECK_OK(hola_history_feed(t[i].past, prompt, 40, NULL));
                    o.history = t[i].past;
                } else CHECK_OK(hola_session_mark(t[i].s));
                write_text(&t[i], &o);
                if (!i) spoil(source, t[0].ids, LENGTH, m->cfg.vocab_size);
                else assert_true(t[1].ahead > LENGTH / 4);
                assert_int_equal(hola_session_position(t[i].s), 40 + LENGTH);
            }
            for (int64_t back = 3; back < LENGTH; back += 50) {
                for (int i = 0; i < 2; i++)
                    CHECK_OK(way > 0 ? hola_history_rollback(t[i].past, back) : hola_session_rollback(t[i].s, back));
                assert_memory_equal(hola_session_logits(t[0].s), hola_session_logits(t[1].s),
                                    (size_t)m->cfg.vocab_size * sizeof(float));
                if (back + 3 + 50 > LENGTH / 2) break;
            }
            compare(&t[0], &t[1], variants[v].name);
        }
        free(prompt);
        hola_model_free(m);
    }
}

static void wrong_options(void **state) {
    hola_model *m = variant_model(0, 1, NULL);
    hola_session *s = session_of(m, (const int32_t[]){1, 2}, 2, 0);
    (void)state;
    CHECK_FAILS(
        hola_generate(s, NULL, &(hola_generate_opts){.size = sizeof(hola_generate_opts), .lookup = 65}, NULL, NULL),
        HOLA_EINVAL, "lookup");
    CHECK_FAILS(
        hola_generate(s, NULL, &(hola_generate_opts){.size = sizeof(hola_generate_opts), .n_source = 3}, NULL, NULL),
        HOLA_EINVAL, "source");
    CHECK_FAILS(hola_generate(
                    s, NULL,
                    &(hola_generate_opts){.size = sizeof(hola_generate_opts), .source = &(int32_t){97}, .n_source = 1},
                    NULL, NULL),
                HOLA_EINVAL, "vocabulary");
    hola_session_free(s);
    hola_model_free(m);
}

/* ---- the drafts themselves ---- */

static void drafts(void **state) {
    struct hl_lookup l;
    int32_t draft[8], many[30];
    (void)state;
    CHECK_OK(hl_lookup_new(&l, 3));
    assert_int_equal(hl_lookup_draft(&l, draft, 7), 0);
    for (int i = 0; i < 12; i++) CHECK_OK(hl_lookup_add(&l, i)); /* nothing repeats */
    assert_int_equal(hl_lookup_draft(&l, draft, 7), 0);
    for (int i = 0; i < 3; i++) CHECK_OK(hl_lookup_add(&l, i)); /* 0 1 2, as at the start */
    assert_true(l.from == 3 && l.len == 3);
    assert_true(hl_lookup_draft(&l, draft, 7) >= 1 && draft[0] == 3 && draft[6] == 9);
    for (int i = 3; i < 60; i++) CHECK_OK(hl_lookup_add(&l, i % 12)); /* and on: the drafts get longer */
    assert_true(l.len >= 57);
    assert_int_equal(hl_lookup_draft(&l, draft, 7), 7);
    assert_int_equal(hl_lookup_draft(&l, draft, 2), 2);
    for (int i = 0; i < 60; i++) CHECK_OK(hl_lookup_add(&l, 50)); /* one id over and over: a draft past the end */
    assert_int_equal(hl_lookup_draft(&l, draft, 7), 7);
    for (int i = 0; i < 7; i++) assert_int_equal(draft[i], 50);
    /* n-grams that come again, but never go on alike: drafts end */
    for (int i = 0; i < 200; i++) CHECK_OK(hl_lookup_add(&l, i % 4 == 3 ? 1000 + i : 60 + i % 4));
    for (int i = 0; i < 3; i++) CHECK_OK(hl_lookup_add(&l, 60 + i));
    assert_true(l.from >= 0);
    assert_int_equal(hl_lookup_draft(&l, draft, 7), 0);
    /* of several occurrences, the one that agrees farthest back, though it is not the latest */
    hl_lookup_free(&l);
    CHECK_OK(hl_lookup_new(&l, 2));
    CHECK_OK(hl_lookup_source(&l, (const int32_t[]){7, 8, 1, 2, 30, 9, 1, 2, 40, 5, 7, 8, 1}, 13));
    CHECK_OK(hl_lookup_add(&l, 2));
    assert_true(l.len == 4 && l.id[l.from] == 30);
    hl_lookup_free(&l);
    /* a copy goes on behind one id that differs, but not behind two */
    CHECK_OK(hl_lookup_new(&l, 3));
    for (int i = 0; i < 20; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    for (int i = 0; i < 5; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    CHECK_OK(hl_lookup_add(&l, 7)); /* for 105 */
    assert_true(l.from == 6 && l.len == 0);
    for (int i = 6; i < 9; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    assert_true(l.from == 9 && l.len == 3);
    CHECK_OK(hl_lookup_add(&l, 8));
    assert_int_equal(l.from, 10);
    CHECK_OK(hl_lookup_add(&l, 8));
    assert_int_equal(l.from, -1);
    hl_lookup_free(&l);
    /* where a pass costs as much as many steps, only long copies pay */
    CHECK_OK(hl_lookup_new(&l, 3));
    l.cost = (struct hl_draft_cost){.pass = 6, .wrong = 0.2, .pass_alone = 5};
    for (int i = 0; i < 40; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    for (int i = 0; i < 12; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    assert_int_equal(hl_lookup_draft(&l, many, 30), 0);
    for (int i = 12; i < 30; i++) CHECK_OK(hl_lookup_add(&l, 100 + i));
    assert_int_equal(hl_lookup_draft(&l, many, 30), 30);
    assert_int_equal(hl_lookup_draft(&l, many, 4), 0); /* no room for a draft that pays */
    hl_lookup_free(&l);
    /* more than there is room for at first */
    CHECK_OK(hl_lookup_new(&l, 3));
    for (int i = 0; i < 10000; i++) CHECK_OK(hl_lookup_add(&l, i));
    for (int i = 4000; i < 4003; i++) CHECK_OK(hl_lookup_add(&l, i));
    assert_int_equal(l.from, 4003);
    hl_lookup_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_passes_are_steps),
        cmocka_unit_test(choices_are_those_of_steps),
        cmocka_unit_test(texts_are_the_same),
        cmocka_unit_test(texts_end_alike),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(a_lost_state_is_caught),
        cmocka_unit_test(marks_and_histories),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
