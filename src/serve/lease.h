/* lease.h -- write access to a session shared by several processes: a small lock file next to it.
 *
 * The file names its owner by a token, a random number for this lease, and its expiry time. Every check-then-act step
 * holds flock on that file: taking the lease, renewing it, and replacing the session's file. So an owner that was
 * suspended and lost its lease meanwhile finds another token there and writes nothing: safety does not depend on
 * clocks. Clocks only decide when an owner counts as dead. A released lease is removed, so an idle session has none. */
#ifndef HL_LEASE_H
#define HL_LEASE_H
#include <stdbool.h>

enum { HL_TOKEN = 32 }; /* hexadecimal digits */
enum hl_lease_answer {
    HL_LEASE_MINE,
    HL_LEASE_OTHERS, /* another process holds it, or it is gone */
    HL_LEASE_LOCKED, /* another process has it locked for too long */
    HL_LEASE_FAILED  /* disk error; see errno */
};

/* Takes a lease for this many seconds, with a new token. force: even if another process holds it. before: the token of
 * the owner it replaced, or "". `name` is a file in the folder. */
enum hl_lease_answer hl_lease_take(int folder, const char *name, double seconds, bool force, char token[HL_TOKEN + 1],
                                   char before[HL_TOKEN + 1]);
enum hl_lease_answer hl_lease_renew(int folder, const char *name, double seconds, const char *token);
/* While the file is open no one else can take the lease; waits up to `wait` seconds for others that have it open. */
enum hl_lease_answer hl_lease_open(int folder, const char *name, const char *token, double wait, int *fd);
void hl_lease_close(int folder, const char *name, int fd, bool give_up);
bool hl_lease_is_out(int folder, const char *name); /* whether it is held, judging by its expiry time */

#endif
