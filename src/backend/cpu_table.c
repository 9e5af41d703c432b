/* cpu_table.c -- the table of ops of a CPU backend; compiled once per instruction set (HL_OP in ops.h). */
#include "ops/ops.h"

#define HL_TEXT(x) #x
#define HL_TEXT_VALUE(x) HL_TEXT(x)
#define ENTRY(name, arg, need, where) where(name)
#define ALL(name) .name = HL_OP(name),
#define HOST(name) .name = HL_OP(name),
#ifdef HL_ISA_REF
#define REF(name) .name = HL_OP(name),
#define PLAIN(name) .name = HL_OP(name),
#else
#define REF(name)
#define PLAIN(name)
#endif
#define DEVICE(name)
#define BF16(name)
extern const struct hl_ops HL_OP(ops);
const struct hl_ops HL_OP(ops) = {.name = "cpu-" HL_TEXT_VALUE(HL_ISA), HL_OPS_LIST(ENTRY)};
