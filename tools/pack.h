/* pack.h -- included before a program of `make pack-cuda`: its main becomes a function that tools/pack.c calls by name. */
#pragma GCC visibility push(default)
int PACK_MAIN();
#pragma GCC visibility pop
#define main PACK_MAIN
