/* store_internal.h -- shared by the store's files. */
#ifndef HL_STORE_INTERNAL_H
#define HL_STORE_INTERNAL_H
#include "serve/store.h"
#include <sys/stat.h>

#define HL_SESSION_SUFFIX ".session"
#define HL_LEASE_SUFFIX ".lease"
enum { HL_FILE_NAME = HL_ID_MOST + HL_TOKEN + 48 };

struct hl_held { /* a lease being renewed */
    char id[HL_ID_MOST + 1], token[HL_TOKEN + 1];
    bool lost;
};
struct hl_store {
    char *dir;
    int fd; /* the folder, which holds the lock */
    uint64_t model;
    bool threaded;
    pthread_t thread;
    struct hl_queue inbox;
    double lease, next_renewal; /* seconds; 0: not shared */
    pthread_mutex_t held_lock;  /* guards these three */
    struct hl_held *held;
    int n_held, held_room;
};

void hl_store_file(char name[HL_FILE_NAME], const struct hl_store *s, const char *id, const char *suffix);
void hl_store_temp(char name[HL_FILE_NAME], const struct hl_store *s, const char *id, const char *token);
/* Whether the name is a file of this model */
bool hl_store_id(const struct hl_store *s, const char *name, char id[HL_ID_MOST + 1]);
struct hl_stamp hl_stamp_of(const struct stat *st);
json_t *hl_store_about(const struct hl_store *s, const char *id, struct hl_stamp *stamp); /* NULL: damaged */
double hl_store_renew(struct hl_store *s); /* renews due leases; seconds until the next, or -1 */

#endif
