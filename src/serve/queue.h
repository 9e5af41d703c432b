/* queue.h -- messages from any thread to one, in order. Messages are linked through their first member and owned by
 * their current holder. */
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
    int wake;    /* an eventfd, written when the queue was empty; -1: none */
    bool nudged; /* wake the reader even without a message */
};
void hl_queue_init(struct hl_queue *q, int wake);
void hl_queue_free(struct hl_queue *q); /* take the messages out first; they are not freed */
void hl_queue_put(struct hl_queue *q, struct hl_message *m);
/* A linked list of messages, for one waking of the reader. */
void hl_queue_put_list(struct hl_queue *q, struct hl_message *first, struct hl_message *last);
void hl_queue_nudge(struct hl_queue *q);
bool hl_queue_empty(struct hl_queue *q);
/* All messages, oldest first; NULL: none. Waits up to `seconds` for one; negative: forever. */
struct hl_message *hl_queue_take(struct hl_queue *q, double seconds);

#endif
