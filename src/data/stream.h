/* stream.h -- the bytes of a file or standard input, decompressed on the fly (.gz, .xz, .zst), in constant memory.
 * Compression is detected by the first bytes, not by the name. */
#ifndef HL_STREAM_H
#define HL_STREAM_H
#include "core/status.h"

struct hl_stream;

/* path "-": standard input. A file named .gz, .xz or .zst must have that format. */
hola_status hl_stream_open(struct hl_stream **out, const char *path);
void hl_stream_free(struct hl_stream *s);
/* The next bytes, valid until the next call; *n = 0: the end. */
hola_status hl_stream_read(struct hl_stream *s, const char **data, int64_t *n);
int64_t hl_stream_consumed(const struct hl_stream *s); /* bytes consumed from the file itself */
const char *hl_stream_name(const struct hl_stream *s); /* for messages */

#endif
