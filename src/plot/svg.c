/* svg.c -- see svg.h. */
#include "plot/svg.h"
#include "core/file.h"

void hl_svg_escape(struct hl_text *t, const char *s) {
    for (; *s; s++) {
        if (*s == '<') hl_text_puts(t, "&lt;");
        else if (*s == '&') hl_text_puts(t, "&amp;");
        else if (*s == '"') hl_text_puts(t, "&quot;");
        else hl_text_put(t, (unsigned char)*s < 0x20 ? "?" : s, 1);
    }
}

hola_status hl_svg_write(struct hl_text *t, const char *path) {
    hola_status s = t->failed || !t->data ? hl_fail(HOLA_ENOMEM, "%s: no memory for the plot", path)
                                          : hl_write_file(path, t->data, t->n);
    hl_text_free(t);
    return s;
}
