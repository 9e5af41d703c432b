/* svg.c -- see picture.h. */
#include "plot/svg.h"
#include "core/file.h"
#include <stdarg.h>
#include <stdlib.h>

void hl_svg_put(struct hl_svg *p, const char *fmt, ...) {
    va_list ap;
    for (int tries = 0; tries < 2 && !p->failed; tries++) {
        va_start(ap, fmt);
        int k = vsnprintf(p->data ? p->data + p->n : NULL, p->room - p->n, fmt, ap);
        va_end(ap);
        if (k >= 0 && p->n + (size_t)k < p->room) {
            p->n += (size_t)k;
            return;
        }
        size_t room = 2 * p->room + (size_t)(k > 0 ? k : 0) + 65536;
        char *data = realloc(p->data, room);
        if (data) p->data = data, p->room = room;
        else p->failed = true;
    }
}

void hl_svg_put_escaped(struct hl_svg *p, const char *s) {
    for (; *s; s++) {
        if (*s == '<') hl_svg_put(p, "&lt;");
        else if (*s == '&') hl_svg_put(p, "&amp;");
        else if (*s == '"') hl_svg_put(p, "&quot;");
        else hl_svg_put(p, "%c", (unsigned char)*s < 0x20 ? '?' : *s);
    }
}

hola_status hl_svg_write(struct hl_svg *p, const char *path) {
    hola_status s = p->failed || !p->data ? hl_fail(HOLA_ENOMEM, "%s: no memory for the plot", path)
                                          : hl_write_file(path, p->data, (int64_t)p->n);
    free(p->data);
    *p = (struct hl_svg){0};
    return s;
}
