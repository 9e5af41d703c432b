/* file.h -- memory-mapped reads, and files written completely or not at all. */
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
void hl_map_close(struct hl_map *m); /* also accepts closed or zeroed ones */

/* Bytes read once, in order, from memory or from an open file. If the file is cut off meanwhile, that is an error here,
 * and not the signal that a mapped file would give. */
struct hl_bytes {
    const char *data; /* NULL: fd */
    int fd;
    int64_t at, size; /* read so far, and all */
    const char *path; /* for messages */
};
hola_status hl_bytes_read(struct hl_bytes *b, void *to, int64_t n); /* HOLA_EFORMAT: there are fewer */

/* Writes go to a temporary file ".NAME.tmp-PID-N" next to the target. Commit makes it durable and renames it over the
 * target; until then the old file is untouched. On any failure: one line with the path, no temporary file, the old file
 * intact. A killed process leaves its temporary file behind; such files are never read and may be deleted. After a
 * failure the writer is closed: further writes and the commit return the failure, abort does nothing. Devices and pipes
 * are written to directly. */
struct hl_writer {
    FILE *f;
    char *path, *temp; /* temp NULL: no file */
    int64_t written;
    hola_status failed;
};
hola_status hl_writer_open(struct hl_writer *w, const char *path);
hola_status hl_writer_write(struct hl_writer *w, const void *data, int64_t size);
hola_status hl_writer_commit(struct hl_writer *w);
void hl_writer_abort(struct hl_writer *w); /* also accepts committed and zeroed ones */

/* The three above in one. */
hola_status hl_write_file(const char *path, const void *data, int64_t size);

/* "dir/name" (just name if dir is empty), malloced; NULL: no memory. */
char *hl_path_join(const char *dir, const char *name);
/* mkdir -p */
hola_status hl_make_dirs(const char *path);

#endif
