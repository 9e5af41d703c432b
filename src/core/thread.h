/* thread.h -- threads that leave signals to the program.
 *
 * A signal sent to a process goes to any one thread that does not block it. A program that blocks SIGINT to wait for it
 * in one place would lose it to a thread of this library, so these block every signal but those of faults and
 * profilers. */
#ifndef HL_THREAD_H
#define HL_THREAD_H
#include <pthread.h>
#include <stdbool.h>

/* Every thread's stack has at least this size, whatever `ulimit -s` says. The largest frames are those of the CPU's ops:
 * 130 kB. */
enum { HL_STACK = 2 << 20 };

/* False: no thread could be started. Join it with pthread_join. */
bool hl_thread_start(pthread_t *thread, void *(*run)(void *), void *ctx);

#endif
