/* pack.h -- included before each program of `make pack-cuda`: renames its main to a function that tools/pack.c
 * calls. */
#pragma GCC visibility push(default)
int PACK_MAIN();
#pragma GCC visibility pop
#define main PACK_MAIN
