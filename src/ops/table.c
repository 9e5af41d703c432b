/* table.c -- the table of one backend; compiled once for each (see HL_OP in ops.h). */
#include "ops/memory.h"
#include "ops/ops.h"

#define HL_TEXT(x) #x
#define HL_TEXT_VALUE(x) HL_TEXT(x)
#define ENTRY(name, arg) .name = HL_OP(name),
extern const struct hl_ops HL_OP(ops);
const struct hl_ops HL_OP(ops) = {
    .name = "cpu-" HL_TEXT_VALUE(HL_ISA), .mem = &hl_host_memory, HL_OPS_LIST(ENTRY)};
