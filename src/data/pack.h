/* pack.h -- documents into rows of at most seq tokens: best fit, the longest first.
 *
 * A document longer than seq is cut into pieces of seq; the last piece and all shorter documents go whole
 * into the row that they leave the least room in. Rows, and pieces in a row, are in the order of the text:
 * the first rows of a set are no other kind of text than the last ones. */
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
/* Document i is tokens doc[i] to doc[i + 1] - 1, none of them empty. */
hola_status hl_pack_build(struct hl_pack *p, const int64_t *doc, int64_t documents, int64_t seq);
/* The same for pieces as they are, in the order of the text and at most seq long. */
hola_status hl_pack_pieces(struct hl_pack *p, const struct hl_pack_piece *piece, int64_t n, int64_t seq);
void hl_pack_free(struct hl_pack *p); /* zeroed ones too */

#endif
