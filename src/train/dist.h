/* dist.h -- several ranks that train one model. Every rank calls the same of these in the same order; sums are
 * taken in the order of the ranks, so that all get the same bits, and the same bits every time. */
#ifndef HL_DIST_H
#define HL_DIST_H
#include "core/real.h"
#include "core/status.h"

struct hl_dist {
    int rank, size;
    int local; /* this rank's number among those of its machine: the device it takes */
    /* x[n] of all ranks added up, in place */
    void (*sum)(double *x, int n);
    /* grads [size * part]: this rank's part receives the sum of all ranks' */
    hola_status (*reduce)(real *grads, int64_t part);
    /* block [total]: every rank's part of it to all the others */
    void (*share)(real *block, int64_t part, int64_t total);
    /* mine: this rank's part; rank 0 receives all of them in block [total], NULL elsewhere */
    void (*gather)(const real *mine, real *block, int64_t part, int64_t total);
    /* from rank 0 */
    void (*broadcast)(void *data, int64_t bytes);
};

extern const struct hl_dist hl_dist_alone; /* one rank; the functions do nothing */

/* All ranks fail where one does: *speaks is set for exactly one of those that know why. */
hola_status hl_dist_agree(const struct hl_dist *d, hola_status s, bool *speaks);

/* dist_mpi.c, in programs that have it. To be called only where mpirun started this process. */
hola_status hl_mpi_begin(struct hl_dist *d, int *argc, char ***argv);
void hl_mpi_end(void);

#endif
