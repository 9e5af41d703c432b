/* test_small_gemm.c -- the small product C += alpha A B of any strides: every instruction set against the reference, and the
 * same bits whatever is computed beside them. */
#include "check.h"
#include "ops/linear/small_gemm.h"
#include "backend/backend.h"

typedef void (*mm_fn)(const struct hl_small_gemm *, real *);
void hl_ref_small_gemm(const struct hl_small_gemm *, real *);
void hl_base_small_gemm(const struct hl_small_gemm *, real *);
/* in the order of check_backend() */
#if defined(__x86_64__)
void hl_avx2_small_gemm(const struct hl_small_gemm *, real *);
void hl_avx512_small_gemm(const struct hl_small_gemm *, real *);
static const mm_fn fast_mm[] = {hl_base_small_gemm, hl_avx2_small_gemm, hl_avx512_small_gemm, NULL};
#elif defined(__aarch64__)
void hl_neon_small_gemm(const struct hl_small_gemm *, real *);
static const mm_fn fast_mm[] = {hl_base_small_gemm, NULL, NULL, hl_neon_small_gemm};
#else
static const mm_fn fast_mm[] = {hl_base_small_gemm, NULL, NULL, NULL};
#endif

static _Alignas(64) real mm_scratch[HL_SMALL_GEMM_SCRATCH];

/* C[M][N + 3], A and B with gaps between their rows; turn bit 0: A by columns, bit 1: B by columns, bit 2:
 * every other element of A */
static void run_mm(mm_fn mm, const int64_t d[3], int turn, bool add, const real *A, const real *B, real *C) {
    struct hl_small_gemm a = {.M = d[0], .N = d[1], .K = d[2], .A = A, .B = B, .C = C, .add = add};
    int64_t gap = turn & 4 ? 2 : 1;
    a.alpha = (real)0.7;
    a.ai = turn & 1 ? gap : gap * a.K + 5;
    a.ak = turn & 1 ? gap * a.M + 2 : gap;
    a.bk = turn & 2 ? 1 : a.N + 1;
    a.bn = turn & 2 ? a.K + 3 : 1;
    a.ldc = a.N + 3;
    check_fill(C, a.M * a.ldc, -1, 1, 5);
    mm(&a, mm_scratch);
}

static void test_mm(void **state) {
    static const int64_t dims[][3] = {{1, 1, 1},     {1, 33, 300},   {2, 32, 16},   {3, 5, 7},      {64, 64, 128},
                                      {64, 128, 64}, {37, 100, 257}, {130, 70, 31}, {13, 320, 600}, {256, 48, 513}};
    enum { MOST = 400000 };
    real *A = check_random(MOST, -1, 1, 3), *B = check_random(MOST, -1, 1, 4);
    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int turn = 0; turn < 8; turn++) {
            int64_t M = dims[i][0], width = dims[i][1] + 3;
            real *want = check_new(M * width), *got = check_new(M * width);
            run_mm(hl_ref_small_gemm, dims[i], turn, turn % 3 == 0, A, B, want);
            for (int b = 0; check_backend(b); b++) {
                if (!hl_ops_named(check_backend(b))) continue;
                run_mm(fast_mm[b], dims[i], turn, turn % 3 == 0, A, B, got);
                CHECK_NEAR(got, want, M, width, 2e-6, "%s %d turn %d", check_backend(b), (int)i, turn);
                run_mm(fast_mm[b], dims[i], turn, turn % 3 == 0, A + 1, B, got);
                CHECK_FAR(got, want, M, width, 1e-3);
            }
            check_free(want, M * width);
            check_free(got, M * width);
        }
    check_free(A, MOST);
    check_free(B, MOST);
}

/* rows and columns of C do not depend on how many there are */
static void test_mm_alone(void **state) {
    enum { M = 77, N = 100, K = 300, LDC = N + 3 };
    real *A = check_random(M * K, -1, 1, 3), *B = check_random(N * K, -1, 1, 4);
    real *all = check_new(M * LDC), *some = check_new(M * LDC);
    (void)state;
    for (int b = 0; check_backend(b); b++)
        for (int turn = 0; turn < 2 && hl_ops_named(check_backend(b)); turn++) {
            struct hl_small_gemm a = {.M = M, .N = N, .K = K, .A = A, .B = B, .bk = N, .bn = 1, .C = all, .ldc = LDC};
            a.ai = turn ? 1 : K;
            a.ak = turn ? M : 1;
            a.alpha = (real)0.3;
            a.add = true;
            check_fill(all, M * LDC, -1, 1, 5);
            fast_mm[b](&a, mm_scratch);
            a.C = some;
            for (a.M = 1; a.M < M; a.M += 5) {
                a.N = a.M + 3; /* B keeps its rows of N */
                check_fill(some, M * LDC, -1, 1, 5);
                fast_mm[b](&a, mm_scratch);
                for (int64_t i = 0; i < a.M; i++)
                    assert_memory_equal(some + i * LDC, all + i * LDC, (size_t)a.N * sizeof(real));
            }
        }
    check_free(A, M * K);
    check_free(B, N * K);
    check_free(all, M * LDC);
    check_free(some, M * LDC);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mm), cmocka_unit_test(test_mm_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
