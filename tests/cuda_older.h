/* cuda_older.h -- the emulated device as a GPU before Hopper, without mbarriers. Needs _POSIX_C_SOURCE. */
#ifndef HL_TEST_CUDA_OLDER_H
#define HL_TEST_CUDA_OLDER_H
#include "cuda.h"

/* Skips the test on others. */
static inline struct dev dev_open_older(void) {
    struct dev d = dev_open(false);
    if (!dev_emulated(d.backend)) {
        dev_close(&d);
        skip();
    }
    assert_int_equal(setenv("EMU_OLDER", "1", 1), 0);
    return d;
}
static inline void dev_close_older(struct dev *d) {
    assert_int_equal(unsetenv("EMU_OLDER"), 0);
    dev_close(d);
}

#endif
