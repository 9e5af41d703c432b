#include "core/thread.h"
#include <signal.h>
#include <stddef.h>

bool hl_thread_start(pthread_t *thread, void *(*run)(void *), void *ctx) {
    static const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) sigdelset(&blocked, open[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before); /* a new thread inherits the mask of its creator */
    pthread_attr_t attr;
    size_t stack = 0;
    bool ok = pthread_attr_init(&attr) == 0;
    if (ok) {
        if (pthread_attr_getstacksize(&attr, &stack) == 0 && stack < HL_STACK)
            pthread_attr_setstacksize(&attr, HL_STACK);
        ok = pthread_create(thread, &attr, run, ctx) == 0;
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
