/* file.h -- files read as memory, and files written whole or not at all. */
#ifndef HL_FILE_H
#define HL_FILE_H
#include "core/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A regular file, mapped read-only. Empty files, directories and devices are refused. */
struct hl_map {
    const char *data;
    int64_t size;
};
hola_status hl_map_open(struct hl_map *m, const char *path);
void hl_map_close(struct hl_map *m); /* closed or zeroed ones too */

/* Writes go to a temporary file ".NAME.tmp-PID-N" beside the target. Commit makes it durable and renames
 * it over the target; until then the old file stays as it is. Whatever fails: one line with the path, no
 * temporary file left, the old file intact. A killed process leaves its temporary file behind; nothing
 * reads such files, and they may be deleted. After a failure the writer is closed: further writes and the
 * commit return the failure, abort does nothing. Devices and pipes are written to directly. */
struct hl_writer {
    FILE *f;
    char *path, *temp; /* temp NULL: no file */
    int64_t written;
    hola_status failed;
};
hola_status hl_writer_open(struct hl_writer *w, const char *path);
hola_status hl_writer_write(struct hl_writer *w, const void *data, int64_t size);
hola_status hl_writer_commit(struct hl_writer *w);
void hl_writer_abort(struct hl_writer *w); /* takes committed and zeroed ones too */

/* The three above in one. */
hola_status hl_write_file(const char *path, const void *data, int64_t size);

/* "dir/name" (just name where dir is empty), malloced; NULL: no memory. */
char *hl_path_join(const char *dir, const char *name);
/* mkdir -p */
hola_status hl_make_dirs(const char *path);

#endif
