/* test_gguf.c -- GGUF files that are wrong on purpose, each with its one line; Q8_0 and Q4_0 against our codes; the order
 * of rows that llama wants. */
#define _GNU_SOURCE
#include "check.h"
#include "core/half.h"
#include "gguf/gguf.h"
#include "model/gguf_names.h"
#include "model/quant_blocks.h"
#include "temp.h"

/* ---- hostile files ---- */

struct file {
    char data[4096];
    int64_t n;
};
static void put(struct file *f, const void *bytes, int64_t n) {
    memcpy(f->data + f->n, bytes, (size_t)n);
    f->n += n;
}
static void u32(struct file *f, uint32_t v) { put(f, &v, 4); }
static void u64(struct file *f, uint64_t v) { put(f, &v, 8); }
static void text(struct file *f, const char *s) {
    u64(f, strlen(s));
    put(f, s, (int64_t)strlen(s));
}
static struct file begin(uint32_t version, uint64_t tensors, uint64_t keys) {
    struct file f = {.n = 0};
    put(&f, "GGUF", 4);
    u32(&f, version);
    u64(&f, tensors);
    u64(&f, keys);
    return f;
}
static void key_u32(struct file *f, const char *key, uint32_t v) {
    text(f, key);
    u32(f, HL_GGUF_U32);
    u32(f, v);
}
static void tensor(struct file *f, const char *name, uint32_t type, uint64_t cols, uint64_t rows, uint64_t offset) {
    text(f, name);
    u32(f, 2);
    u64(f, cols);
    u64(f, rows);
    u32(f, type);
    u64(f, offset);
}
static void pad(struct file *f, int64_t more) { f->n = (f->n + 31) / 32 * 32 + more; }
static void refused(const struct file *f, hola_status status, const char *what) {
    struct hl_gguf *g;
    char *copy = malloc((size_t)f->n); /* so that a reader past the end is seen */
    assert_non_null(copy);
    memcpy(copy, f->data, (size_t)f->n);
    CHECK_FAILS(hl_gguf_parse(&g, copy, f->n, "f"), status, what);
    assert_null(g);
    free(copy);
}
/* A value, or what goes wrong with it, under the key "k". */
static struct file value(uint32_t type, const void *bytes, int64_t n) {
    struct file f = begin(3, 0, 1);
    text(&f, "k");
    u32(&f, type);
    put(&f, bytes, n);
    return f;
}
/* Two tensors; the second one of 32 x rows at offset. */
static struct file two(uint32_t type, uint64_t cols, uint64_t rows, uint64_t offset, const char *name) {
    struct file f = begin(3, 2, 0);
    tensor(&f, "a", HL_GGML_F32, 32, 1, 0);
    tensor(&f, name, type, cols, rows, offset);
    pad(&f, 128 + 128);
    return f;
}

