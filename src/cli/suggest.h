/* suggest.h -- "did you mean": the closest name to a mistyped word. */
#ifndef HOLA_CLI_SUGGEST_H
#define HOLA_CLI_SUGGEST_H

struct suggest {
    const char *word; /* the typed word */
    const char *best; /* borrowed; NULL: nothing is close */
    int distance;
    char text[96];
};
void suggest_begin(struct suggest *s, const char *word);
void suggest_try(struct suggest *s, const char *name);
/* ": did you mean 'score'?", with a prefix for the name ("--" for options), or "". */
const char *suggest_text(struct suggest *s, const char *before);

#endif
