/* test_snapshot.c -- sessions as files: what comes back, what is refused, what a crash leaves. */
#define _GNU_SOURCE
#include "core/file.h"
#include "core/hash.h"
#include "models.h"
#include "mixers/gdn/gdn_layer.h"
#include "model/session.h"
#include "temp.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static hola_session *session_of(hola_model *m) {
    hola_session *s;
    CHECK_OK(hola_session_new(&s, m));
    return s;
}
static char *path_in(const char *dir) { return hl_path_join(dir, "session"); }

/* The state block, padding and unused slots included. */
static bool same_state(const hola_session *a, const hola_session *b) {
    return memcmp(a->now.state.fixed, b->now.state.fixed, (size_t)a->model->state.bytes) == 0;
}

static void round_trip(void **state) {
    const int64_t lengths[] = {0, 1, 31, 32, 33, 40, 64, 257, 700};
    char *dir = temp_new(), *path = path_in(dir);
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 1, NULL), *again = variant_model(v, 2, NULL);
        const int64_t vocab = m->cfg.vocab_size;
        int32_t *ids = random_ids(800, vocab, 21);
        float *x = malloc((size_t)vocab * sizeof *x), *y = malloc((size_t)vocab * sizeof *y);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            hola_session *a = session_of(m), *b = session_of(again); /* another program's, as it were */
            const int64_t n = lengths[i];
            hola_session_seed(a, 1000 + i);
            if (n) CHECK_OK(hola_session_feed(a, ids, n, x));
            if (n && i % 2) a->now.at.has_logits = false;        /* as after a step without them */
            CHECK_OK(hola_session_feed(b, ids + 100, 77, NULL)); /* something to overwrite */
            CHECK_OK(hola_session_save(a, path, HOLA_F32));
            CHECK_OK(hola_session_load(b, path));
            assert_true(same_state(a, b));
            assert_int_equal(hola_session_position(b), n);
            assert_int_equal(hola_session_seed_of(b), 1000 + i);
            assert_int_equal(!hola_session_logits(b), !hola_session_logits(a));
            if (hola_session_logits(a)) assert_memory_equal(hola_session_logits(b), x, (size_t)vocab * sizeof *x);
            int32_t ra[50], rb[50];
            assert_int_equal(hola_session_recent(a, ra, 50), n < 50 ? n : 50);
            assert_int_equal(hola_session_recent(b, rb, 50), n < 50 ? n : 50);
            for (int k = 0; k < n && k < 50; k++) assert_int_equal(ra[k], rb[k]);
            for (int t = 0; t < 70; t++) { /* over two ends of blocks */
                int32_t next, same;
                CHECK_OK(hola_session_feed(a, ids + 720 + t % 7, 1, x));
                CHECK_OK(hola_session_feed(b, ids + 720 + t % 7, 1, y));
                assert_memory_equal(x, y, (size_t)vocab * sizeof *x);
                CHECK_OK(hola_session_sample(a, NULL, &next));
                CHECK_OK(hola_session_sample(b, NULL, &same));
                assert_int_equal(next, same);
            }
            hola_session_free(a), hola_session_free(b);
        }
        free(ids), free(x), free(y);
        hola_model_free(m), hola_model_free(again);
    }
    free(path);
    temp_remove(dir);
}

