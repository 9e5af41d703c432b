/* positional.h -- commands that take words besides options: hola prepare INPUT... */
#ifndef HOLA_CLI_POSITIONAL_H
#define HOLA_CLI_POSITIONAL_H
#include "cli/args.h"

/* Sorts argv[1..]: options and their values stay in argv (in front, counted by the new *argc) for
 * args_parse; the other words, "-" among them and all that follows "--", go to words, which has room for argc pointers.
 * Returns how many. */
int args_split(const struct arg *args, int *argc, char **argv, const char **words);

#endif
