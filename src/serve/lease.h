/* lease.h -- who may write a session that several processes share: a small file beside it.
 *
 * The file names its owner by a token, a random number of this one ownership, and the time until which it is valid.
 * Everything that reads and then acts does so under flock on that file: taking it, renewing it, and the moment when a
 * session's new file replaces the old one. So an owner that was stopped, and whose lease another one took meanwhile,
 * finds another token there and writes nothing: this does not depend on clocks. Clocks only say when an owner is taken
 * for dead. A lease that is given up is removed, so a session that nobody works on has none. */
#ifndef HL_LEASE_H
#define HL_LEASE_H
#include <stdbool.h>

enum { HL_TOKEN = 32 }; /* hexadecimal digits */
enum hl_lease_answer {
    HL_LEASE_MINE,
    HL_LEASE_OTHERS, /* somebody else has it, or it is gone */
    HL_LEASE_LOCKED, /* somebody looks at it, and does not end */
    HL_LEASE_FAILED  /* the disk; errno */
};

/* A lease of so many seconds, with a new token. force: whoever has it. before: the token of an owner that had to go,
 * or "". `name` is a file in the folder. */
enum hl_lease_answer hl_lease_take(int folder, const char *name, double seconds, bool force, char token[HL_TOKEN + 1],
                                   char before[HL_TOKEN + 1]);
enum hl_lease_answer hl_lease_renew(int folder, const char *name, double seconds, const char *token);
/* While the file is open nobody else can take the lease; waits up to `wait` seconds for others that look at it. */
enum hl_lease_answer hl_lease_open(int folder, const char *name, const char *token, double wait, int *fd);
void hl_lease_close(int folder, const char *name, int fd, bool give_up);
bool hl_lease_is_out(int folder, const char *name); /* somebody has it, as far as its time says */

#endif
