/* dist.h -- several ranks training one model. Every rank makes the same calls in the same order; sums are taken in rank
 * order, so all ranks get the same bits, and every run does. */
#ifndef HL_DIST_H
#define HL_DIST_H
#include "core/real.h"
#include "core/status.h"

struct hl_dist {
    int rank, size;
    int local; /* rank within this machine: selects the device */
    /* sums x[n] over all ranks, in place */
    void (*sum)(double *x, int n);
    /* grads [size * part]: this rank's part receives the sum over all ranks (reduce-scatter) */
    hola_status (*reduce)(real *grads, int64_t part);
    /* block [total]: sends every rank's part to all others (all-gather) */
    void (*share)(real *block, int64_t part, int64_t total);
    /* mine: this rank's part; rank 0 receives all parts in block [total], NULL elsewhere */
    void (*gather)(const real *mine, real *block, int64_t part, int64_t total);
    /* from rank 0 */
    void (*broadcast)(void *data, int64_t bytes);
};

extern const struct hl_dist hl_dist_alone; /* a single rank; all functions are no-ops */

/* All ranks fail if one does: *speaks is set on exactly one of those that know the reason. */
hola_status hl_dist_agree(const struct hl_dist *d, hola_status s, bool *speaks);

/* dist_mpi.c, in builds with MPI. Call only if mpirun started this process. */
hola_status hl_mpi_begin(struct hl_dist *d, int *argc, char ***argv);
void hl_mpi_end(void);

#endif