static void test_hostile(void **state) {
    (void)state;
    struct file f = begin(3, 0, 0);
    struct hl_gguf *g;
    CHECK_OK(hl_gguf_parse(&g, f.data, f.n, "f"));
    hl_gguf_close(g);
    f.data[0] = 'X';
    refused(&f, HOLA_EFORMAT, "f: not a GGUF file");
    f = begin(1, 0, 0), refused(&f, HOLA_ENOTSUP, "GGUF version 1; 2 and 3");
    f = begin(0x03000000, 0, 0), refused(&f, HOLA_ENOTSUP, "big endian?");
    f = begin(3, 0, UINT64_MAX), refused(&f, HOLA_EFORMAT, "18446744073709551615 keys in 0 bytes");
    f = begin(3, UINT64_MAX, 0), refused(&f, HOLA_EFORMAT, "18446744073709551615 tensors in 0 bytes");
    f = begin(3, 0, 1), u64(&f, UINT64_MAX), pad(&f, 32), refused(&f, HOLA_EFORMAT, "a key of 18446744073709551615");
    f = begin(3, 0, 1), u64(&f, 0), pad(&f, 32), refused(&f, HOLA_EFORMAT, "a key of 0 bytes");
    f = begin(3, 0, 1), u64(&f, 2), put(&f, "a\0", 2), pad(&f, 32), refused(&f, HOLA_EFORMAT, "a NUL in it");
    f = begin(3, 0, 2), key_u32(&f, "twice", 1), key_u32(&f, "twice", 2),
    refused(&f, HOLA_EFORMAT, "twice: there twice");
    static const uint32_t alignments[] = {0, 3, 48, 1u << 21};
    for (int i = 0; i < 4; i++) {
        f = begin(3, 0, 1), key_u32(&f, "general.alignment", alignments[i]);
        refused(&f, HOLA_EFORMAT, "general.alignment: ");
    }
    f = begin(3, 0, 1), text(&f, "general.alignment"), u32(&f, HL_GGUF_U64), u64(&f, 32);
    refused(&f, HOLA_EFORMAT, "general.alignment: expected a UINT32");

    f = value(13, "12345678", 8), refused(&f, HOLA_EFORMAT, "k: a value of type 13, which is none");
    f = value(HL_GGUF_BOOL, "\2", 1), refused(&f, HOLA_EFORMAT, "k: neither true nor false");
    f = value(HL_GGUF_U64, "1234", 4), refused(&f, HOLA_EFORMAT, "k: the file ends here");
    f = value(HL_GGUF_STRING, "\377\377\377\377\377\377\377\177", 8), refused(&f, HOLA_EFORMAT, "k: the file ends");
    f = value(HL_GGUF_ARRAY, "\4\0\0\0\377\377\377\377\377\377\377\377abcd", 16);
    refused(&f, HOLA_EFORMAT, "k: the file ends here");
    f = value(HL_GGUF_ARRAY, "\10\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    refused(&f, HOLA_EFORMAT, "k: the file ends here");
    f = value(HL_GGUF_ARRAY, "\11\0\0\0\0\0\0\0\0\0\0\0", 12), refused(&f, HOLA_ENOTSUP, "k: an array of arrays");

    f = two(HL_GGML_F32, 32, 1, 128, "b");
    CHECK_OK(hl_gguf_parse(&g, f.data, f.n, "f"));
    hl_gguf_close(g);
    f.n--, refused(&f, HOLA_EFORMAT, "b: 128 bytes of data from 128 on do not lie in the file");
    f.n += 2, refused(&f, HOLA_EFORMAT, "1 bytes after the last tensor");
    f = two(HL_GGML_F32, 32, 1, 128, "a"), refused(&f, HOLA_EFORMAT, "a: there twice");
    f = two(HL_GGML_F32, 32, 1, 64, "b"), refused(&f, HOLA_EFORMAT, "b: its data overlaps another tensor's");
    f = two(HL_GGML_F32, 32, 1, 160, "b"), refused(&f, HOLA_EFORMAT, "b: a gap before its data");
    f = two(HL_GGML_F32, 32, 1, UINT64_MAX - 31, "b"), refused(&f, HOLA_EFORMAT, "b: a gap before its data");
    f = two(HL_GGML_F32, 32, 0, 128, "b"), refused(&f, HOLA_EFORMAT, "b: a size that is not 1, 2, 3");
    f = two(HL_GGML_F32, (uint64_t)1 << 62, 4, 128, "b"), refused(&f, HOLA_EFORMAT, "b: shape overflows");
    f = two(HL_GGML_F32, (uint64_t)1 << 61, 1, 128, "b"), refused(&f, HOLA_EFORMAT, "b: shape overflows");
    f = two(HL_GGML_Q8_0, 33, 1, 128, "b"), refused(&f, HOLA_EFORMAT, "b: rows of 33 are not whole blocks of Q8_0");
    f = two(5, 32, 1, 128, "b"), refused(&f, HOLA_ENOTSUP, "b: a tensor of type 5, which is not known");
    f = two(4000000000u, 32, 1, 128, "b"), refused(&f, HOLA_ENOTSUP, "type 4000000000, which is not known");
    f = begin(3, 1, 0), text(&f, "c"), u32(&f, 5), pad(&f, 64), refused(&f, HOLA_EFORMAT, "c: 5 dimensions");
    char name[65];
    memset(name, 'n', 64), name[64] = 0;
    f = two(HL_GGML_F32, 32, 1, 128, name), refused(&f, HOLA_EFORMAT, "a tensor's name of 64 bytes");
}

/* Whatever the length, a file that is cut off is refused. */
static void test_cut(void **state) {
    (void)state;
    struct file f = begin(3, 1, 2);
    key_u32(&f, "general.alignment", 32);
    text(&f, "list"), u32(&f, HL_GGUF_ARRAY), u32(&f, HL_GGUF_STRING), u64(&f, 2), text(&f, "x"), text(&f, "");
    tensor(&f, "t", HL_GGML_Q4_0, 64, 2, 0);
    pad(&f, 72);
    struct hl_gguf *g;
    CHECK_OK(hl_gguf_parse(&g, f.data, f.n, "f"));
    const struct hl_gguf_value *list;
    CHECK_OK(hl_gguf_array(g, "list", HL_GGUF_STRING, &list));
    assert_int_equal(list->n, 2);
    CHECK_FAILS(hl_gguf_array(g, "list", HL_GGUF_F32, &list), HOLA_EFORMAT, "list: expected an array of FLOAT32");
    int64_t x = 7;
    CHECK_FAILS(hl_gguf_int(g, "list", 0, 9, &x), HOLA_EFORMAT, "list: expected an integer, found an array of STRING");
    CHECK_FAILS(hl_gguf_int(g, "general.alignment", 0, 9, &x), HOLA_EFORMAT, "32 is not between 0 and 9");
    CHECK_OK(hl_gguf_int(g, "absent", 0, 9, &x));
    assert_int_equal(x, 7);
    hl_gguf_close(g);
    for (f.n--; f.n >= 0; f.n--) refused(&f, HOLA_EFORMAT, "f: ");
}

/* ---- blocks ---- */

static struct hl_st_tensor blocks_of(hola_dtype t, int64_t rows, int64_t cols, const void *data, int64_t heads) {
    struct hl_st_tensor x = {.name = "t", .path = "f", .dtype = HOLA_DTYPE_COUNT, .ndim = 2, .dim = {rows, cols}};
    snprintf(x.stored, sizeof x.stored, "%s", t == HOLA_INT8 ? "Q8_0" : "Q4_0");
    x.count = rows * cols, x.data = data, x.blocks = true, x.heads = heads;
    return x;
}

/* Our codes as blocks and back: the same codes, whatever the last group of a row; and the numbers that they stand for. */
static void test_blocks(void **state) {
    (void)state;
    enum { ROWS = 8, MOST = 352 };
    static real x[ROWS * MOST], want[ROWS * MOST], got[ROWS * MOST];
    static uint8_t code[2][ROWS * MOST];
    static uint16_t scale[2][ROWS * MOST];
    static char blocks[ROWS * MOST * 2];
    for (int64_t cols = 32; cols <= MOST; cols += 32)
        for (int q = 0; q < 2; q++) {
            const hola_dtype t = q ? HOLA_INT4 : HOLA_INT8;
            struct hl_quant c = {t, ROWS, cols, code[0], scale[0]}, back = {t, ROWS, cols, code[1], scale[1]};
            for (int64_t i = 0; i < ROWS * cols; i++) x[i] = (real)(sin((double)(i * i)) * (i % 7 ? 0.02 : 0.3));
            assert_true(hl_quant_make(&c, x));
            for (int64_t i = 0; i < ROWS; i++)
                assert_true(hl_blocks_write(&c, i, blocks + i * cols / HL_BLOCK * hl_block_bytes(t)));
            const struct hl_st_tensor b = blocks_of(t, ROWS, cols, blocks, 0);
            assert_int_equal(hl_blocks_type(&b), t);
            hl_blocks_take(&b, &back);
            assert_memory_equal(code[0], code[1], (size_t)(ROWS * hl_quant_row(t, cols)));
            assert_memory_equal(scale[0], scale[1], (size_t)(ROWS * hl_quant_groups(t, cols)) * 2);
            hl_quant_read(&c, want);
            CHECK_OK(hl_st_read(&b, 0, ROWS * cols, got));
            assert_memory_equal(want, got, (size_t)(ROWS * cols) * sizeof *got);
            CHECK_OK(hl_st_read(&b, cols + 5, cols - 5, got)); /* from within a block */
            assert_memory_equal(want + cols + 5, got, (size_t)(cols - 5) * sizeof *got);
            if (cols < 64) continue;
            blocks[hl_block_bytes(t)] ^= 1; /* another scale within a group: not our codes, but the numbers are read */
            assert_int_equal(hl_blocks_type(&b), HOLA_DTYPE_COUNT);
            CHECK_OK(hl_st_read(&b, 0, cols, got));
            assert_true(got[32] != want[32] || want[32] == 0);
        }
}

/* Scales that F16 has not: what is written differs by at most 2^-17; too large ones fail. */
static void test_scales(void **state) {
    (void)state;
    uint8_t code[32];
    char block[34];
    real got[32];
    for (int e = -60; e < 20; e++) {
        const float s = ldexpf(1.3671875f, e);
        uint16_t scale = hl_to_bf16(s);
        const struct hl_quant c = {HOLA_INT8, 1, 32, code, &scale};
        for (int i = 0; i < 32; i++) code[i] = (uint8_t)(i * 8 - 127);
        assert_int_equal(hl_blocks_write(&c, 0, block), s < 65520);
        if (s >= 65520) continue;
        const struct hl_st_tensor b = blocks_of(HOLA_INT8, 1, 32, block, 0);
        CHECK_OK(hl_st_read(&b, 0, 32, got));
        for (int i = 0; i < 32; i++) {
            const double want = (double)s * (double)(int8_t)code[i], off = fabs((double)got[i] - want);
            assert_true(e >= -17 ? off == 0 : off <= 0x1p-17);
        }
    }
}

/* ---- rows ---- */

static void test_rows(void **state) {
    (void)state;
    for (int64_t D = 2; D <= 64; D += 2)
        for (int64_t i = 0; i < 3 * D; i++) {
            const int64_t there = hl_llama_row(i, D);
            assert_int_equal(there / D, i / D);
            assert_int_equal(hl_our_row(there, D), i);
            if (i % D < D / 2) assert_int_equal(hl_llama_row(i + D / 2, D), there + 1); /* a pair lies side by side */
        }
    const hola_config c = {.num_heads = 8, .num_kv_heads = 2};
    char name[HL_GGUF_NAME], ours[HL_GGUF_NAME];
    int64_t heads;
    assert_true(hl_llama_name(&c, "model.layers.12.attn.k_proj.bias", name, &heads));
    assert_string_equal(name, "blk.12.attn_k.bias");
    assert_int_equal(heads, 2);
    assert_true(hl_our_name(&c, name, ours, &heads));
    assert_string_equal(ours, "model.layers.12.attn.k_proj.bias");
    assert_false(hl_our_name(&c, "blk.12345.attn_k.bias", ours, &heads));
    assert_false(hl_our_name(&c, "blk.attn_k.bias", ours, &heads));
    assert_false(hl_our_name(&c, "rope_freqs.weight", ours, &heads));
    assert_false(hl_llama_name(&c, "model.layers.0.attn.q_norm.weight", name, &heads));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile), cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_blocks), cmocka_unit_test(test_scales),
                                       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
