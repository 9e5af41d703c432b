/* process.c -- see process.h. */
#define _DEFAULT_SOURCE
#include "core/process.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int64_t hl_resident_bytes(void) {
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%*s %lld", &pages) != 1) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

void *hl_large_alloc(int64_t bytes) {
    enum { HUGE_PAGE = 2 << 20, ENOUGH = 2 * HUGE_PAGE };
    void *p = NULL;
    if (bytes < 0 || posix_memalign(&p, bytes < ENOUGH ? 256 : HUGE_PAGE, ((size_t)bytes + 255) / 256 * 256))
        return NULL;
#ifdef MADV_HUGEPAGE
    /* whole huge pages only; if the system refuses, small pages are used */
    if (bytes >= ENOUGH) (void)madvise(p, (size_t)bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return p;
}
