/* ids.h -- a list of token ids. */
#ifndef HL_IDS_H
#define HL_IDS_H
#include <stdint.h>

struct hl_ids {
    int32_t *data;
    int64_t n, cap;
};

#endif
