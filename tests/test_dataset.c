/* test_dataset.c -- rows: every token of an epoch once, the same row for the same cursor, documents kept whole;
 * and directories that are not what they should be. */
#define _GNU_SOURCE
#include "temp.h"
#include "data/dataset.h"
#include "data/pack.h"
#include "data/shard.h"

/* ---- permutation ---- */

static bool is_bijection(int64_t n, uint64_t seed, uint64_t epoch) {
    uint8_t *seen = calloc((size_t)n, 1);
    bool good = true;
    assert_non_null(seen);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = hl_permute(n, seed, epoch, i);
        good = good && j >= 0 && j < n && !seen[j];
        if (good) seen[j] = 1;
    }
    free(seen);
    return good;
}

static void test_permute(void **state) {
    int64_t fixed = 0, same = 0;
    double rows = 0;
    (void)state;
    for (int64_t n = 1; n <= 300; n++)
        for (uint64_t e = 0; e < 3; e++) assert_true(is_bijection(n, (uint64_t)n * 7, e));
    assert_true(is_bijection(65536, 1, 0));
    assert_true(is_bijection(65537, 1, 1));
    assert_true(is_bijection(99991, 12345, 2));
    for (int64_t i = 0; i < 10000; i++) { /* shuffled: few stay, neighbours part, epochs and seeds differ */
        fixed += hl_permute(10000, 3, 0, i) == i;
        same += hl_permute(10000, 3, 0, i) == hl_permute(10000, 3, 1, i);
        same += hl_permute(10000, 3, 0, i) == hl_permute(10000, 4, 0, i);
        rows += fabs((double)(hl_permute(10000, 3, 0, i) - hl_permute(10000, 3, 0, (i + 1) % 10000)));
    }
    assert_in_range(fixed, 0, 10);
    assert_in_range(same, 0, 15);
    assert_in_range((int)(rows / 10000), 3200, 3470); /* a third of n */
    for (int64_t n = 2; n <= 4; n++) {                /* small ones too: every image of 0 comes up */
        int count[4] = {0};
        for (uint64_t e = 0; e < 400; e++) count[hl_permute(n, 9, e, 0)]++;
        for (int64_t k = 0; k < n; k++) assert_in_range(count[k], 250 / n, 600 / n);
    }
    int64_t big = (int64_t)1 << 40, at = hl_permute(big - 1, 1, 2, big - 2);
    assert_true(at >= 0 && at < big - 1);
}

/* ---- packing ---- */

static void check_pack(const int64_t *doc, int64_t documents, int64_t seq, double fill) {
    struct hl_pack p;
    uint8_t *seen = calloc((size_t)doc[documents] + 1, 1);
    int64_t last = -1, row_of_token = 0;
    CHECK_OK(hl_pack_build(&p, doc, documents, seq));
    assert_int_equal(p.first[0], 0);
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t n = 0, before = -1;
        assert_true(p.first[r] < p.first[r + 1]);
        for (int64_t k = p.first[r]; k < p.first[r + 1]; k++) {
            assert_true(p.piece[k].at > before); /* in the order of the text */
            before = p.piece[k].at;
            for (int64_t i = 0; i < p.piece[k].n; i++) assert_int_equal(seen[p.piece[k].at + i]++, 0);
            n += p.piece[k].n;
        }
        assert_true(p.piece[p.first[r]].at > last); /* and so are the rows */
        last = p.piece[p.first[r]].at;
        assert_true(n > 0 && n <= seq);
        row_of_token += n;
    }
    assert_int_equal(row_of_token, doc[documents]);
    for (int64_t i = 0; i < documents; i++) { /* a document that fits is one piece, others are cut at seq */
        int64_t pieces = 0, n = doc[i + 1] - doc[i];
        for (int64_t k = 0; k < p.first[p.rows]; k++) pieces += p.piece[k].at >= doc[i] && p.piece[k].at < doc[i + 1];
        if (documents < 500) assert_int_equal(pieces, (n + seq - 1) / seq);
        if (documents >= 500) break;
    }
    if (p.rows > 1) assert_true((double)doc[documents] >= fill * (double)(p.rows * seq));
    hl_pack_free(&p);
    free(seen);
}

