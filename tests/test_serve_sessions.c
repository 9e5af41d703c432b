/* test_serve_sessions.c -- conversations: turns, copies, ways back, on the disk and in memory; each as if it were the
 * only one, to the bit. */
#define _GNU_SOURCE
#include "serve_case.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static int64_t position_of(struct rig *g, const char *id) {
    struct hl_op *op = case_do(g, case_op(HL_OP_GET, id));
    const int64_t n = op->error == HL_NO_ERROR ? op_integer(op, "position") : -1;
    hl_op_free(op);
    return n;
}
static bool on_disk(struct rig *g, const char *id) {
    struct hl_op *op = case_do(g, case_op(HL_OP_GET, id));
    const bool disk = !strcmp(json_string_value(json_object_get(op->json, "where")), "disk");
    hl_op_free(op);
    return disk;
}
static void turns(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(2000, 256, 1), out[100];
    hola_session *s, *copy;
    (void)state;
    case_done(&g, case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    case_done(&g, case_op(HL_OP_CREATE, "a"), HL_SESSION_EXISTS);
    CHECK_OK(hola_session_new(&s, g.model));
    hola_session_seed(s, 1);
    int64_t at = 0, end[4];
    for (int i = 0; i < 4; i++) {
        take_turn(&g, "a", ids + 100 * i, 90 + i, 10 + i);
        alone_turn(s, ids + 100 * i, 90 + i, 10 + i, out, true);
        at += 100 + 2 * i;
        end[i] = at;
        assert_int_equal(position_of(&g, "a"), at);
        check_state(&g, "a", s);
    }
    /* a copy, and both go on by themselves */
    struct hl_op *op = case_op(HL_OP_FORK, "a");
    snprintf(op->new_id, sizeof op->new_id, "b");
    case_done(&g, op, HL_NO_ERROR);
    CHECK_OK(hola_session_clone(&copy, s));
    take_turn(&g, "b", ids + 500, 5, 3);
    alone_turn(copy, ids + 500, 5, 3, out, true);
    check_state(&g, "b", copy);
    check_state(&g, "a", s);
    hola_session_free(copy);
    /* back by two turns: as if they had never been */
    op = case_op(HL_OP_ROLLBACK, "a");
    op->b = 2;
    case_do(&g, op);
    assert_int_equal(op->error, HL_NO_ERROR);
    assert_int_equal(op_integer(op, "position"), end[1]);
    assert_int_equal(op_integer(op, "reread"), 0); /* there was a snapshot */
    hl_op_free(op);
    hola_session_reset(s);
    hola_session_seed(s, 1);
    for (int i = 0; i < 2; i++) alone_turn(s, ids + 100 * i, 90 + i, 10 + i, out, true);
    check_state(&g, "a", s);
    /* a fork at a token inside the first turn's answer: the calls are taken again as they were */
    op = case_op(HL_OP_FORK, "a");
    snprintf(op->new_id, sizeof op->new_id, "c");
    op->a = 95;
    case_done(&g, op, HL_NO_ERROR);
    hola_session_reset(s);
    hola_session_seed(s, 1);
    alone_turn(s, ids, 90, 5, out, true);
    assert_int_equal(position_of(&g, "c"), 95);
    struct hl_op *file = case_do(&g, case_op(HL_OP_FILE, "c"));
    assert_int_equal(file->error, HL_NO_ERROR);
    char *want;
    int64_t size;
    CHECK_OK(hl_snapshot_make(s, "want", HOLA_F32, &want, &size));
    /* (the seed and the checksum are the header's; the state must be the same) */
    assert_memory_equal(file->bytes + 128, want + 128, (size_t)size - 128);
    /* the bytes make a session elsewhere */
    op = case_op(HL_OP_PUT, "d");
    op->bytes = file->bytes, op->n_bytes = file->n_bytes, file->bytes = NULL;
    hl_op_free(file);
    case_done(&g, op, HL_NO_ERROR);
    assert_int_equal(position_of(&g, "d"), 95);
    op = case_op(HL_OP_PUT, "e");
    op->bytes = want, op->n_bytes = size;
    want[200] ^= 1;
    case_done(&g, op, HL_INVALID_VALUE);
    hola_session_free(s);
    free(ids);
    rig_close(&g);
}

/* Prompts of a few tokens more than a piece: the few would round differently alone. (A new engine does not know how fast
 * it reads and begins with the smallest piece.) */
static void tails(void **state) {
    int32_t *ids = random_ids(80, 256, 2), out[1];
    (void)state;
    for (int64_t n = 64; n <= 80; n++) {
        struct rig g;
        hola_session *s;
        rig_open(&g, NULL);
        CHECK_OK(hola_session_new(&s, g.model));
        hola_session_seed(s, 1);
        case_done(&g, case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
        take_turn(&g, "a", ids, n, 1);
        alone_turn(s, ids, n, 1, out, true);
        check_state(&g, "a", s);
        hola_session_free(s);
        rig_close(&g);
    }
    free(ids);
}

/* What is refused, and what others get meanwhile. */
static void busy(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(2000, 256, 2);
    (void)state;
    case_done(&g, case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    take_turn(&g, "a", ids, 50, 5);
    struct asked *first = case_submit(&g, turn(&g, "a", ids, 50, ENDLESS)),
                 *second = case_submit(&g, turn(&g, "a", ids, 50, 5));
    struct hl_serve_request *r = turn(&g, "a", ids, 10, 5);
    r->fork = HL_FORK_DROPPED;
    struct asked *fork = case_submit(&g, r), *none = case_submit(&g, turn(&g, "x", ids, 50, 5));
    case_wait(&g, second);
    assert_int_equal(second->error, HL_SESSION_BUSY);
    case_wait(&g, fork);
    assert_int_equal(fork->error, HL_SESSION_BUSY);
    case_wait(&g, none);
    assert_int_equal(none->error, HL_SESSION_NOT_FOUND);
    struct hl_op *op = case_op(HL_OP_ROLLBACK, "a");
    op->a = 1;
    case_done(&g, op, HL_SESSION_BUSY);
    case_done(&g, case_op(HL_OP_TOKENS, "a"), HL_INVALID_VALUE); /* from -1 */
    op = case_op(HL_OP_MEMORY, "a");
    case_do(&g, op);
    assert_int_equal(op->error, HL_NO_ERROR);
    assert_int_equal(json_array_size(json_object_get(op->json, "kept")), 4);
    assert_true(op->n_ids > 0 && op->n_ids <= 32);
    hl_op_free(op);
    /* deleted in the middle: the writer ends with an error, the name is free */
    case_done(&g, case_op(HL_OP_DELETE, "a"), HL_NO_ERROR);
    case_done(&g, case_op(HL_OP_DELETE, "a"), HL_SESSION_NOT_FOUND);
    case_wait(&g, first);
    assert_int_equal(first->error, HL_SESSION_NOT_FOUND);
    case_done(&g, case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    asked_free(first), asked_free(second), asked_free(fork), asked_free(none);
    /* read once, asked many times at once */
    hola_session *s, *copy;
    int32_t out[8];
    CHECK_OK(hola_session_new(&s, g.model));
    hola_session_seed(s, 1);
    take_turn(&g, "a", ids, 700, 0);
    alone_turn(s, ids, 700, 0, NULL, true);
    struct asked *many[6];
    for (int i = 0; i < 6; i++) {
        r = turn(&g, "a", ids + i, 10, 8);
        r->fork = i == 5 ? HL_FORK_KEPT : HL_FORK_DROPPED;
        if (i == 5) snprintf(r->fork_id, sizeof r->fork_id, "kept");
        many[i] = case_submit(&g, r);
    }
    case_wait(&g, NULL);
    for (int i = 0; i < 6; i++) {
        CHECK_OK(hola_session_clone(&copy, s));
        alone_turn(copy, ids + i, 10, 8, out, true);
        assert_int_equal(many[i]->error, HL_NO_ERROR);
        assert_int_equal(many[i]->answer[0].prompt_n, 10);
        assert_memory_equal(many[i]->answer[0].ids, out, sizeof out);
        if (i == 5) check_state(&g, "kept", copy), assert_int_equal(many[i]->position, 718);
        hola_session_free(copy);
        asked_free(many[i]);
    }
    check_state(&g, "a", s);
    hola_session_free(s);
    /* cut off: what was fed stays */
    struct asked *cut = case_submit(&g, turn(&g, "kept", ids, 20, ENDLESS));
    cut->cancel_after = 10;
    case_wait(&g, cut);
    assert_true(position_of(&g, "kept") >= 718 + 20 + 9);
    asked_free(cut);
    free(ids);
    rig_close(&g);
}

/* A chat's answer that a stop string ends: the text holds the answer and nothing of the string. */
static void chat(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    int32_t *ids = random_ids(2000, 256, 3), want[80];
    (void)state;
    for (int k = 10; k < 40; k++) {
        char id[24];
        snprintf(id, sizeof id, "c%d", k);
        alone(g.model, ids, 30, 80, 1, want);
        char text[4] = {(char)want[k], (char)want[k + 1], (char)want[k + 2], 0};
        if (!text[0] || !text[1] || !text[2] || want[k] > 255 || want[k + 1] > 255 || want[k + 2] > 255) continue;
        case_done(&g, case_op(HL_OP_CREATE, id), HL_NO_ERROR);
        struct hl_serve_request *r = turn(&g, id, ids, 30, 80);
        r->answer_from = 25;
        r->spans.span = calloc(1, sizeof *r->spans.span);
        r->spans.span[0] = (struct hl_message_span){HL_ROLE_USER, true, 0, 25};
        r->spans.n = r->spans.room = 1;
        case_stop(r, text);
        struct asked *a = case_ask(&g, r);
        struct hl_op *op = case_op(HL_OP_TOKENS, id);
        op->a = 0;
        case_do(&g, op);
        assert_int_equal(op->error, HL_NO_ERROR);
        assert_int_equal(op->n_ids, 30 + a->answer[0].n_text);
        for (int64_t i = 0; i < a->answer[0].n_text; i++)
            assert_int_equal(op->ids[30 + i], (unsigned char)a->answer[0].text[i]);
        hl_op_free(op);
        asked_free(a);
        op = case_do(&g, case_op(HL_OP_MESSAGES, id));
        assert_int_equal(op->spans.n, op->n_ids > 30 ? 2 : 2);
        assert_int_equal(op->spans.span[1].role, HL_ROLE_ASSISTANT);
        assert_int_equal(op->spans.span[1].from, 25);
        assert_false(op->spans.span[1].closed);
        hl_op_free(op);
        /* and it goes on, closing the answer first */
        struct hl_peek at;
        assert_true(hl_serve_peek(g.e, id, &at));
        assert_true(at.open);
        r = turn(&g, id, ids, 12, 2);
        r->closes = 3, r->answer_from = 10;
        r->spans.span = calloc(1, sizeof *r->spans.span);
        r->spans.span[0] = (struct hl_message_span){HL_ROLE_USER, true, 3, 10};
        r->spans.n = r->spans.room = 1;
        asked_free(case_ask(&g, r));
        op = case_do(&g, case_op(HL_OP_MESSAGES, id));
        assert_int_equal(op->spans.n, 4);
        assert_true(op->spans.span[1].closed);
        assert_int_equal(op->spans.span[1].to, op->spans.span[2].from);
        assert_int_equal(op->spans.span[3].to, op->n_ids);
        hl_op_free(op);
    }
    free(ids);
    rig_close(&g);
}

/* ---- the disk ---- */

/* More conversations than fit: they park themselves, come back, and survive the engine. */
static void parked(void **state) {
    enum { N = 12 };
    char *dir = temp_new(), id[24];
    struct rig g;
    rig_open(&g, dir);
    rig_stop(&g);
    hola_session *s[N];
    int32_t *ids = random_ids(2000, 256, 4), out[8];
    (void)state;
    for (int i = 0; i < N; i++) CHECK_OK(hola_session_new(&s[i], g.model));
    g.o.cache_mem = 4 * (hola_session_bytes(s[0]) + 8192);
    rig_start(&g);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            snprintf(id, sizeof id, "p%d", i);
            if (round == 0) case_done(&g, case_op(HL_OP_CREATE, id), HL_NO_ERROR);
            take_turn(&g, id, ids + 40 * i + round, 30, 8);
            hola_session_seed(s[i], 1);
            alone_turn(s[i], ids + 40 * i + round, 30, 8, out, true);
        }
        for (int wait = 0; wait < 200 && !on_disk(&g, "p0"); wait++) usleep(10000);
        assert_true(on_disk(&g, "p0"));
        if (round == 1) { /* another process goes on */
            rig_stop(&g);
            assert_int_equal(temp_entries(dir, NULL), N);
            rig_start(&g);
            assert_true(on_disk(&g, "p5"));
        }
    }
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "p%d", i);
        check_state(&g, id, s[i]);
        struct hl_op *op = case_op(HL_OP_TOKENS, id);
        op->a = 0;
        case_do(&g, op);
        assert_int_equal(op->n_ids, 3 * 38);
        assert_memory_equal(op->ids + 76, ids + 40 * i + 2, 30 * sizeof *ids);
        hl_op_free(op);
        /* back, in what came from the disk */
        op = case_op(HL_OP_ROLLBACK, id);
        op->c = 38;
        case_done(&g, op, HL_NO_ERROR);
        hola_session_reset(s[i]);
        hola_session_seed(s[i], 1);
        alone_turn(s[i], ids + 40 * i, 30, 8, out, true);
        struct hl_op *file = case_do(&g, case_op(HL_OP_FILE, id));
        char *want;
        int64_t size;
        CHECK_OK(hl_snapshot_make(s[i], "want", HOLA_F32, &want, &size));
        assert_memory_equal(file->bytes + 128, want + 128, (size_t)size - 128);
        free(want);
        hl_op_free(file);
        hola_session_free(s[i]);
    }
    case_done(&g, case_op(HL_OP_DELETE, "p3"), HL_NO_ERROR);
    rig_close(&g);
    assert_int_equal(temp_entries(dir, NULL), N - 1);
    free(ids);
    temp_remove(dir);
}

