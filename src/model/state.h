/* state.h -- a session's state, laid out from the mixer's list of parts (mixers/mixer.h).
 *
 * Parts of fixed size lie in one block, layer by layer. Parts that grow with the position lie in pages of
 * HL_PAGE_TOKENS tokens, each with the rows of all layers. Everything that changes per token is in here: a copy of it
 * is a copy of the session. */
#ifndef HL_STATE_H
#define HL_STATE_H
#include "mixers/mixer.h"
#include <pthread.h>

struct hl_state_layout {
    int n; /* parts of a layer */
    struct hl_state_part part[HL_STATE_PARTS];
    int64_t at[HL_STATE_PARTS]; /* bytes from a layer's start, in the block or in a page, to the part's first head */
    int64_t stride[HL_STATE_PARTS]; /* bytes from head to head */
    int64_t layers;
    int64_t layer, bytes;     /* of a layer's fixed parts; of the block */
    int64_t page_layer, page; /* of a layer in a page; of a page; 0: nothing grows */
    int64_t block;            /* tokens of a block of rows that are kept; 0: none */
    int64_t act_size;
    bool ranked; /* some part changes as blocks close */
};
struct hl_state_layout hl_state_layout(const hola_config *cfg, int64_t act_size);
int64_t hl_state_block(const hola_config *cfg);
/* Bytes of a state after pos tokens. */
int64_t hl_state_size(const struct hl_state_layout *y, int64_t pos);

/* Bytes that decoding one more token moves after pos tokens: what is replaced read and written, rings read, kept
 * rows and, on average, half a block of open ones read, what grew read. */
double hl_state_traffic(const struct hl_state_layout *y, int64_t pos);

/* Blocks of states that were freed, for the next ones: a block takes thousands of page faults to make on a host, a
 * halt of the device on a GPU, and a heap where many come and go falls to pieces. */
struct hl_state_pool {
    pthread_mutex_t lock;
    char **block; /* [n], room for `room` of them */
    int64_t n, room;
    int64_t most; /* so many are kept; 0 (of a new model): none */
};

struct hl_state {
    char *fixed; /* where the backend's arrays are */
    char **page; /* [pages]: a table on the host of pages there */
    int64_t pages;
};
/* Its numbers are anything: hl_state_clear, or a copy. */
hola_status hl_state_new(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b,
                         struct hl_state_pool *pool);
void hl_state_free(struct hl_state *s, struct hl_backend *b, struct hl_state_pool *pool);
void hl_state_pool_free(struct hl_state_pool *pool, struct hl_backend *b);
/* Makes room for that many tokens. On failure what was there stays; the message says how many fit. */
hola_status hl_state_reserve(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b, int64_t tokens);
void hl_state_clear(struct hl_state *s, const struct hl_state_layout *y, struct hl_backend *b);
/* Copies the parts that change in one of these ways (enum hl_state_change, or-ed), pos tokens of those that grow:
 * `to` must have room for them. */
void hl_state_copy(struct hl_state *to, const struct hl_state *from, const struct hl_state_layout *y,
                   struct hl_backend *b, int64_t pos, unsigned changes);

/* Every run of numbers of a state of pos tokens, in the order of a saved session; s is on the host. Stops where the
 * visitor says false, and says so too. */
typedef bool (*hl_state_visitor)(void *ctx, const struct hl_state_part *part, void *at, int64_t count);
bool hl_state_visit(const struct hl_state *s, const struct hl_state_layout *y, int64_t pos, hl_state_visitor visit,
                    void *ctx);
/* How many numbers of each kind that would visit, without a state. */
void hl_state_count(const struct hl_state_layout *y, int64_t pos, int64_t count[4]);

#endif
