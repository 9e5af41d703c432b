/* svg.h -- shared by the plots; an SVG is a growing text. */
#ifndef HL_SVG_H
#define HL_SVG_H
#include "core/text.h"

/* The head of a figure; font: the size of its text. It defines the classes h (heading), g (grid line), x and y
 * (numbers at the axes), s (small). */
void hl_svg_begin(struct hl_text *t, int width, int height, int font);
/* A panel of this size at (x, y), with a title above it; what follows, up to "</g>", has its corner as origin.
 * attributes: of its <g>, beginning with a space. */
void hl_svg_panel(struct hl_text *t, int x, int y, int width, int height, const char *attributes, const char *title);
/* A line across the panel at height y, with its label. */
void hl_svg_level(struct hl_text *t, double y, int width, const char *label);
/* Adds an untrusted name (files, models), quoted for SVG and HTML. */
void hl_svg_escape(struct hl_text *t, const char *name);
/* Writes the file unless something failed, and frees the text. */
hola_status hl_svg_write(struct hl_text *t, const char *path);

#endif
