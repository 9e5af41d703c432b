/* suggest.h -- "did you mean": the name nearest to a word that was mistyped. */
#ifndef HOLA_CLI_SUGGEST_H
#define HOLA_CLI_SUGGEST_H

struct suggest {
    const char *word; /* what was typed */
    const char *best; /* lent; NULL: nothing is near */
    int distance;
    char text[96];
};
void suggest_begin(struct suggest *s, const char *word);
void suggest_try(struct suggest *s, const char *name);
/* ": did you mean 'score'?", with what comes before the name ("--" of options), or "". */
const char *suggest_text(struct suggest *s, const char *before);

#endif
