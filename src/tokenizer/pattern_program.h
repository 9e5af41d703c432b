/* pattern_program.h -- the interface from pattern_parse.c to pattern.c: character sets and the thread program. */
#ifndef HL_PATTERN_PROGRAM_H
#define HL_PATTERN_PROGRAM_H
#include "tokenizer/pattern.h"

/* Characters as boundaries where membership flips, starting with the first member. HL_NO_CHARACTER stands for an
 * invalid UTF-8 byte. */
struct hl_charset {
    uint32_t *edge;
    int n;
};
enum { HL_OP_SET, HL_OP_LOOK, HL_OP_SPLIT, HL_OP_JUMP, HL_OP_MATCH };
struct hl_thread_op {
    uint8_t op;
    bool at_end; /* LOOK: also matches at the end of the text */
    int16_t x;   /* SET, LOOK: index of the set. SPLIT: preferred target. JUMP: target */
    int16_t y;   /* SPLIT: other target */
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
