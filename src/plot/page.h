/* page.h -- hola's pages: one design (page.css) and one script (page.js) for all of them, in self-contained files. A
 * page is a growing text: hl_page_begin, its own markup, hl_page_end. */
#ifndef HL_PAGE_H
#define HL_PAGE_H
#include "core/text.h"

/* Head, style, title and the colour scheme switch. lead: a line below the title; NULL: none. refresh: seconds after
 * which a browser loads the page again; 0: never. */
void hl_page_begin(struct hl_text *t, const char *title, const char *lead, int refresh);
/* The data as JSON, which scripts get from data(), the shared script, the page's own, and the end. */
void hl_page_end(struct hl_text *t, const char *json, const char *script, int64_t n);
/* Adds an untrusted text (names of files, models), quoted; invalid UTF-8 becomes U+FFFD. */
void hl_page_quote(struct hl_text *t, const char *text);

/* A source file embedded in the program: name, and name_end after its last byte. */
#define HL_PAGE_FILE(name, path)                                    \
    __asm__(".pushsection .rodata\n"                                \
            ".local " #name "\n" #name ": .incbin \"" path "\"\n"   \
            ".local " #name "_end\n" #name "_end: .byte 0\n"        \
            ".popsection\n");                                       \
    extern const char name[] __attribute__((visibility("hidden"))); \
    extern const char name##_end[] __attribute__((visibility("hidden")))

#endif
