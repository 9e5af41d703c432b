/* page.c -- see page.h. */
#include "plot/page.h"
#include "eval/pystr.h"
#include "hola.h"
#include <string.h>

HL_PAGE_FILE(hl_plot_css, "src/plot/page.css");
HL_PAGE_FILE(hl_plot_js, "src/plot/page.js");

void hl_page_quote(struct hl_text *t, const char *text) {
    struct hl_text valid = {0};
    if (hl_text_add_valid(&valid, hl_span_of(text)) != HOLA_OK) t->failed = true;
    for (int64_t i = 0; i < valid.n; i++) {
        const char c = valid.data[i];
        if (c && strchr("<>&\"'", c)) hl_text_printf(t, "&#%d;", c);
        else hl_text_put(t, (unsigned char)c < 0x20 ? " " : &c, 1);
    }
    hl_text_free(&valid);
}

void hl_page_begin(struct hl_text *t, const char *title, const char *lead, int refresh) {
    hl_text_puts(t, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    if (refresh > 0) hl_text_printf(t, "<meta http-equiv=\"refresh\" content=\"%d\">\n", refresh);
    hl_text_puts(t, "<link rel=\"icon\" href=\"data:,\">\n<title>hola: ");
    hl_page_quote(t, title);
    hl_text_puts(t, "</title>\n<style>\n");
    hl_text_put(t, hl_plot_css, hl_plot_css_end - hl_plot_css);
    hl_text_puts(t, "</style>\n<body>\n<header><div><h1>");
    hl_page_quote(t, title);
    hl_text_puts(t, "</h1>");
    if (lead) hl_text_puts(t, "<p id=\"lead\">"), hl_page_quote(t, lead), hl_text_puts(t, "</p>");
    hl_text_puts(t, "</div><button id=\"scheme\" type=\"button\">Dark</button></header>\n<svg id=\"ns\" hidden></svg>\n"
                    "<main>\n");
}

/* '<' could end the script element that holds the data. */
static void put_data(struct hl_text *t, const char *s) {
    while (*s) {
        const size_t run = strcspn(s, "<");
        hl_text_put(t, s, (int64_t)run);
        s += run;
        if (*s == '<') hl_text_puts(t, "\\u003c"), s++;
    }
}

void hl_page_end(struct hl_text *t, const char *json, const char *script, int64_t n) {
    hl_text_printf(t, "</main>\n<footer>hola %s</footer>\n<div id=\"tip\" role=\"status\"></div>\n", hola_version());
    hl_text_puts(t, "<script id=\"data\" type=\"application/json\">");
    put_data(t, json);
    hl_text_puts(t, "</script>\n<script>\n");
    hl_text_put(t, hl_plot_js, hl_plot_js_end - hl_plot_js);
    hl_text_puts(t, "</script>\n<script>\n\"use strict\";\n");
    hl_text_put(t, script, n);
    hl_text_puts(t, "</script>\n</body>\n</html>\n");
}
