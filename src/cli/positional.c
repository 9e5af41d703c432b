/* positional.c -- see positional.h. */
#include "cli/positional.h"
#include <string.h>

/* Whether the next word is the value of this option. What no option is, args_parse will refuse. */
static bool wants_next(const struct arg *args, const char *word) {
    bool is_long = word[1] == '-';
    for (const struct arg *a = args; a->name; a++) {
        if (is_long ? strcmp(a->name, word + 2) != 0 : a->letter != word[1]) continue;
        return a->type != ARG_FLAG && (is_long || !word[2]);
    }
    return false;
}

int args_split(const struct arg *args, int *argc, char **argv, const char **words) {
    int n = 0, options = 1, i = 1;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        char *word = argv[i];
        if (word[0] != '-' || !word[1]) {
            words[n++] = word;
            continue;
        }
        argv[options++] = word;
        if (wants_next(args, word) && i + 1 < *argc) argv[options++] = argv[++i];
    }
    while (++i < *argc) words[n++] = argv[i];
    *argc = options;
    return n;
}
