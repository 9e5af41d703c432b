/* stream.h -- the bytes of a file or of standard input, decompressed on the way (.gz, .xz, .zst), in constant
 * memory. What is compressed shows by its first bytes, whatever the file is called. */
#ifndef HL_STREAM_H
#define HL_STREAM_H
#include "core/status.h"

struct hl_stream;

/* path "-": standard input. A name that ends in .gz, .xz or .zst must hold what it says. */
hola_status hl_stream_open(struct hl_stream **out, const char *path);
void hl_stream_free(struct hl_stream *s);
/* The next bytes, lent until the next call; *n = 0: the end. */
hola_status hl_stream_read(struct hl_stream *s, const char **data, int64_t *n);
int64_t hl_stream_consumed(const struct hl_stream *s); /* bytes of the file itself, so far */
const char *hl_stream_name(const struct hl_stream *s); /* for messages */

#endif
