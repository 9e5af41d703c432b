/* pool.h -- a fixed-size thread pool.
 *
 * hl_pool_run(pool, n, task, ctx) calls task(ctx, i, worker) for every i in [0, n), each once, on any thread, and
 * returns when all are done. Which thread runs which i is unspecified (usually consecutive ones: neighbours in memory
 * should be neighbours in i), so a task must own what it writes, and the division into tasks must not depend on the
 * number of threads: then neither does the result. Calls from several threads on one pool are serialized. Tasks must
 * not nest. */
#ifndef HL_POOL_H
#define HL_POOL_H
#include "core/status.h"
#include <stdint.h>

struct hl_pool;
typedef void (*hl_task)(void *ctx, int64_t i, int worker);

/* threads <= 0: one per processor available to this process. */
hola_status hl_pool_new(struct hl_pool **out, int threads);
void hl_pool_free(struct hl_pool *p);
int hl_pool_threads(const struct hl_pool *p);
void hl_pool_run(struct hl_pool *p, int64_t n, hl_task task, void *ctx);

/* Scratch memory of one worker, 64-byte aligned; its content does not outlive the task. Reserve first (a model does it
 * once for all its ops); requesting more than was reserved is a bug. */
hola_status hl_pool_reserve(struct hl_pool *p, int64_t bytes);
void *hl_pool_scratch(struct hl_pool *p, int worker, int64_t bytes);

#endif
