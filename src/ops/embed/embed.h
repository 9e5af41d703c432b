/* embed.h -- rows of the embedding: out[t] = E[ids[t]]; dE[ids[t]] += dout[t], in the order of t. */
#ifndef HL_EMBED_H
#define HL_EMBED_H
#include "core/rows.h"

struct hl_embed {
    int64_t T, D;
    const int32_t *ids; /* checked by the caller: 0 <= id < E.rows */
    struct hl_weight E;
    void *out;
    const void *dout;
    real *dE; /* [rows][D], accumulated */
};
#endif
