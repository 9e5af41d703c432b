/* page.c -- the server's web page, with its files embedded in the program. */
#include "serve/server_internal.h"

#define FILE_AS(name, path)                                                 \
    __asm__(".pushsection .rodata\n"                                        \
            ".local " #name "\n" #name ": .incbin \"src/serve/" path "\"\n" \
            ".local " #name "_end\n" #name "_end: .byte 0\n"                \
            ".popsection\n");                                               \
    extern const char name[] __attribute__((visibility("hidden")));         \
    extern const char name##_end[] __attribute__((visibility("hidden")));
FILE_AS(hl_page_html, "page.html")
FILE_AS(hl_page_css, "page.css")
FILE_AS(hl_page_js, "page.js")

struct hl_page_file hl_page_file(int endpoint) {
    if (endpoint == HL_AT_STYLE) return (struct hl_page_file){hl_page_css, hl_page_css_end - hl_page_css, "text/css"};
    if (endpoint == HL_AT_SCRIPT)
        return (struct hl_page_file){hl_page_js, hl_page_js_end - hl_page_js, "text/javascript"};
    return (struct hl_page_file){hl_page_html, hl_page_html_end - hl_page_html, "text/html"};
}
