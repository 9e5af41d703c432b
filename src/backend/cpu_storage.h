/* cpu_storage.h -- the host's memory as a backend's storage. */
#ifndef HL_CPU_STORAGE_H
#define HL_CPU_STORAGE_H
#include "backend/backend.h"

extern const struct hl_storage hl_cpu_storage;

#endif
