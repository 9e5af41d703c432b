/* pattern_program.h -- what pattern_parse.c hands to pattern.c: sets of characters, and the program of threads. */
#ifndef HL_PATTERN_PROGRAM_H
#define HL_PATTERN_PROGRAM_H
#include "tokenizer/pattern.h"

/* Characters as the places where being in the set changes; the first, from which on they are in it, and so on.
 * HL_NO_CHARACTER stands for a byte that is not UTF-8. */
struct hl_charset {
    uint32_t *edge;
    int n;
};
enum { HL_OP_SET, HL_OP_LOOK, HL_OP_SPLIT, HL_OP_JUMP, HL_OP_MATCH };
struct hl_thread_op {
    uint8_t op;
    bool at_end; /* LOOK: the end of the text will do */
    int16_t x;   /* SET, LOOK: which set. SPLIT: where to go on first. JUMP */
    int16_t y;   /* SPLIT: where to go on else */
};
enum { HL_PATTERN_SETS = 64, HL_PATTERN_OPS = 4096 };
struct hl_program {
    struct hl_charset set[HL_PATTERN_SETS];
    int sets, ops;
    struct hl_thread_op op[HL_PATTERN_OPS];
};
hola_status hl_program_parse(struct hl_program *p, enum hl_pattern_kind kind, const char *text, int64_t len,
                             const char *where);

#endif
