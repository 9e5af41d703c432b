/* process.h -- what the system says about this process. */
#ifndef HL_PROCESS_H
#define HL_PROCESS_H
#include <stdint.h>

int64_t hl_resident_bytes(void); /* in memory; 0: not known */

#endif