/* Files that were cut, altered, exchanged or are links; a folder that another process has. */
static void damaged(void **state) {
    char *dir = temp_new(), *other = temp_new(), name[5][128];
    struct rig g, h;
    rig_open(&g, dir);
    int32_t *ids = random_ids(2000, 256, 5);
    struct stat st;
    (void)state;
    for (int i = 0; i < 5; i++) {
        char id[24];
        snprintf(id, sizeof id, "q%d", i);
        case_done(&g, case_op(HL_OP_CREATE, id), HL_NO_ERROR);
        take_turn(&g, id, ids + i, 30, 8);
        case_done(&g, case_op(HL_OP_SAVE, id), HL_NO_ERROR);
    }
    h = g;
    h.o.lock_wait = 0.05;
    struct hl_serve_engine *second;
    CHECK_FAILS(hl_serve_open(&second, &h.o), HOLA_EIO, "another process");
    uint64_t model;
    CHECK_OK(hl_model_hash(g.model, &model));
    rig_stop(&g);
    for (int i = 0; i < 5; i++) {
        snprintf(name[i], sizeof name[i], "q%d.%016llx.session", i, (unsigned long long)model);
        char *path = hl_path_join(dir, name[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        free(path);
    }
    int64_t size;
    char *file = temp_read(dir, name[1], &size);
    temp_write(dir, name[1], file, size - 100);
    file[size / 2] ^= 4;
    temp_write(dir, name[2], file, size);
    file[20] ^= 4;
    temp_write(dir, name[3], file, size);
    temp_write(dir, "not-ours", file, size);
    free(file);
    char *path = hl_path_join(dir, name[4]), *aim = hl_path_join(other, "aim");
    temp_write(other, "aim", "precious", 8);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(aim, path), 0);
    rig_start(&g);
    assert_int_equal(position_of(&g, "q0"), 38);
    take_turn(&g, "q0", ids, 5, 5);
    for (int i = 1; i < 5; i++) {
        char id[24];
        snprintf(id, sizeof id, "q%d", i);
        struct asked *a = case_submit(&g, turn(&g, id, ids, 5, 5));
        case_wait(&g, a);
        if (a->error != HL_SESSION_DAMAGED) fail_msg("%s: error %d (%s)", id, a->error, a->reason);
        asked_free(a);
        case_done(&g, case_op(HL_OP_FILE, id), HL_SESSION_DAMAGED);
    }
    /* deleted, the names are free again, and what a link pointed to is as it was */
    case_done(&g, case_op(HL_OP_DELETE, "q4"), HL_NO_ERROR);
    case_done(&g, case_op(HL_OP_CREATE, "q4"), HL_NO_ERROR);
    take_turn(&g, "q4", ids, 5, 5);
    rig_close(&g);
    file = temp_read(other, "aim", &size);
    assert_string_equal(file, "precious");
    free(file);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    free(path), free(aim);
    free(ids);
    temp_remove(dir), temp_remove(other);
}

/* The disk is full: one that cannot be written stays in memory and goes on; the old file is as it was. */
static void full_disk(void **state) {
    char *dir = temp_new();
    struct rig g;
    rig_open(&g, dir);
    int32_t *ids = random_ids(2000, 256, 6);
    struct rlimit old, none;
    (void)state;
    case_done(&g, case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    take_turn(&g, "a", ids, 30, 8);
    case_done(&g, case_op(HL_OP_SAVE, "a"), HL_NO_ERROR);
    take_turn(&g, "a", ids, 30, 8);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    none = old, none.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    case_done(&g, case_op(HL_OP_SAVE, "a"), HL_DISK_FULL);
    take_turn(&g, "a", ids, 30, 8);
    assert_int_equal(position_of(&g, "a"), 3 * 38);
    assert_true(atomic_load(&hl_serve_metrics(g.e)->save_errors) > 0);
    assert_int_equal(temp_entries(dir, NULL), 1); /* no torn file beside it */
    rig_stop(&g);                                 /* it cannot be saved now, either */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    rig_start(&g);
    assert_int_equal(position_of(&g, "a"), 38); /* as it was last saved */
    take_turn(&g, "a", ids, 30, 8);
    rig_close(&g);
    free(ids);
    temp_remove(dir);
}

/* Without a folder there is room for so many; with a limit, too. */
static void room(void **state) {
    struct rig g;
    rig_open(&g, NULL);
    rig_stop(&g);
    hola_session *s;
    CHECK_OK(hola_session_new(&s, g.model));
    g.o.cache_mem = 4 * (hola_session_bytes(s) + 8192);
    hola_session_free(s);
    rig_start(&g);
    int made = 0;
    enum hl_error error = HL_NO_ERROR;
    (void)state;
    for (; made < 20 && error == HL_NO_ERROR; made += error == HL_NO_ERROR) {
        struct hl_op *op = case_do(&g, case_op(HL_OP_CREATE, ""));
        error = op->error;
        hl_op_free(op);
    }
    assert_int_equal(error, HL_TOO_MANY_SESSIONS);
    assert_true(made >= 4 && made < 8);
    struct hl_op *op = case_op(HL_OP_LIST, "");
    op->a = 3;
    case_do(&g, op);
    assert_int_equal(json_array_size(json_object_get(op->json, "data")), 3);
    assert_true(json_is_true(json_object_get(op->json, "has_more")));
    hl_op_free(op);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),   cmocka_unit_test(busy),      cmocka_unit_test(chat), cmocka_unit_test(parked),
        cmocka_unit_test(damaged), cmocka_unit_test(full_disk), cmocka_unit_test(room), cmocka_unit_test(tails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
