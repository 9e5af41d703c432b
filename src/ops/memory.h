/* memory.h -- the host's memory as a backend's (struct hl_memory in ops.h). */
#ifndef HL_MEMORY_H
#define HL_MEMORY_H
struct hl_memory;
extern const struct hl_memory hl_host_memory;
#endif
