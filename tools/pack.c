/* pack.c -- one small program under many names: hola, the tests cuda_x and the benchmarks bench_x are all in one
 * libhola.so, so that an archive contains the kernels only once (make pack-cuda). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    char symbol[128];
    int (*program)(int, char **) = NULL;
    snprintf(symbol, sizeof symbol, "pack_%s", name);
    *(void **)&program = dlsym(RTLD_DEFAULT, symbol);
    if (program) return program(argc, argv);
    fprintf(stderr, "%s: no such program in libhola.so; call it by a link of that name\n", name);
    return 2;
}