/* bf16 and f16: half the size, near but not equal, positions and scores as they were. */
static void half_the_size(void **state) {
    char *dir = temp_new(), *path = path_in(dir);
    hola_model *m = variant_model(0, 1, NULL);
    const int64_t vocab = m->cfg.vocab_size;
    int32_t *ids = random_ids(300, vocab, 21);
    float *x = malloc((size_t)vocab * sizeof *x), *y = malloc((size_t)vocab * sizeof *y);
    const struct hl_cache_layout l = hl_cache_layout(16, 16, 8, 32, sizeof(real), false);
    (void)state;
    for (int type = HOLA_BF16; type <= HOLA_F16; type++) {
        hola_session *a = session_of(m), *b = session_of(m);
        double worst = 0;
        int64_t size;
        CHECK_OK(hola_session_feed(a, ids, 200, x));
        CHECK_OK(hola_session_save(a, path, (hola_dtype)type));
        free(temp_read(dir, "session", &size));
        assert_int_equal(size, hl_snapshot_bytes(m, (hola_dtype)type, 200));
        assert_true(2 * size < hl_snapshot_bytes(m, HOLA_F32, 200) + 2 * 128 + 2 * 4096 + 2 * vocab * 4 + 8192);
        CHECK_OK(hola_session_load(b, path));
        assert_false(same_state(a, b));
        const char *sa = a->now.state.fixed + m->state.at[STATE_MEMORY],
                   *sb = b->now.state.fixed + m->state.at[STATE_MEMORY];
        assert_memory_equal(sa + l.score, sb + l.score, (size_t)(l.bytes - l.score));
        CHECK_OK(hola_session_feed(a, ids + 250, 1, x));
        CHECK_OK(hola_session_feed(b, ids + 250, 1, y));
        for (int64_t i = 0; i < vocab; i++) worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
        assert_true(worst > 1e-6 && worst < 0.2);
        hola_session_free(a), hola_session_free(b);
    }
    free(ids), free(x), free(y), free(path);
    hola_model_free(m);
    temp_remove(dir);
}

/* The hash is the same in every form of the weights, and another for any other weight or setting. */
static void bound_to_the_model(void **state) {
    char *dir = temp_new(), *path = path_in(dir);
    const hola_dtype types[] = {HOLA_F32, HOLA_BF16, HOLA_F16};
    (void)state;
    for (int t = 0; t < 3; t++) {
        hola_model *m = variant_model(0, 1, NULL), *rows, *panels;
        uint64_t a, b, c, d;
        char *model = hl_path_join(dir, "m");
        CHECK_OK(hola_model_save(m, model, types[t]));
        CHECK_OK(hola_model_load(&rows, model, NULL)); /* not yet packed */
        CHECK_OK(hola_model_load(&panels, model, &(hola_options){.threads = 3}));
        hola_session *s = session_of(panels);
        CHECK_OK(hl_model_hash(rows, &a));
        CHECK_OK(hl_model_hash(panels, &b));
        assert_int_equal(a, b);
        CHECK_OK(hl_model_hash(m, &c));
        assert_int_equal(a == c, t == 0);
        for (int64_t i = 0; i < rows->params.n; i++) { /* one bit of one number of each tensor */
            uint32_t *x = (uint32_t *)(rows->rows + rows->params.tensor[i].offset) + rows->params.tensor[i].count / 2;
            *x ^= 1u << (i % 32);
            rows->hash = 0;
            CHECK_OK(hl_model_hash(rows, &d));
            if (d == a) fail_msg("%s: a changed bit goes unseen", rows->params.tensor[i].name);
            *x ^= 1u << (i % 32);
        }
        rows->hash = 0, rows->cfg.cache_chunk++;
        CHECK_OK(hl_model_hash(rows, &d));
        assert_int_not_equal(d, a);
        hola_session_free(s);
        hola_model_free(m), hola_model_free(rows), hola_model_free(panels);
        free(model);
    }
    for (int v = 0; v < VARIANTS; v++) { /* cache_sinks matters to streaming alone */
        hola_model *x = variant_model(v, 1, NULL);
        uint64_t before, after;
        CHECK_OK(hl_model_hash(x, &before));
        x->hash = 0, x->cfg.cache_sinks++;
        CHECK_OK(hl_model_hash(x, &after));
        assert_int_equal(before != after, x->cfg.cache_evict == HOLA_EVICT_STREAMING);
        x->hash = 0, x->cfg.cache_sinks--, x->cfg.cache_lte_dim++; /* which matters to lte alone */
        CHECK_OK(hl_model_hash(x, &after));
        assert_int_equal(before != after, x->cfg.cache_evict == HOLA_EVICT_LTE);
        hola_model_free(x);
    }
    hola_model *m = variant_model(0, 1, NULL), *other, *fewer = variant_model(4, 1, NULL);
    hola_config cfg = variant_config(0);
    CHECK_OK(hola_model_new(&other, &cfg, 8, NULL));
    hola_session *s = session_of(m), *foreign = session_of(other), *recency = session_of(fewer);
    int32_t ids[] = {5, 6, 7};
    CHECK_OK(hola_session_feed(s, ids, 3, NULL));
    CHECK_OK(hola_session_save(s, path, HOLA_F32));
    CHECK_OK(hola_session_feed(foreign, ids, 2, NULL));
    CHECK_FAILS(hola_session_load(foreign, path), HOLA_EINVAL, "session: a session of another model");
    CHECK_FAILS(hola_session_load(recency, path), HOLA_EINVAL, "another model");
    assert_int_equal(hola_session_position(foreign), 2); /* and goes on as it was */
    CHECK_OK(hola_session_feed(foreign, ids, 3, NULL));
    hola_session_free(s), hola_session_free(foreign), hola_session_free(recency);
    hola_model_free(m), hola_model_free(other), hola_model_free(fewer);
    free(path);
    temp_remove(dir);
}

