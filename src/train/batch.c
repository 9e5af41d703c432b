/* batch.c -- see batch.h. */
#include "train/batch.h"
#include <stdlib.h>

hola_status hl_batch_new(struct hl_batch *b, int64_t rows, int64_t seq) {
    const size_t tokens = (size_t)(rows * seq);
    *b = (struct hl_batch){.room = rows, .seq = seq};
    b->ids = malloc(tokens * sizeof *b->ids);
    b->starts = malloc(tokens * sizeof *b->starts);
    b->scratch = malloc(tokens * sizeof *b->scratch);
    b->trained = malloc(tokens);
    b->row_at = malloc((size_t)(rows + 1) * sizeof *b->row_at);
    b->start_at = malloc((size_t)(rows + 1) * sizeof *b->start_at);
    if (b->ids && b->starts && b->scratch && b->trained && b->row_at && b->start_at) return HOLA_OK;
    hl_batch_free(b);
    return hl_fail(HOLA_ENOMEM, "a batch of %lld rows of %lld tokens", (long long)rows, (long long)seq);
}

void hl_batch_free(struct hl_batch *b) {
    free(b->ids);
    free(b->starts);
    free(b->scratch);
    free(b->trained);
    free(b->row_at);
    free(b->start_at);
    *b = (struct hl_batch){0};
}

/* Targets in a row: all tokens but the first of each document. */
static int64_t targets_of(const struct hl_row *row, bool flagged) {
    int64_t n = row->n - row->n_starts;
    if (!flagged) return n;
    n = 0;
    for (int64_t i = 0; i < row->n; i++) n += row->trained[i];
    for (int64_t k = 0; k < row->n_starts; k++) n -= row->trained[row->starts[k]];
    return n;
}

hola_status hl_batch_load(struct hl_batch *b, const struct hl_dataset *d, const uint64_t *seed, int64_t first,
                          int64_t count) {
    HL_ASSERT(count <= b->room);
    b->rows = count;
    b->tokens = b->targets = 0;
    b->flagged = hl_dataset_info(d)->flagged;
    b->row_at[0] = b->start_at[0] = 0;
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = b->row_at[r], s0 = b->start_at[r];
        struct hl_row row = {.ids = b->ids + at, .starts = b->starts + s0, .trained = b->trained + at};
        hola_status s = seed ? hl_dataset_row(d, *seed, first + r, &row) : hl_dataset_row_at(d, first + r, &row);
        if (s != HOLA_OK) return s;
        b->targets += targets_of(&row, b->flagged);
        for (int64_t i = 0; i < row.n_starts; i++) row.starts[i] += at;
        b->row_at[r + 1] = at + row.n;
        b->start_at[r + 1] = s0 + row.n_starts;
    }
    b->tokens = b->row_at[count];
    return HOLA_OK;
}

struct hl_slice hl_batch_slice(struct hl_batch *b, int64_t from, int64_t to) {
    const int64_t at = b->row_at[from], s0 = b->start_at[from], n = b->start_at[to] - s0;
    for (int64_t i = 0; i < n; i++) b->scratch[i] = b->starts[s0 + i] - at;
    return (struct hl_slice){.ids = b->ids + at,
                             .starts = b->scratch,
                             .trained = b->flagged ? b->trained + at : NULL,
                             .n = b->row_at[to] - at,
                             .n_starts = n};
}
