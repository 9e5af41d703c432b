/* test_serve_shared.c -- a session folder that several engines share: leases, and who may not write. */
#define _GNU_SOURCE
#include "serve_case.h"
#include <fcntl.h>
#include <sys/stat.h>

static void wait_ms(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* ---- leases ---- */

static void leases(void **state) {
    char *dir = temp_new(), a[HL_TOKEN + 1], b[HL_TOKEN + 1], before[HL_TOKEN + 1];
    (void)state;
    const int folder = open(dir, O_RDONLY | O_DIRECTORY);
    int fd;
    assert_int_equal(hl_lease_take(folder, "x", 0.2, false, a, before), HL_LEASE_MINE);
    assert_true(before[0] == 0 && strlen(a) == HL_TOKEN);
    assert_int_equal(hl_lease_take(folder, "x", 0.2, false, b, before), HL_LEASE_OTHERS);
    assert_int_equal(hl_lease_renew(folder, "x", 0.2, b), HL_LEASE_OTHERS);
    assert_int_equal(hl_lease_renew(folder, "x", 0.2, a), HL_LEASE_MINE);
    assert_true(hl_lease_is_out(folder, "x"));
    /* its time is over: it is still the owner's while nobody takes it */
    wait_ms(250);
    assert_false(hl_lease_is_out(folder, "x"));
    assert_int_equal(hl_lease_renew(folder, "x", 0.2, a), HL_LEASE_MINE);
    wait_ms(250);
    assert_int_equal(hl_lease_take(folder, "x", 60, false, b, before), HL_LEASE_MINE);
    assert_string_equal(before, a);
    assert_string_not_equal(a, b);
    assert_int_equal(hl_lease_renew(folder, "x", 0.2, a), HL_LEASE_OTHERS);
    assert_int_equal(hl_lease_open(folder, "x", a, 0, &fd), HL_LEASE_OTHERS);
    /* while the owner has it open nobody gets it, not even by force */
    assert_int_equal(hl_lease_open(folder, "x", b, 0, &fd), HL_LEASE_MINE);
    assert_int_equal(hl_lease_take(folder, "x", 60, true, a, before), HL_LEASE_LOCKED);
    hl_lease_close(folder, "x", fd, true);
    assert_int_equal(hl_lease_renew(folder, "x", 0.2, b), HL_LEASE_OTHERS);
    assert_int_equal(hl_lease_take(folder, "x", 60, false, a, before), HL_LEASE_MINE);
    assert_int_equal(hl_lease_take(folder, "x", 60, true, b, before), HL_LEASE_MINE);
    assert_string_equal(before, a);
    /* what a failing machine left of one is none; a link is not followed */
    assert_int_equal(ftruncate(fd = openat(folder, "x", O_RDWR), 20), 0);
    close(fd);
    assert_int_equal(hl_lease_take(folder, "x", 60, false, a, before), HL_LEASE_MINE);
    assert_int_equal(symlinkat("x", folder, "link"), 0);
    assert_int_equal(hl_lease_take(folder, "link", 60, false, b, before), HL_LEASE_FAILED);
    close(folder);
    temp_remove(dir);
}

/* The bytes of the only session file. */
static struct hl_stamp stamp_of(struct hl_store *s, const char *id) {
    struct hl_stamp stamp = {0};
    json_t *about;
    bool same;
    assert_true(hl_store_look(s, id, &stamp, &same, &about));
    assert_non_null(about);
    json_decref(about);
    return stamp;
}
static struct hl_store_job saving(const char *id, const char *token) {
    struct hl_store_job j = {.verb = HL_STORE_SAVE};
    snprintf(j.id, sizeof j.id, "%s", id);
    snprintf(j.token, sizeof j.token, "%s", token);
    j.record.about = json_pack("{s:i}", "x", 1);
    return j;
}

/* An owner whose lease was taken writes nothing, at whatever moment it comes back. */
static void fencing(void **state) {
    char *dir = temp_new(), a[HL_TOKEN + 1], b[HL_TOKEN + 1];
    struct hl_store *one, *two;
    (void)state;
    CHECK_OK(hl_store_open(&one, dir, 1, 0, 60));
    CHECK_OK(hl_store_open(&two, dir, 1, 0, 60));
    struct hl_store *alone;
    assert_int_equal(hl_store_open(&alone, dir, 1, 0, 0), HOLA_EIO);
    assert_int_equal(hl_store_claim(one, "s", a), HL_LEASE_MINE);
    assert_int_equal(hl_store_claim(two, "s", b), HL_LEASE_OTHERS);
    struct hl_store_job j = saving("s", a);
    hl_store_do(one, &j);
    assert_int_equal(j.status, HOLA_OK);
    const struct hl_stamp first = stamp_of(two, "s");
    assert_true(hl_stamp_same(&first, &j.stamp));
    /* the lease went with it */
    assert_false(hl_store_claimed(two, "s"));
    hl_store_release(one, "s", a);
    assert_int_equal(hl_store_claim(one, "s", a), HL_LEASE_MINE);
    /* another one takes it by force, which is what a lease that ran out comes to */
    assert_int_equal(hl_store_delete(two, "s"), HL_LEASE_MINE);
    assert_int_equal(hl_store_claim(two, "s", b), HL_LEASE_MINE);
    hl_store_do(one, &j); /* with its first token */
    assert_true(j.status == HOLA_EIO && j.lost);
    struct hl_store_job k = saving("s", a);
    hl_store_do(one, &k);
    assert_true(k.status == HOLA_EIO && k.lost);
    struct hl_store_job l = saving("s", b);
    hl_store_do(two, &l);
    assert_int_equal(l.status, HOLA_OK);
    const struct hl_stamp now = stamp_of(one, "s");
    assert_true(hl_stamp_same(&now, &l.stamp));
    hl_stored_free(&j.record), hl_stored_free(&k.record), hl_stored_free(&l.record);
    hl_store_close(one), hl_store_close(two);
    temp_remove(dir);
}

/* ---- engines ---- */

static void shared_rig(struct rig *g, const char *dir, double lease) {
    rig_open(g, NULL);
    rig_stop(g);
    g->o.session_dir = dir;
    g->o.lease = lease;
    rig_start(g);
}

static void in_turn(void **state) {
    char *dir = temp_new();
    struct rig g[2];
    int32_t *ids = random_ids(2000, 256, 1), out[100];
    hola_session *s;
    (void)state;
    shared_rig(&g[0], dir, 30), shared_rig(&g[1], dir, 30);
    CHECK_OK(hola_session_new(&s, g[0].model));
    hola_session_seed(s, 1);
    case_done(&g[0], case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    case_done(&g[1], case_op(HL_OP_CREATE, "a"), HL_SESSION_EXISTS);
    for (int i = 0; i < 6; i++) {
        struct rig *one = &g[i / 2 % 2]; /* twice each, so that one goes on from memory */
        take_turn(one, "a", ids + 100 * i, 90 + i, 10 + i);
        alone_turn(s, ids + 100 * i, 90 + i, 10 + i, out, true);
        check_state(&g[0], "a", s), check_state(&g[1], "a", s);
    }
    /* a way back at one, a copy at the other */
    struct hl_op *op = case_op(HL_OP_ROLLBACK, "a");
    op->b = 3;
    case_done(&g[0], op, HL_NO_ERROR);
    op = case_op(HL_OP_FORK, "a");
    snprintf(op->new_id, sizeof op->new_id, "b");
    case_done(&g[1], op, HL_NO_ERROR);
    hola_session_reset(s);
    hola_session_seed(s, 1);
    for (int i = 0; i < 3; i++) alone_turn(s, ids + 100 * i, 90 + i, 10 + i, out, true);
    for (int i = 0; i < 2; i++) check_state(&g[i], "a", s), check_state(&g[i], "b", s);
    /* a request that was made for another position: somebody else was faster */
    struct hl_serve_request *r = turn(&g[0], "a", ids, 5, 5);
    take_turn(&g[1], "a", ids + 300, 7, 7);
    struct asked *late = case_submit(&g[0], r);
    case_wait(&g[0], late);
    assert_int_equal(late->error, HL_SESSION_BUSY);
    asked_free(late);
    case_done(&g[1], case_op(HL_OP_DELETE, "a"), HL_NO_ERROR);
    case_done(&g[0], case_op(HL_OP_GET, "a"), HL_SESSION_NOT_FOUND);
    case_done(&g[0], case_op(HL_OP_DELETE, "b"), HL_NO_ERROR);
    case_done(&g[1], case_op(HL_OP_DELETE, "b"), HL_SESSION_NOT_FOUND);
    hola_session_free(s);
    free(ids);
    rig_close(&g[0]), rig_close(&g[1]);
    temp_remove(dir);
}

/* Busy at one, refused at the other; taken away in the middle: nothing of it is written. */
static void taken(void **state) {
    char *dir = temp_new();
    struct rig g[2];
    int32_t *ids = random_ids(2000, 256, 2), out[100];
    hola_session *s;
    (void)state;
    shared_rig(&g[0], dir, 2), shared_rig(&g[1], dir, 2);
    CHECK_OK(hola_session_new(&s, g[0].model));
    hola_session_seed(s, 1);
    case_done(&g[0], case_op(HL_OP_CREATE, "a"), HL_NO_ERROR);
    take_turn(&g[0], "a", ids, 20, 5);
    alone_turn(s, ids, 20, 5, out, true);
    struct asked *runs = case_submit(&g[0], turn(&g[0], "a", ids, 20, 100000)); /* held soon: nobody reads its events */
    while (atomic_load(&runs->r->unread) < 10) wait_ms(1);
    struct asked *other = case_submit(&g[1], turn(&g[1], "a", ids, 20, 5));
    case_wait(&g[1], other);
    assert_int_equal(other->error, HL_SESSION_BUSY);
    asked_free(other);
    case_done(&g[1], case_op(HL_OP_ROLLBACK, "a"), HL_SESSION_BUSY);
    check_state(&g[1], "a", s);
    /* longer than the lease: it is renewed */
    wait_ms(2500);
    other = case_submit(&g[1], turn(&g[1], "a", ids, 20, 5));
    case_wait(&g[1], other);
    assert_int_equal(other->error, HL_SESSION_BUSY);
    asked_free(other);
    /* by force */
    const int folder = open(dir, O_RDONLY | O_DIRECTORY);
    char token[HL_TOKEN + 1], before[HL_TOKEN + 1], name[128];
    uint64_t model;
    CHECK_OK(hl_model_hash(g[0].model, &model));
    snprintf(name, sizeof name, "a.%016llx.lease", (unsigned long long)model);
    assert_int_equal(hl_lease_take(folder, name, 0.05, true, token, before), HL_LEASE_MINE);
    assert_int_equal(strlen(before), HL_TOKEN);
    close(folder);
    while (!runs->ended) {
        struct hl_message *m = hl_queue_take(&g[0].events, 60), *next;
        for (; m; m = next) {
            struct hl_event *ev = (struct hl_event *)m;
            next = m->next;
            if (ev->message.kind == HL_EVENT_TOKEN) hl_event_free(ev); /* more than an answer has room for */
            else case_take(&g[0], ev);
        }
    }
    assert_int_equal(runs->error, HL_SESSION_BUSY);
    asked_free(runs);
    wait_ms(60);
    check_state(&g[0], "a", s), check_state(&g[1], "a", s);
    take_turn(&g[1], "a", ids + 50, 20, 5);
    take_turn(&g[0], "a", ids + 90, 20, 5);
    alone_turn(s, ids + 50, 20, 5, out, true), alone_turn(s, ids + 90, 20, 5, out, true);
    check_state(&g[0], "a", s), check_state(&g[1], "a", s);
    hola_session_free(s);
    free(ids);
    rig_close(&g[0]), rig_close(&g[1]);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(leases), cmocka_unit_test(fencing), cmocka_unit_test(in_turn),
                                       cmocka_unit_test(taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