static void test_pack(void **state) {
    static int64_t doc[5001];
    uint64_t seed = 1;
    (void)state;
    for (int round = 0; round < 60; round++) {
        int64_t n = 1 + (int64_t)check_uniform(&seed, 0, 400), seq = 1 + (int64_t)check_uniform(&seed, 0, 300);
        double longest = check_uniform(&seed, 1, 3 * (double)seq);
        for (int64_t i = 0; i < n; i++) doc[i + 1] = doc[i] + 1 + (int64_t)check_uniform(&seed, 0, longest);
        check_pack(doc, n, seq, 0.5); /* two half-empty rows would have been one */
    }
    for (int64_t i = 0; i < 5000; i++) doc[i + 1] = doc[i] + 1 + (int64_t)check_uniform(&seed, 0, 300);
    check_pack(doc, 5000, 4096, 0.98); /* rows of usual size are full */
    check_pack(doc, 5000, 70000, 0.9); /* room lists of several words of bits */
    check_pack(doc, 0, 10, 0);
    const int64_t exact[] = {0, 7, 14, 21, 22, 23, 24, 30, 32};
    check_pack(exact, 8, 8, 1); /* the last token of a row is used, too */
}

/* ---- rows ---- */

/* Shards of n tokens in files of per_file; documents of random length begin with BOS = 0; other ids are a hash
 * of their place, below 1000. */
static int32_t *write_corpus(const char *dir, const char *name, int64_t n, int64_t per_file, int64_t longest) {
    struct hl_shards w;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t seed = 5;
    assert_non_null(ids);
    for (int64_t at = 0, next = 0; at < n; at++) {
        bool begins = at == next;
        ids[at] = begins ? 0 : (int32_t)(1 + check_mix((uint64_t)at) % 999);
        if (begins) next = at + 1 + (int64_t)check_uniform(&seed, 0, (double)longest);
    }
    CHECK_OK(hl_shards_begin(&w, dir, name, 1000, per_file));
    CHECK_OK(hl_shards_write(&w, ids, NULL, n));
    CHECK_OK(hl_shards_end(&w));
    w.keep = true;
    hl_shards_free(&w);
    return ids;
}

static void test_stream_rows(void **state) {
    char *dir = temp_new();
    const int64_t n = 10007, seq = 64, rows = n / seq;
    int32_t *ids = write_corpus(dir, "train", n, 997, 200), got[64];
    int64_t starts[64], next = 0;
    struct hl_dataset *d;
    struct hl_row row = {.ids = got, .starts = starts};
    (void)state;
    CHECK_OK(hl_dataset_open(&d, dir, "train", 1000));
    assert_int_equal(hl_dataset_info(d)->tokens, n);
    assert_int_equal(hl_dataset_info(d)->shards, 11);
    assert_int_equal(hl_dataset_info(d)->vocab, 0); /* no dataset.json */
    assert_int_equal(hl_dataset_info(d)->bos, -1);
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_STREAM, seq, -1, NULL));
    assert_int_equal(hl_dataset_info(d)->rows, rows);
    for (int64_t i = 0; i < rows; i++) { /* across shards, in order */
        CHECK_OK(hl_dataset_row_at(d, i, &row));
        assert_int_equal(row.n, seq);
        assert_int_equal(row.n_starts, 1);
        assert_int_equal(starts[0], 0);
        assert_memory_equal(got, ids + i * seq, sizeof got);
    }
    for (int64_t epoch = 0; epoch < 3; epoch++) { /* every row once an epoch, by content */
        uint8_t seen[10007 / 64 + 1] = {0};
        for (int64_t i = 0; i < rows; i++) {
            int64_t r = 0;
            CHECK_OK(hl_dataset_row(d, 7, epoch * rows + i, &row));
            while (r < rows && memcmp(ids + r * seq, got, sizeof got) != 0) r++;
            assert_true(r < rows && !seen[r]);
            seen[r] = 1;
            next += r == i;
        }
    }
    assert_in_range(next, 0, 30); /* and not in the order of the files */
    row.starts = NULL;
    CHECK_OK(hl_dataset_row(d, 7, INT64_MAX, &row));
    hl_dataset_free(d);
    free(ids);
    temp_remove(dir);
}

