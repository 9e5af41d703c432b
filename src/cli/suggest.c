/* suggest.c -- see suggest.h. */
#include "cli/suggest.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 32 }; /* longer words are ignored */

static int least(int a, int b) { return a < b ? a : b; }

/* The edit distance: letters added, dropped, changed or swapped with a neighbour. */
static int distance(const char *a, const char *b) {
    int d[LONGEST + 1][LONGEST + 1];
    const int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST) return INT_MAX;
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            d[i][j] = least(d[i - 1][j] + 1, d[i][j - 1] + 1);
            d[i][j] = least(d[i][j], d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

/* Allows errors in a third of the word, at least one letter. */
void suggest_begin(struct suggest *s, const char *word) {
    const int third = (int)(strlen(word) / 3);
    *s = (struct suggest){.word = word, .distance = (third > 1 ? third : 1) + 1};
}

void suggest_try(struct suggest *s, const char *name) {
    const int d = distance(s->word, name);
    if (d >= s->distance || d >= (int)strlen(name)) return;
    s->best = name, s->distance = d;
}

const char *suggest_text(struct suggest *s, const char *before) {
    if (s->best) snprintf(s->text, sizeof s->text, ": did you mean '%s%s'?", before, s->best);
    return s->text;
}