static void damage_is_refused(void **state) {
    char *dir = temp_new(), *path = path_in(dir);
    hola_model *m = variant_model(0, 1, NULL);
    hola_session *a = session_of(m), *b = session_of(m), *before = NULL;
    int32_t *ids = random_ids(300, m->cfg.vocab_size, 21);
    float *x = malloc((size_t)m->cfg.vocab_size * sizeof *x);
    int64_t size;
    (void)state;
    CHECK_OK(hola_session_feed(a, ids, 200, x));
    CHECK_OK(hola_session_feed(b, ids + 50, 111, x));
    CHECK_OK(hola_session_clone(&before, b));
    CHECK_OK(hola_session_save(a, path, HOLA_F32));
    char *good = temp_read(dir, "session", &size), *bad = malloc((size_t)size + 1);
    for (int64_t i = 0; i < size; i += i < 300 ? 1 : 997) { /* a bit changed, the file cut there */
        memcpy(bad, good, (size_t)size);
        bad[i] = (char)(bad[i] ^ 1 << i % 8);
        const hola_status s = hl_snapshot_parse(b, bad, size, "f");
        if (s != HOLA_EFORMAT && !(i >= 8 && i < 12 && s == HOLA_ENOTSUP))
            fail_msg("byte %d changed: %s", (int)i, hola_status_text(s));
        if (hl_snapshot_parse(b, good, i, "f") != HOLA_EFORMAT) fail_msg("cut at %d", (int)i);
    }
    bad[size] = 0;
    assert_int_equal(hl_snapshot_parse(b, bad, size + 1, "f"), HOLA_EFORMAT);
    assert_true(same_state(b, before));
    assert_int_equal(hola_session_position(b), 111);
    assert_non_null(hola_session_logits(b));
    CHECK_OK(hl_snapshot_parse(b, good, size, "f")); /* what was damaged above */
    assert_true(same_state(a, b));
    /* with a checksum that fits: numbers that cannot be */
    const int64_t first = 128 + 4096 + m->cfg.vocab_size * 4, cache = first + (2 * 16 * 16 + 3 * 3 * 32) * 4,
                  places = cache + 40 * 33 * 4;
    const struct {
        int64_t at;
        uint32_t value;
        const char *text;
    } lies[] = {{12, 3, "header"},
                {36, 0x80000000u, "header"},
                {48, 96, "header"},
                {52, 2, "header"},
                {128, 97, "last ids"},
                {4224, 0x7f800000u, "logits"},
                {first, 0x7fc00000u, "state"},
                {places, 192, "state"},
                {places + 4, 0xffffffffu, "state"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(bad, good, (size_t)size);
        memcpy(bad + lies[i].at, &lies[i].value, 4);
        const uint64_t sum = hl_snapshot_sum(bad, size);
        memcpy(bad + 56, &sum, 8);
        CHECK_FAILS(hl_snapshot_parse(b, bad, size, "f"), HOLA_EFORMAT, lies[i].text);
    }
    for (uint32_t version = 0; version < 4; version += 2) { /* the older and the newer */
        memcpy(bad, good, (size_t)size);
        memcpy(bad + 8, &version, 4);
        const uint64_t sum = hl_snapshot_sum(bad, size);
        memcpy(bad + 56, &sum, 8);
        CHECK_FAILS(hl_snapshot_parse(b, bad, size, "f"), HOLA_ENOTSUP, "this hola reads 1");
    }
    CHECK_FAILS(hola_session_load(b, dir), HOLA_EIO, "is a directory");
    CHECK_FAILS(hola_session_load(b, "/nowhere/x"), HOLA_EIO, "/nowhere/x");
    CHECK_FAILS(hola_session_save(b, "/nowhere/x", HOLA_F32), HOLA_EIO, "/nowhere/x: cannot write");
    CHECK_FAILS(hola_session_save(b, path, (hola_dtype)9), HOLA_EINVAL, "dtype");
    /* a number that f16 cannot hold, and one that is none */
    ((float *)b->now.state.fixed)[3] = 1e6f;
    CHECK_FAILS(hola_session_save(b, path, HOLA_F16), HOLA_ENUMERIC, "not finite in F16");
    CHECK_OK(hola_session_save(b, path, HOLA_BF16));
    ((float *)b->now.state.fixed)[3] = NAN;
    CHECK_FAILS(hola_session_save(b, path, HOLA_F32), HOLA_ENUMERIC, "not finite");
    assert_int_equal(temp_entries(dir, NULL), 1);
    free(good), free(bad), free(ids), free(x), free(path);
    hola_session_free(a), hola_session_free(b), hola_session_free(before);
    hola_model_free(m);
    temp_remove(dir);
}

static void hash_in_pieces(void **state) {
    char data[1000];
    (void)state;
    for (int i = 0; i < 1000; i++) data[i] = (char)check_mix((uint64_t)i);
    for (int64_t n = 0; n <= 1000; n += 111)
        for (int64_t piece = HL_HASH_STEP; piece < 300; piece += HL_HASH_STEP) {
            struct hl_hash_run r;
            hl_hash_begin(&r, 5, n);
            for (int64_t i = 0; i < n; i += piece) hl_hash_add(&r, data + i, n - i < piece ? n - i : piece);
            assert_true(hl_hash_end(&r) == hl_hash(5, data, n));
        }
}

/* Sessions of several megabytes, read in many pieces. */
static hola_model *large_sessions(void) {
    hola_config cfg = variant_config(0);
    hola_options opt = {.threads = 1};
    hola_model *m;
    cfg.head_dim = 64;
    cfg.cache_window = 4095; /* in BF16 files positions lie across the pieces' ends */
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    return m;
}

static void many_pieces(void **state) {
    char *dir = temp_new(), *path = path_in(dir), *file, *again;
    hola_model *m = large_sessions();
    hola_session *a = session_of(m), *b = session_of(m);
    int32_t *ids = random_ids(300, m->cfg.vocab_size, 21);
    int64_t size, n;
    (void)state;
    CHECK_OK(hola_session_feed(a, ids, 300, NULL));
    for (int type = HOLA_F32; type <= HOLA_F16; type++) {
        CHECK_OK(hl_snapshot_make(a, path, (hola_dtype)type, &file, &size));
        CHECK_OK(hl_snapshot_parse(b, file, size, path));
        if (type == HOLA_F32) assert_true(same_state(a, b));
        CHECK_OK(hl_snapshot_make(b, path, (hola_dtype)type, &again, &n));
        assert_true(n == size && size > 1000000);
        assert_memory_equal(file, again, (size_t)size);
        for (int64_t i = size - 1; i > 0; i -= size / 7) {
            file[i] ^= 16;
            CHECK_FAILS(hl_snapshot_parse(b, file, size, path), HOLA_EFORMAT, path);
            file[i] ^= 16;
        }
        free(file), free(again);
    }
    free(ids), free(path);
    hola_session_free(a), hola_session_free(b);
    hola_model_free(m);
    temp_remove(dir);
}

static int64_t page_faults(void) {
    struct rusage r;
    assert_int_equal(getrusage(RUSAGE_SELF, &r), 0);
    return (int64_t)r.ru_minflt;
}

/* Reading takes no lock, and no memory but a block that an earlier session left, and a buffer. */
static void beside_a_pass(void **state) {
    char *dir = temp_new(), *path = path_in(dir);
    hola_model *m = large_sessions();
    hola_session *a = session_of(m), *b;
    int32_t *ids = random_ids(300, m->cfg.vocab_size, 21);
    struct hl_restore_point *p;
    uint64_t model;
    (void)state;
    m->states.most = 1;
    CHECK_OK(hola_session_feed(a, ids, 300, NULL));
    CHECK_OK(hola_session_save(a, path, HOLA_F32));
    b = session_of(m);
    hola_session_free(b);
    assert_int_equal(m->states.n, 1);
    CHECK_OK(hl_model_hash(m, &model));
    const int64_t size = hl_snapshot_bytes(m, HOLA_F32, 300);
    struct hl_bytes from = {.fd = open(path, O_RDONLY), .size = size, .path = path};
    assert_true(from.fd >= 0);
    pthread_mutex_lock(&m->lock);
    const int64_t before = page_faults();
    CHECK_OK(hl_snapshot_read(&p, m, model, &from, size));
    const int64_t faults = page_faults() - before;
    pthread_mutex_unlock(&m->lock);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (faults > 200) fail_msg("%d page faults for a file of %d pages", (int)faults, (int)(size / 4096));
#endif
    assert_true(size / 4096 > 1000 && faults >= 0);
    assert_int_equal(m->states.n, 0);
    CHECK_OK(hl_snapshot_session(&b, m, p));
    assert_true(same_state(a, b));
    hola_session_free(b);
    /* writing one, from a copy: the session has gone on */
    char *file, *want;
    int64_t bytes, n;
    CHECK_OK(hl_snapshot_make(a, path, HOLA_F32, &want, &n));
    CHECK_OK(hl_snapshot_copy(&p, a, path));
    CHECK_OK(hola_session_feed(a, ids, 5, NULL));
    pthread_mutex_lock(&m->lock);
    CHECK_OK(hl_snapshot_pack(m, model, p, path, HOLA_F32, &file, &bytes));
    pthread_mutex_unlock(&m->lock);
    assert_int_equal(bytes, n);
    assert_memory_equal(file, want, (size_t)n);
    free(file), free(want);
    hl_snapshot_free(m, p);
    assert_int_equal(m->states.n, 1);
    /* a file that is cut off while it is read */
    assert_int_equal(truncate(path, size / 2), 0);
    from.at = 0;
    CHECK_FAILS(hl_snapshot_read(&p, m, model, &from, size), HOLA_EFORMAT, "cut off");
    assert_int_equal(m->states.n, 1);
    close(from.fd);
    free(ids), free(path);
    hola_session_free(a);
    hola_model_free(m);
    temp_remove(dir);
}

/* A process that does nothing but save is killed at any moment: the file is always a whole one. */
static void killed_while_saving(void **state) {
    char *dir = temp_new(), *path = path_in(dir);
    hola_model *m = variant_model(0, 1, NULL);
    int32_t *ids = random_ids(300, m->cfg.vocab_size, 21);
    hola_session *s = session_of(m);
    int different = 0, left = 0;
    int64_t last = 50;
    (void)state;
    CHECK_OK(hola_session_feed(s, ids, 50, NULL));
    CHECK_OK(hola_session_save(s, path, HOLA_F32));
    for (int round = 0; round < 25; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (int i = 0; i < 100000; i++) { /* the model has one thread, so that a fork has them all */
                if (hola_session_feed(s, ids + i % 300, 1, NULL) != HOLA_OK) _exit(1);
                if (hola_session_save(s, path, HOLA_F32) != HOLA_OK) _exit(1);
            }
            _exit(1);
        }
        int status;
        usleep((useconds_t)(1000 + round * 1731 % 20000));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it did not fail before */
        CHECK_OK(hola_session_load(s, path));
        different += hola_session_position(s) != last;
        last = hola_session_position(s);
        left = temp_entries(dir, NULL) - 1;
    }
    assert_true(different > 5); /* files were replaced, and */
    assert_true(left > 0);      /* some saves were cut short */
    free(ids), free(path);
    hola_session_free(s);
    hola_model_free(m);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip),         cmocka_unit_test(half_the_size),
                                       cmocka_unit_test(bound_to_the_model), cmocka_unit_test(damage_is_refused),
                                       cmocka_unit_test(hash_in_pieces),     cmocka_unit_test(many_pieces),
                                       cmocka_unit_test(beside_a_pass),      cmocka_unit_test(killed_while_saving)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
