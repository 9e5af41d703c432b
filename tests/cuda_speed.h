/* cuda_speed.h -- timing ops on a real device, for the tests that print what they measured. */
#ifndef HL_TEST_CUDA_SPEED_H
#define HL_TEST_CUDA_SPEED_H
#include "cuda.h"

enum { REPEATS = 20 };

/* n activations or floats: a million random ones again and again */
static inline void *noise(const struct dev *d, int64_t n, bool reals) {
    enum { PIECE = 1 << 20 };
    const int64_t size = reals ? 4 : d->backend->act_size;
    char *p = hl_alloc(d->backend, n * size);
    real *x = check_random(PIECE, -1, 1, 5);
    uint16_t *half = malloc(PIECE * 2);
    assert_true(p && half);
    for (int i = 0; i < PIECE; i++) half[i] = hl_to_bf16((float)x[i]);
    for (int64_t i = 0; i < n; i += PIECE)
        hl_put(d->backend, p + i * size, size == 4 ? (void *)x : (void *)half, (n - i < PIECE ? n - i : PIECE) * size);
    CHECK_OK(hl_finish(d->backend));
    check_free(x, PIECE);
    free(half);
    return p;
}

#define TIME(d, what, bytes, call)                                                                          \
    do {                                                                                                    \
        for (int time_i = 0; time_i < 3; time_i++) call;                                                    \
        hl_cuda_timer_start(hl_cuda_of((d)->backend));                                                      \
        for (int time_i = 0; time_i < REPEATS; time_i++) call;                                              \
        const double time_s = hl_cuda_timer_stop(hl_cuda_of((d)->backend)) / REPEATS;                       \
        print_message("%-28s %8.1f us  %6.0f GB/s\n", what, 1e6 * time_s, 1e-9 * (double)(bytes) / time_s); \
        CHECK_OK(hl_finish((d)->backend));                                                                  \
    } while (0)

#endif
