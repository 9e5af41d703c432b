/* dataset.h -- rows of token shards for training: a row is a pure function of (seed, cursor).
 *
 * The cursor counts the rows consumed so far; epochs go on for ever, each in an order of its own.
 * Resuming needs nothing but the cursor. Two ways to make rows of at most seq tokens:
 *   stream: row i is tokens [i seq, (i+1) seq) of all shards in a line, as the paper has it;
 *           the rest at the end is left out. Always seq tokens, one start.
 *   packed: whole documents (BOS to BOS), best fit, those longer than seq in pieces of seq; nothing is left
 *           out, rows may be shorter than seq, every document or piece is a start.
 * Conversations (shards with flags) are always packed, and only their first seq tokens: the rest of an answer would stand
 * without its question. Those without a token to learn are left out.
 * Once rows are set up, any number of threads may read. */
#ifndef HL_DATASET_H
#define HL_DATASET_H
#include "core/pool.h"
#include "core/status.h"

struct hl_dataset;

struct hl_dataset_info {
    int64_t tokens, shards, rows; /* of this split; rows of an epoch, 0 before rows are set up */
    int64_t documents;            /* packed rows only */
    int64_t vocab;                /* of the tokenizer; 0: not known (shards without a dataset.json) */
    int32_t bos;                  /* -1: none, or not known */
    bool flagged;                 /* conversations: some tokens are trained, the others are not */
    int64_t trained;              /* tokens that are; once rows are set up: the targets of an epoch */
    struct {
        int64_t cut, lost;     /* conversations longer than a row; tokens to learn that this leaves out */
        int64_t idle, longest; /* conversations left out; tokens of the longest one */
    } talk;                    /* once rows are set up */
    const char *tokenizer;     /* DIR/tokenizer.model or .json, "byte", or NULL: none or not known; lent */
};

/* dir holds train_*.bin and val_*.bin (or *_train_*.bin, *_val_*.bin); split: "train" or "val". vocab: the
 * model's; a tokenizer with more is refused, and so is, when a row is read, an id that is not below it. 0: no
 * checks. A directory whose dataset.json says that it was not prepared to the end is refused. */
hola_status hl_dataset_open(struct hl_dataset **out, const char *dir, const char *split, int64_t vocab);
void hl_dataset_free(struct hl_dataset *d);
bool hl_dataset_has(const char *dir, const char *split); /* whether there are shards of it */
const struct hl_dataset_info *hl_dataset_info(const struct hl_dataset *d);

enum hl_row_mode { HL_ROWS_STREAM, HL_ROWS_PACKED };
/* Sets rows up, once per dataset. bos: what begins a document (packed; -1: info's). pool may be NULL; packed
 * rows read all tokens once for it. Fewer tokens than one stream row are refused. */
hola_status hl_dataset_rows(struct hl_dataset *d, enum hl_row_mode mode, int64_t seq, int32_t bos,
                            struct hl_pool *pool);

struct hl_row {
    int32_t *ids;     /* [seq], the caller's */
    int64_t *starts;  /* [seq], the caller's; starts[0] = 0. NULL: not wanted */
    uint8_t *trained; /* [seq], the caller's: 1 for tokens that are, of a set with flags; NULL: not wanted */
    int64_t n, n_starts;
};
/* The row at the cursor, >= 0, of the endless shuffled sequence. */
hola_status hl_dataset_row(const struct hl_dataset *d, uint64_t seed, int64_t cursor, struct hl_row *row);
/* Row i of [0, rows), in the order of the files: validation. */
hola_status hl_dataset_row_at(const struct hl_dataset *d, int64_t i, struct hl_row *row);
/* Reads everything: every id of every shard is below the vocabulary. */
hola_status hl_dataset_verify(const struct hl_dataset *d, struct hl_pool *pool);

/* Where i goes in permutation (seed, epoch) of [0, n): a bijection without a table. */
int64_t hl_permute(int64_t n, uint64_t seed, uint64_t epoch, int64_t i);

#endif