static void check_packed(const char *dir, const int32_t *ids, int64_t n, int64_t seq, struct hl_pool *pool) {
    struct hl_dataset *d;
    int32_t *got = malloc((size_t)seq * sizeof *got);
    int64_t *starts = malloc((size_t)seq * sizeof *starts), total = 0, documents = 0;
    struct hl_row row = {.ids = got, .starts = starts};
    uint64_t sum = 0, want = 0;
    CHECK_OK(hl_dataset_open(&d, dir, "val", 1000));
    CHECK_FAILS(hl_dataset_rows(d, HL_ROWS_PACKED, seq, -1, NULL), HOLA_EINVAL, "no BOS");
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_PACKED, seq, 0, pool));
    for (int64_t i = 0; i < hl_dataset_info(d)->rows; i++) {
        CHECK_OK(hl_dataset_row(d, 3, i, &row));
        assert_true(row.n > 0 && row.n <= seq && row.n_starts > 0 && starts[0] == 0);
        for (int64_t k = 0; k < row.n_starts; k++) {
            int64_t end = k + 1 < row.n_starts ? starts[k + 1] : row.n;
            assert_true(starts[k] < end);
            documents += got[starts[k]] == 0;
            for (int64_t j = starts[k] + 1; j < end; j++) assert_int_not_equal(got[j], 0); /* one document */
        }
        for (int64_t j = 0; j < row.n; j++) sum += check_mix((uint64_t)got[j]);
        total += row.n;
    }
    for (int64_t i = 0; i < n; i++) want += check_mix((uint64_t)ids[i]);
    assert_int_equal(total, n); /* every token once: the right number, and the right sum */
    assert_true(sum == want);
    assert_int_equal(documents, hl_dataset_info(d)->documents);
    hl_dataset_free(d);
    free(got);
    free(starts);
}

static void test_packed_rows(void **state) {
    char *dir = temp_new();
    const int64_t n = 2500000; /* several blocks of the scan */
    int32_t *ids = write_corpus(dir, "val", n, 999983, 700);
    struct hl_pool *pool = check_pool(3, 0);
    (void)state;
    check_packed(dir, ids, n, 2048, pool);
    check_packed(dir, ids, n, 2048, NULL);
    check_packed(dir, ids, n, 100, pool); /* most documents are cut */
    hl_pool_free(pool);
    free(ids);
    temp_remove(dir);
}

/* ---- directories that are not right ---- */

static void test_directories(void **state) {
    char *dir = temp_new();
    struct hl_dataset *d;
    struct hl_row row;
    int32_t got[8];
    struct hl_shards w;
    (void)state;
    CHECK_FAILS(hl_dataset_open(&d, "/nonexistent", "train", 0), HOLA_EIO, "/nonexistent");
    CHECK_FAILS(hl_dataset_open(&d, dir, "train", 0), HOLA_EIO, "no train shards");
    assert_false(hl_dataset_has(dir, "train"));
    free(write_corpus(dir, "fineweb_train", 100, 60, 10)); /* llm.c's own names */
    free(write_corpus(dir, "val", 7, 60, 10));
    temp_write(dir, ".train_000009.bin.tmp-1-1", "x", 1); /* not a shard: nobody reads it */
    temp_write(dir, "trainer.bin", "x", 1);
    temp_write(dir, "train_1.txt", "x", 1);
    assert_true(hl_dataset_has(dir, "train") && hl_dataset_has(dir, "val") && !hl_dataset_has(dir, "test"));
    CHECK_OK(hl_dataset_open(&d, dir, "train", 0));
    assert_int_equal(hl_dataset_info(d)->tokens, 100);
    CHECK_OK(hl_dataset_verify(d, NULL));
    hl_dataset_free(d);
    CHECK_OK(hl_dataset_open(&d, dir, "val", 0));
    CHECK_FAILS(hl_dataset_rows(d, HL_ROWS_STREAM, 8, -1, NULL), HOLA_EINVAL,
                "7 val tokens are less than one row of 8");
    CHECK_FAILS(hl_dataset_rows(d, HL_ROWS_STREAM, 0, -1, NULL), HOLA_EINVAL, "rows of 0");
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_STREAM, 7, -1, NULL));
    hl_dataset_free(d);

    /* ids beyond the model's vocabulary: when they are read, or asked for */
    CHECK_OK(hl_dataset_open(&d, dir, "train", 500));
    CHECK_FAILS(hl_dataset_verify(d, NULL), HOLA_EFORMAT, "fineweb_train_000000.bin: token ");
    CHECK_FAILS(hl_dataset_rows(d, HL_ROWS_PACKED, 8, 0, NULL), HOLA_EFORMAT, "not below the vocabulary of 500");
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_STREAM, 8, -1, NULL));
    hola_status s = HOLA_OK;
    row = (struct hl_row){.ids = got};
    for (int64_t i = 0; i < 12 && s == HOLA_OK; i++) s = hl_dataset_row(d, 0, i, &row);
    CHECK_FAILS(s, HOLA_EFORMAT, "not below the vocabulary of 500");
    hl_dataset_free(d);

    CHECK_OK(hl_shards_begin(&w, dir, "other_train", 100000, 60));
    CHECK_OK(hl_shards_write(&w, (const int32_t[]){1, 2}, NULL, 2));
    CHECK_OK(hl_shards_end(&w));
    CHECK_FAILS(hl_dataset_open(&d, dir, "train", 0), HOLA_EFORMAT, "other_train_000000.bin: tokens of 32 bits");
    hl_shards_free(&w); /* takes the file away again */
    CHECK_OK(hl_dataset_open(&d, dir, "train", 0));
    hl_dataset_free(d);
    temp_write(dir, "train_000001.bin", "x", 1);
    CHECK_FAILS(hl_dataset_open(&d, dir, "train", 0), HOLA_EFORMAT, "train_000001.bin: not a token shard");
    temp_remove(dir);
}

