/* svg.h -- what the plots share; an SVG is a text that grows. */
#ifndef HL_SVG_H
#define HL_SVG_H
#include "core/text.h"

/* Adds a name from outside (files, models), quoted for SVG and HTML. */
void hl_svg_escape(struct hl_text *t, const char *name);
/* Writes the file unless something failed, and frees the text. */
hola_status hl_svg_write(struct hl_text *t, const char *path);

#endif
