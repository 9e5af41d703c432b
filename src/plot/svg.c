/* svg.c -- see svg.h. */
#include "plot/svg.h"
#include "core/file.h"

void hl_svg_begin(struct hl_text *t, int width, int height, int font) {
    hl_text_printf(t,
                   "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
                   "font-size='%d'>\n<style>.h{font-size:%dpx;font-weight:bold}.g{stroke:#e4e4e4}"
                   ".y{text-anchor:end}.x{text-anchor:middle}.s{font-size:11px;fill:#666}</style>\n"
                   "<rect width='100%%' height='100%%' fill='#fff'/>\n",
                   width, height, font, font + 2);
}

void hl_svg_panel(struct hl_text *t, int x, int y, int width, int height, const char *attributes, const char *title) {
    hl_text_printf(t,
                   "<g transform='translate(%d %d)'%s>\n<rect width='%d' height='%d' fill='#fff' stroke='#999'/>\n"
                   "<text x='0' y='-11' class='h'>%s</text>\n",
                   x, y, attributes, width, height, title);
}

void hl_svg_level(struct hl_text *t, double y, int width, const char *label) {
    hl_text_printf(t, "<path d='M0 %.1fh%d' class='g'/><text x='-6' y='%.1f' class='y'>%s</text>\n", y, width, y + 4,
                   label);
}

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
