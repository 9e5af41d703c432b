/* process.h -- system information about this process, and large blocks of memory. */
#ifndef HL_PROCESS_H
#define HL_PROCESS_H
#include <stdint.h>

int64_t hl_resident_bytes(void); /* resident memory; 0: unknown */
/* A 256-byte aligned block, released with free(); NULL: out of memory. Large ones use huge pages if available: with
 * small pages, address translation costs a virtual machine a tenth to a sixth of its memory bandwidth. */
void *hl_large_alloc(int64_t bytes);

#endif
