/* process.h -- system information about this process. */
#ifndef HL_PROCESS_H
#define HL_PROCESS_H
#include <stdint.h>

int64_t hl_resident_bytes(void); /* resident memory; 0: unknown */

#endif
