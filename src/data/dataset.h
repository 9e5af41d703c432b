/* dataset.h -- training rows from token shards: a row is a pure function of (seed, cursor).
 *
 * The cursor counts the rows consumed so far; epochs repeat without end, each in its own order. Resuming needs only the
 * cursor. Two ways to make rows of at most seq tokens:
 *   stream: row i is tokens [i seq, (i+1) seq) of all shards concatenated, as in the paper;
 *           the remainder is dropped. Always seq tokens, one start.
 *   packed: whole documents (BOS to BOS), best fit; documents longer than seq are split into pieces of seq.
 *           Nothing is dropped, rows may be shorter than seq, every document or piece is a start.
 * Conversations (shards with flags) are always packed and truncated to seq tokens, because the rest of an answer would
 * lack its question. Conversations without a trained token are left out.
 * Once rows are set up, any number of threads may read. */
#ifndef HL_DATASET_H
#define HL_DATASET_H
#include "core/pool.h"
#include "core/status.h"

struct hl_dataset;

struct hl_dataset_info {
    int64_t tokens, shards, rows; /* of this split; rows per epoch, 0 before rows are set up */
    int64_t documents;            /* packed rows only */
    int64_t vocab;                /* of the tokenizer; 0: unknown (shards without a dataset.json) */
    int32_t bos;                  /* -1: none, or unknown */
    bool flagged;                 /* conversations: only some tokens are trained */
    int64_t trained;              /* trained tokens; once rows are set up: targets per epoch */
    struct {
        int64_t cut, lost;     /* conversations longer than a row; trained tokens lost by truncating them */
        int64_t idle, longest; /* conversations left out; tokens of the longest one */
    } talk;                    /* valid once rows are set up */
    const char *tokenizer;     /* DIR/tokenizer.model or .json, "byte", or NULL: none or unknown; valid until close */
};

/* dir holds train_*.bin and val_*.bin (or *_train_*.bin, *_val_*.bin); split: "train" or "val". vocab: the model's; a
 * tokenizer with a larger one is refused, and so is, when a row is read, an id out of range. 0: no checks. A directory
 * whose dataset.json says that prepare did not finish is refused. */
hola_status hl_dataset_open(struct hl_dataset **out, const char *dir, const char *split, int64_t vocab);
void hl_dataset_free(struct hl_dataset *d);
bool hl_dataset_has(const char *dir, const char *split); /* whether it has shards of that split */
const struct hl_dataset_info *hl_dataset_info(const struct hl_dataset *d);

enum hl_row_mode { HL_ROWS_STREAM, HL_ROWS_PACKED };
/* Sets up the rows, once per dataset. bos: the token that begins a document (packed; -1: that of info). pool may be
 * NULL; packed rows use it to read all tokens once. Fewer tokens than one stream row are refused. */
hola_status hl_dataset_rows(struct hl_dataset *d, enum hl_row_mode mode, int64_t seq, int32_t bos,
                            struct hl_pool *pool);

struct hl_row {
    int32_t *ids;     /* [seq], allocated by the caller */
    int64_t *starts;  /* [seq], allocated by the caller; starts[0] = 0. NULL: not wanted */
    uint8_t *trained; /* [seq], allocated by the caller: 1 for trained tokens, if the dataset has flags; NULL: not
                       * wanted */
    int64_t n, n_starts;
};
/* The row at the cursor, >= 0, of the endless shuffled sequence. */
hola_status hl_dataset_row(const struct hl_dataset *d, uint64_t seed, int64_t cursor, struct hl_row *row);
/* Row i of [0, rows) in file order: validation. */
hola_status hl_dataset_row_at(const struct hl_dataset *d, int64_t i, struct hl_row *row);
/* Reads everything and checks every id against the vocabulary. */
hola_status hl_dataset_verify(const struct hl_dataset *d, struct hl_pool *pool);

/* The image of i under permutation (seed, epoch) of [0, n): a bijection computed without a table. */
int64_t hl_permute(int64_t n, uint64_t seed, uint64_t epoch, int64_t i);

#endif
