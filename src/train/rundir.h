/* rundir.h -- the directory of a run, OUT:
 *
 *     run.json                     what defines the run, all options, the version
 *     settings.json                all options of the last command, as --config takes them
 *     metrics.jsonl, plot.html
 *     tb/                          TensorBoard's events, with --tensorboard
 *     checkpoints/step-NNNNNNNN/   complete ones (checkpoint.h)
 *     latest, best                 symbolic links to two of them
 *     old-N/                       an earlier run that --restart moved aside
 * One process at a time holds it (flock). */
#ifndef HL_RUNDIR_H
#define HL_RUNDIR_H
#include "core/status.h"
#include <jansson.h>

struct hl_rundir {
    char *out, *checkpoints, *metrics, *plot;
    int lock;
    bool made; /* run.json is of this process: nothing of a run is there yet */
};
/* Makes the directory, locks it, removes what a killed run left half written. */
hola_status hl_rundir_open(struct hl_rundir *d, const char *out);
void hl_rundir_close(struct hl_rundir *d); /* zeroed ones too */
/* Takes back what a run that could not begin has written; the directory too, where it is empty then. */
void hl_rundir_undo(struct hl_rundir *d);

/* Decides between a new run and going on: *step receives the checkpoint's, -1 for a new run. What is there
 * must have been started as `run` says, field by field; "steps" alone may grow, and only where the schedule
 * does not depend on it. */
hola_status hl_rundir_begin(struct hl_rundir *d, json_t *run, json_t *options, bool restart, int64_t *step);

char *hl_rundir_step(const struct hl_rundir *d, int64_t step); /* its path, malloced; NULL: no memory */
/* link: "latest" or "best"; swapped atomically */
hola_status hl_rundir_point(const struct hl_rundir *d, const char *link, int64_t step);
/* Removes checkpoints, except for the last `keep` up to step, best_step's and later ones. */
hola_status hl_rundir_prune(const struct hl_rundir *d, int64_t keep, int64_t step, int64_t best_step);

/* The first field in which two objects differ, one line; what: whose they are. HOLA_EINVAL where they do. */
hola_status hl_json_same(const char *what, json_t *there, json_t *given, const char *advice);

#endif
