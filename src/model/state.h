/* state.h -- a session's state, laid out from the mixer's list of parts (mixers/mixer.h).
 *
 * Parts of fixed size are in one block, layer by layer. Parts that grow with the position are in pages of
 * HL_PAGE_TOKENS tokens, each holding the rows of all layers. Everything that changes per token is here: copying it
 * copies the session. */
#ifndef HL_STATE_H
#define HL_STATE_H
#include "mixers/mixer.h"
#include <pthread.h>

struct hl_state_layout {
    int n; /* parts of a layer */
    struct hl_state_part part[HL_STATE_PARTS];
    int64_t at[HL_STATE_PARTS];     /* bytes from a layer's start, in the block or a page, to the part's first head */
    int64_t stride[HL_STATE_PARTS]; /* bytes from head to head */
    int64_t layers;
    int64_t layer, bytes;     /* size of a layer's fixed parts; of the block */
    int64_t page_layer, page; /* size of a layer in a page; of a page; 0: nothing grows */
    int64_t block;            /* tokens per block of kept rows; 0: none */
    hola_dtype act, row;      /* types of HL_STATE_ACT and HL_STATE_ROW; HOLA_F32: real */
    bool ranked;              /* some part changes when blocks close */
};
struct hl_state_layout hl_state_layout(const hola_config *cfg, hola_dtype act, hola_dtype row);
int64_t hl_state_block(const hola_config *cfg);
/* Number i of an array of such a type. */
static inline real hl_state_number(const void *at, hola_dtype type, int64_t i) {
    return type == HOLA_F32    ? ((const real *)at)[i]
           : type == HOLA_BF16 ? (real)hl_from_bf16(((const uint16_t *)at)[i])
                               : (real)hl_from_f16(((const uint16_t *)at)[i]);
}
/* Bytes of a state after pos tokens. */
int64_t hl_state_size(const struct hl_state_layout *y, int64_t pos);

/* Bytes moved to decode one more token after pos tokens: replaced parts read and written, rings read, kept rows and, on
 * average, half a block of open rows read, grown parts read. */
double hl_state_traffic(const struct hl_state_layout *y, int64_t pos);

/* Freed state blocks, kept for reuse: allocating a block costs thousands of page faults on a host or a device
 * synchronization on a GPU, and fragments the heap if many come and go. */
struct hl_state_pool {
    pthread_mutex_t lock;
    char **block; /* [n], room for `room` of them */
    int64_t n, room;
    int64_t most; /* the most blocks kept; 0 (a new model): none */
};

struct hl_state {
    char *fixed; /* in backend memory */
    char **page; /* [pages]: a host table of pages in backend memory */
    int64_t pages;
};
/* The contents are uninitialized: call hl_state_clear, or copy into it. */
hola_status hl_state_new(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b,
                         struct hl_state_pool *pool);
void hl_state_free(struct hl_state *s, struct hl_backend *b, struct hl_state_pool *pool);
/* Allocates a block and writes to all of it, while go_on says so, and keeps it. false: stopped, or no memory. */
typedef bool (*hl_go_on)(void *ctx);
bool hl_state_pool_add(struct hl_state_pool *pool, const struct hl_state_layout *y, struct hl_backend *b,
                       hl_go_on go_on, void *ctx);
char *hl_state_pool_take(struct hl_state_pool *pool);             /* NULL: there is none */
bool hl_state_pool_keep(struct hl_state_pool *pool, char *block); /* false: the pool is full, the block is not kept */
int64_t hl_state_pool_kept(struct hl_state_pool *pool);
void hl_state_pool_free(struct hl_state_pool *pool, struct hl_backend *b);
/* Makes room for that many tokens. On failure the state is unchanged; the message says how many fit. */
hola_status hl_state_reserve(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b, int64_t tokens);
void hl_state_clear(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b);
/* Copies the parts with these kinds of change (enum hl_state_change, or-ed), and pos tokens of parts that grow: `to`
 * must have room for them. */
void hl_state_copy(struct hl_state *to, const struct hl_state *from, const struct hl_state_layout *y,
                   struct hl_backend *b, int64_t pos, unsigned changes);

/* Visits every run of numbers in a state of pos tokens, in the order of a saved session; s is on the host. Stops when
 * the visitor returns false, and returns false too. */
typedef bool (*hl_state_visitor)(void *ctx, const struct hl_state_part *part, void *at, int64_t count);
bool hl_state_visit(const struct hl_state *s, const struct hl_state_layout *y, int64_t pos, hl_state_visitor visit,
                    void *ctx);
/* Counts the numbers of each kind that would be visited, without a state. */
void hl_state_count(const struct hl_state_layout *y, int64_t pos, int64_t count[HL_STATE_KINDS]);

#endif
