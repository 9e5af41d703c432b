/* svg.h -- SVG as text that grows; what the plots share. */
#ifndef HL_PICTURE_H
#define HL_PICTURE_H
#include "core/status.h"

struct hl_svg {
    char *data;
    size_t n, room;
    bool failed; /* memory ran out: the rest is dropped */
};
void hl_svg_put(struct hl_svg *p, const char *fmt, ...) HL_PRINTF(2, 3);
/* Names of files and people's words end up in pictures. */
void hl_svg_put_escaped(struct hl_svg *p, const char *text);
/* Writes the file unless something failed, and frees the text. */
hola_status hl_svg_write(struct hl_svg *p, const char *path);

#endif
