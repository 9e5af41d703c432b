/* batch.h -- dataset rows, concatenated as a trainer takes them. */
#ifndef HL_BATCH_H
#define HL_BATCH_H
#include "data/dataset.h"

struct hl_batch {
    int64_t rows, room, seq; /* rows in use; capacity in rows; most tokens per row */
    int32_t *ids;            /* [room * seq] */
    int64_t *row_at;         /* [room + 1]: offset of each row in ids */
    int64_t *starts;         /* [room * seq]: offsets of documents in ids, row by row */
    int64_t *start_at;       /* [room + 1]: index of a row's first start */
    uint8_t *trained;        /* [room * seq]: 1 for trained tokens, if `flagged`; else all are trained */
    bool flagged;
    int64_t *scratch; /* [room * seq] */
    int64_t tokens, targets;
};
hola_status hl_batch_new(struct hl_batch *b, int64_t rows, int64_t seq);
void hl_batch_free(struct hl_batch *b); /* also accepts a zeroed one */
/* count rows from first: of the shuffled sequence, or in file order if seed is NULL. */
hola_status hl_batch_load(struct hl_batch *b, const struct hl_dataset *d, const uint64_t *seed, int64_t first,
                          int64_t count);
/* Rows [from, to) as the arguments of one call; valid until the next slice. */
struct hl_slice {
    const int32_t *ids;
    const int64_t *starts;
    const uint8_t *trained; /* NULL: all */
    int64_t n, n_starts;
};
struct hl_slice hl_batch_slice(struct hl_batch *b, int64_t from, int64_t to);

#endif
