/* rundir.h -- the directory of a run, OUT:
 *
 *     run.json                     what defines the run, all options, the version
 *     settings.json                all options of the last command, as --config takes them
 *     metrics.jsonl, plot.html
 *     tb/                          TensorBoard event files, with --tensorboard
 *     checkpoints/step-NNNNNNNN/   complete ones (checkpoint.h)
 *     latest, best                 symbolic links to two checkpoints
 *     old-N/                       an earlier run that --restart moved aside
 * It is locked by one process at a time (flock). */
#ifndef HL_RUNDIR_H
#define HL_RUNDIR_H
#include "core/status.h"
#include <jansson.h>

struct hl_rundir {
    char *out, *checkpoints, *metrics, *plot;
    int lock;
    bool made; /* this process made run.json, so the run has not begun */
};
/* Creates and locks the directory, and removes partial files of a killed run. */
hola_status hl_rundir_open(struct hl_rundir *d, const char *out);
void hl_rundir_close(struct hl_rundir *d); /* also accepts a zeroed one */
/* Removes what a run that failed to start has written, and the directory if that leaves it empty. */
void hl_rundir_undo(struct hl_rundir *d);

/* Decides between a new run and resuming: *step receives the checkpoint's step, -1 for a new run. An existing run must
 * match `run` field by field; only "steps" may grow, and only if the schedule does not depend on it. */
hola_status hl_rundir_begin(struct hl_rundir *d, json_t *run, json_t *options, bool restart, int64_t *step);

char *hl_rundir_step(const struct hl_rundir *d, int64_t step); /* its path, malloced; NULL: out of memory */
/* link: "latest" or "best"; swapped atomically */
hola_status hl_rundir_point(const struct hl_rundir *d, const char *link, int64_t step);
/* Removes checkpoints, except the last `keep` up to step, the one at best_step, and later ones. */
hola_status hl_rundir_prune(const struct hl_rundir *d, int64_t keep, int64_t step, int64_t best_step);

/* The first field in which two objects differ, in one line; what: names the objects. HOLA_EINVAL if they differ. */
hola_status hl_json_same(const char *what, json_t *there, json_t *given, const char *advice);

#endif
