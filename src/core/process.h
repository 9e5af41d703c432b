/* process.h -- what the system says about this process, and its large blocks of memory. */
#ifndef HL_PROCESS_H
#define HL_PROCESS_H
#include <stdint.h>

int64_t hl_resident_bytes(void); /* in memory; 0: not known */
/* A block on 256 bytes, released with free(); NULL: there is none. Large ones are on huge pages where the system has
 * them: with small ones, translating addresses costs a virtual machine a tenth to a sixth of its memory's bandwidth. */
void *hl_large_alloc(int64_t bytes);

#endif
