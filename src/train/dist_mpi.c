/* dist_mpi.c -- ranks over MPI. Part of the program, not the library, and only if MPI was found: programs that link
 * libhola do not get MPI with it. */
#include "train/dist.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#ifdef HL_DOUBLE
#define REAL MPI_DOUBLE
#else
#define REAL MPI_FLOAT
#endif
enum { PIECE = 1 << 18 }; /* reals per message of a reduction */

static int rank, size;
static real *received;  /* [size][PIECE] */
static double *doubles; /* [size * doubles_room / size] */
static int doubles_room;

/* Not MPI_Allreduce: its order of summation depends on the implementation. */
static void sum(double *x, int n) {
    if (n * size > doubles_room) {
        double *p = realloc(doubles, (size_t)(n * size) * sizeof *p);
        if (!p) MPI_Abort(MPI_COMM_WORLD, 1);
        doubles = p;
        doubles_room = n * size;
    }
    MPI_Allgather(x, n, MPI_DOUBLE, doubles, n, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) {
        x[i] = 0;
        for (int r = 0; r < size; r++) x[i] += doubles[r * n + i];
    }
}

/* A reduce-scatter in pieces: every rank sends each other rank its piece and sums its own pieces in rank order. Moves
 * as many bytes as MPI_Reduce_scatter. */
static hola_status reduce(real *grads, int64_t part) {
    MPI_Request *request = malloc((size_t)(2 * size) * sizeof *request);
    if (!request || !received) return free(request), hl_fail(HOLA_ENOMEM, "no memory for %d ranks", size);
    for (int64_t at = 0; at < part; at += PIECE) {
        const int n = (int)(part - at < PIECE ? part - at : PIECE);
        real *mine = grads + rank * part + at;
        for (int r = 0; r < size; r++) {
            request[2 * r] = request[2 * r + 1] = MPI_REQUEST_NULL;
            if (r == rank) continue;
            MPI_Irecv(received + (int64_t)r * PIECE, n, REAL, r, 0, MPI_COMM_WORLD, &request[2 * r]);
            MPI_Isend(grads + r * part + at, n, REAL, r, 0, MPI_COMM_WORLD, &request[2 * r + 1]);
        }
        MPI_Waitall(2 * size, request, MPI_STATUSES_IGNORE);
        memcpy(received + (int64_t)rank * PIECE, mine, (size_t)n * sizeof *mine);
        memcpy(mine, received, (size_t)n * sizeof *mine);
        for (int r = 1; r < size; r++)
            for (int i = 0; i < n; i++) mine[i] += received[(int64_t)r * PIECE + i];
    }
    free(request);
    return HOLA_OK;
}

/* Range of rank r's part of a block. */
static int part_of(int r, int64_t part, int64_t total, int *at) {
    const int64_t first = r * part < total ? r * part : total;
    *at = (int)first;
    return (int)(total - first < part ? total - first : part);
}

static void parts_of(int64_t part, int64_t total, int **count, int **at) {
    HL_ASSERT(total <= INT32_MAX);
    *count = malloc((size_t)size * sizeof **count);
    *at = malloc((size_t)size * sizeof **at);
    if (!*count || !*at) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int r = 0; r < size; r++) (*count)[r] = part_of(r, part, total, &(*at)[r]);
}

static void share(real *block, int64_t part, int64_t total) {
    int *count, *at;
    parts_of(part, total, &count, &at);
    MPI_Allgatherv(MPI_IN_PLACE, 0, REAL, block, count, at, REAL, MPI_COMM_WORLD);
    free(count);
    free(at);
}

static void gather(const real *mine, real *block, int64_t part, int64_t total) {
    int *count, *at;
    parts_of(part, total, &count, &at);
    MPI_Gatherv(mine, count[rank], REAL, block, count, at, REAL, 0, MPI_COMM_WORLD);
    free(count);
    free(at);
}

static void broadcast(void *data, int64_t bytes) { MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD); }

hola_status hl_mpi_begin(struct hl_dist *d, int *argc, char ***argv) {
    int given;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS)
        return hl_fail(HOLA_EDEVICE, "MPI failed to start");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm here;
    int local = 0;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) == MPI_SUCCESS) {
        MPI_Comm_rank(here, &local);
        MPI_Comm_free(&here);
    }
    received = malloc((size_t)size * PIECE * sizeof *received);
    *d = (struct hl_dist){.rank = rank,
                          .size = size,
                          .local = local,
                          .sum = sum,
                          .reduce = reduce,
                          .share = share,
                          .gather = gather,
                          .broadcast = broadcast};
    return HOLA_OK;
}

void hl_mpi_end(void) {
    free(received);
    free(doubles);
    received = NULL, doubles = NULL, doubles_room = 0;
    MPI_Finalize();
}
