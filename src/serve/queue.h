/* queue.h -- messages from any thread to one, in order. Messages are linked by their first member and owned by
 * whoever holds them. */
#ifndef HL_QUEUE_H
#define HL_QUEUE_H
#include <pthread.h>
#include <stdbool.h>

struct hl_message {
    struct hl_message *next;
    int kind;
};
struct hl_queue {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct hl_message *first, **last;
    int wake;    /* an eventfd that is written to when the queue was empty; -1: none */
    bool nudged; /* somebody wants the reader to look, message or not */
};
void hl_queue_init(struct hl_queue *q, int wake);
void hl_queue_free(struct hl_queue *q); /* the messages are the caller's to take first */
void hl_queue_put(struct hl_queue *q, struct hl_message *m);
void hl_queue_nudge(struct hl_queue *q);
/* All messages, oldest first; NULL: there are none. Waits for some up to `seconds`; negative: as long as it takes. */
struct hl_message *hl_queue_take(struct hl_queue *q, double seconds);

#endif
