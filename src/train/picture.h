/* picture.h -- SVG as text that grows; what the plots share. */
#ifndef HL_PICTURE_H
#define HL_PICTURE_H
#include "core/status.h"

struct hl_picture {
    char *data;
    size_t n, room;
    bool failed; /* memory ran out: the rest is dropped */
};
void hl_picture_put(struct hl_picture *p, const char *fmt, ...) HL_PRINTF(2, 3);
/* Names of files and people's words end up in pictures. */
void hl_picture_put_escaped(struct hl_picture *p, const char *text);
/* Writes the file unless something failed, and frees the text. */
hola_status hl_picture_write(struct hl_picture *p, const char *path);

#endif