static void test_dataset_json(void **state) {
    char *dir = temp_new();
    struct hl_dataset *d;
    static const struct {
        const char *text, *error;
        hola_status status;
    } bad[] = {
        {"{\"complete\": false}", "not prepared to the end", HOLA_EFORMAT},
        {"{\"vocab_size\": 1001}", "its tokenizer has 1001 tokens, the model's vocabulary only 1000", HOLA_EINVAL},
        {"{\"vocab_size\": -1}", "bad vocab_size", HOLA_EFORMAT},
        {"{\"vocab_size\": \"x\"}", "bad vocab_size", HOLA_EFORMAT},
        {"{\"bos_token_id\": -1}", "bad bos_token_id", HOLA_EFORMAT},
        {"{\"bos_token_id\": 4294967296}", "bad bos_token_id", HOLA_EFORMAT},
        {"{\"tokenizer\": \"../../etc/passwd\"}", "unknown tokenizer", HOLA_EFORMAT},
        {"{\"splits\": {\"train\": {\"tokens\": 101}}}", "100 train tokens in the shards, dataset.json says 101",
         HOLA_EFORMAT},
        {"[]", "not a JSON object", HOLA_EFORMAT},
        {"{", "dataset.json: line 1", HOLA_EFORMAT},
    };
    (void)state;
    free(write_corpus(dir, "train", 100, 60, 10));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        temp_write(dir, "dataset.json", bad[i].text, (int64_t)strlen(bad[i].text));
        CHECK_FAILS(hl_dataset_open(&d, dir, "train", 1000), bad[i].status, bad[i].error);
    }
    static const char good[] = "{\"complete\": true, \"vocab_size\": 1000, \"bos_token_id\": 0, \"tokenizer\": "
                               "\"tokenizer.json\", \"splits\": {\"train\": {\"tokens\": 100}}}";
    temp_write(dir, "dataset.json", good, (int64_t)strlen(good));
    CHECK_OK(hl_dataset_open(&d, dir, "train", 1000));
    assert_int_equal(hl_dataset_info(d)->bos, 0);
    assert_int_equal(hl_dataset_info(d)->vocab, 1000);
    assert_non_null(strstr(hl_dataset_info(d)->tokenizer, "/tokenizer.json"));
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_PACKED, 16, -1, NULL));
    hl_dataset_free(d);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permute),     cmocka_unit_test(test_pack),        cmocka_unit_test(test_stream_rows),
        cmocka_unit_test(test_packed_rows), cmocka_unit_test(test_directories), cmocka_unit_test(test_dataset_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
