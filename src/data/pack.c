/* pack.c -- see pack.h. Cost: a few passes over the pieces and one bitmap search per piece. */
#include "data/pack.h"
#include <stdlib.h>

/* Rows that still have room, by room left: lists, and a two-level bitmap of the non-empty lists, because rows may be
 * long. */
struct rooms {
    int64_t seq;
    int64_t *head;        /* [seq + 1]: a row with exactly this much room, -1: none */
    uint64_t *bits, *top; /* bit r of bits: head[r] >= 0; bit w of top: bits[w] != 0 */
};

static void free_rooms(struct rooms *r) {
    free(r->head);
    free(r->bits);
    free(r->top);
}

static bool new_rooms(struct rooms *r, int64_t seq) {
    *r = (struct rooms){.seq = seq, .head = malloc((size_t)(seq + 1) * sizeof(int64_t))};
    r->bits = calloc((size_t)(seq / 64 + 1), 8);
    r->top = calloc((size_t)(seq / 4096 + 1), 8);
    if (!r->head || !r->bits || !r->top) {
        free_rooms(r);
        return false;
    }
    for (int64_t i = 0; i <= seq; i++) r->head[i] = -1;
    return true;
}

/* The first set bit at or after `from` in n words; -1: none. */
static int64_t find_bit(const uint64_t *bits, int64_t n, int64_t from) {
    int64_t w = from / 64;
    uint64_t x = w < n ? bits[w] & ~(uint64_t)0 << from % 64 : 0;
    while (!x && ++w < n) x = bits[w];
    return x ? w * 64 + __builtin_ctzll(x) : -1;
}

/* The smallest room >= n; -1: none. */
static int64_t best_room(const struct rooms *r, int64_t n) {
    int64_t w = n / 64;
    int64_t at = find_bit(r->bits, w + 1, n);
    if (at >= 0) return at;
    w = find_bit(r->top, r->seq / 4096 + 1, w + 1);
    return w < 0 ? -1 : find_bit(r->bits, w + 1, w * 64);
}

static void push_row(struct rooms *r, int64_t *next, int64_t row, int64_t room) {
    next[row] = r->head[room];
    r->head[room] = row;
    r->bits[room / 64] |= (uint64_t)1 << room % 64;
    r->top[room / 4096] |= (uint64_t)1 << room / 64 % 64;
}

static int64_t pop_row(struct rooms *r, const int64_t *next, int64_t room) {
    int64_t row = r->head[room];
    r->head[room] = next[row];
    if (r->head[room] >= 0) return row;
    r->bits[room / 64] &= ~((uint64_t)1 << room % 64);
    if (!r->bits[room / 64]) r->top[room / 4096] &= ~((uint64_t)1 << room / 64 % 64);
    return row;
}

/* Cuts the documents; returns the number of pieces. out NULL: only count. */
static int64_t cut(const int64_t *doc, int64_t documents, int64_t seq, struct hl_pack_piece *out) {
    int64_t n = 0;
    for (int64_t i = 0; i < documents; i++)
        for (int64_t at = doc[i]; at < doc[i + 1]; at += seq, n++)
            if (out) {
                int64_t left = doc[i + 1] - at;
                out[n] = (struct hl_pack_piece){at, (int32_t)(left < seq ? left : seq)};
            }
    return n;
}

/* order: the pieces by decreasing length, stable. count has room for seq + 2. */
static void by_length(const struct hl_pack_piece *piece, int64_t n, int64_t seq, int64_t *count, int64_t *order) {
    for (int64_t i = 0; i < seq + 2; i++) count[i] = 0;
    for (int64_t i = 0; i < n; i++) count[seq - piece[i].n + 1]++;
    for (int64_t i = 1; i < seq + 2; i++) count[i] += count[i - 1];
    for (int64_t i = 0; i < n; i++) order[count[seq - piece[i].n]++] = i;
}

/* row[i]: the row of piece i. Returns the number of rows. */
static int64_t place(const struct hl_pack_piece *piece, const int64_t *order, int64_t n, struct rooms *r, int64_t *row,
                     int64_t *next) {
    int64_t rows = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = order[k], room = best_room(r, piece[i].n);
        row[i] = room < 0 ? rows++ : pop_row(r, next, room);
        room = (room < 0 ? r->seq : room) - piece[i].n;
        if (room > 0) push_row(r, next, row[i], room);
    }
    return rows;
}

/* Numbers rows by their first piece and groups the pieces by row. */
static void group(struct hl_pack *p, const struct hl_pack_piece *piece, int64_t n, int64_t *row, int64_t *number) {
    int64_t seen = 0;
    for (int64_t r = 0; r < p->rows; r++) number[r] = -1;
    for (int64_t r = 0; r <= p->rows; r++) p->first[r] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (number[row[i]] < 0) number[row[i]] = seen++;
        row[i] = number[row[i]];
        p->first[row[i] + 1]++;
    }
    for (int64_t r = 0; r < p->rows; r++) number[r] = p->first[r + 1] += p->first[r];
    for (int64_t i = n; i-- > 0;) p->piece[--number[row[i]]] = piece[i]; /* backwards: stable within a row */
}

static size_t bytes_of(int64_t n, size_t each) { return (size_t)(n > 0 ? n : 1) * each; }

hola_status hl_pack_pieces(struct hl_pack *p, const struct hl_pack_piece *piece, int64_t n, int64_t seq) {
    struct rooms rooms = {0};
    int64_t *count = malloc(bytes_of(seq + 2, sizeof *count)), *order = malloc(bytes_of(n, sizeof *order));
    int64_t *row = malloc(bytes_of(n, sizeof *row));
    hola_status s = HOLA_ENOMEM;
    HL_ASSERT(seq > 0 && seq <= INT32_MAX);
    *p = (struct hl_pack){0};
    if (count && order && row && new_rooms(&rooms, seq)) {
        int64_t *next = malloc(bytes_of(n, sizeof *next));
        by_length(piece, n, seq, count, order);
        if (next) p->rows = place(piece, order, n, &rooms, row, next);
        p->first = malloc(bytes_of(p->rows + 1, sizeof *p->first));
        p->piece = malloc(bytes_of(n, sizeof *p->piece));
        if (next && p->first && p->piece) {
            group(p, piece, n, row, next); /* next is no longer needed: reuse it for the new numbers */
            s = HOLA_OK;
        }
        free(next);
        free_rooms(&rooms);
    }
    free(count);
    free(order);
    free(row);
    if (s == HOLA_OK) return s;
    hl_pack_free(p);
    return hl_fail(s, "no memory to pack %lld pieces of documents", (long long)n);
}

hola_status hl_pack_build(struct hl_pack *p, const int64_t *doc, int64_t documents, int64_t seq) {
    const int64_t n = cut(doc, documents, seq, NULL);
    struct hl_pack_piece *piece = malloc(bytes_of(n, sizeof *piece));
    *p = (struct hl_pack){0};
    if (!piece) return hl_fail(HOLA_ENOMEM, "no memory to pack %lld documents", (long long)documents);
    cut(doc, documents, seq, piece);
    const hola_status s = hl_pack_pieces(p, piece, n, seq);
    free(piece);
    return s;
}

void hl_pack_free(struct hl_pack *p) {
    free(p->first);
    free(p->piece);
    *p = (struct hl_pack){0};
}
