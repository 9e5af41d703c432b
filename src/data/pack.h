/* pack.h -- packs documents into rows of at most seq tokens: best fit, longest first.
 *
 * A document longer than seq is split into pieces of seq; its last piece and all shorter documents are placed whole
 * into the row where they leave the least room. Rows, and pieces within a row, are in text order, so the first rows of
 * a dataset have the same kind of text as the last ones. */
#ifndef HL_PACK_H
#define HL_PACK_H
#include "core/status.h"

struct hl_pack_piece {
    int64_t at; /* first token */
    int32_t n;
};
struct hl_pack {
    int64_t rows;
    int64_t *first; /* [rows + 1]: row r has pieces first[r] to first[r + 1] - 1 */
    struct hl_pack_piece *piece;
};
/* Document i is tokens doc[i] to doc[i + 1] - 1; no document is empty. */
hola_status hl_pack_build(struct hl_pack *p, const int64_t *doc, int64_t documents, int64_t seq);
/* The same for given pieces, in text order and at most seq long. */
hola_status hl_pack_pieces(struct hl_pack *p, const struct hl_pack_piece *piece, int64_t n, int64_t seq);
void hl_pack_free(struct hl_pack *p); /* also accepts a zeroed one */

#endif
