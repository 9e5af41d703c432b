/* pretoken.h -- splitting a text into words by a sequence of patterns, each within the pieces of the previous one. */
#ifndef HL_PRETOKEN_H
#define HL_PRETOKEN_H
#include "tokenizer/pattern.h"

#define HL_GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum hl_behavior { /* what happens to matches and gaps, with the names of Hugging Face tokenizers */
                   HL_ISOLATED,
                   HL_REMOVED,
                   HL_CONTIGUOUS, /* adjacent matches are one piece */
                   HL_MERGED_WITH_PREVIOUS,
                   HL_MERGED_WITH_NEXT
};
enum { HL_LEVELS = 12 };
struct hl_cuts {
    struct hl_level {
        struct hl_pattern *pattern;
        enum hl_behavior behavior;
        bool invert; /* matches and gaps swap roles */
    } level[HL_LEVELS];
    int n;
    bool plain;            /* one pattern that matches everywhere: words are its matches */
    uint64_t cut_after[2]; /* one bit for each ASCII character: a text may be split between it and a ' ' */
};
void hl_cuts_finish(struct hl_cuts *c); /* after the last level: fills in derived fields */
void hl_cuts_free(struct hl_cuts *c);

/* Iterator over the pieces of text[0..len), in order. Zeroed: at the start. */
struct hl_cutter {
    const struct hl_cuts *cuts;
    const char *text;
    struct hl_cutting {
        int64_t at, end; /* the rest of the previous level's piece */
        struct hl_piece {
            int64_t begin, end;
            bool match;
        } found; /* ahead of `at` */
        /* The states of a long failed match attempt: see pretoken.c. */
        uint32_t *state;
        int64_t state_from, state_to;
        bool remember;
    } level[HL_LEVELS];
};
void hl_cutter_begin(struct hl_cutter *c, const struct hl_cuts *cuts, const char *text, int64_t len);
bool hl_cutter_next(struct hl_cutter *c, struct hl_piece *piece); /* false: no more pieces */
void hl_cutter_end(struct hl_cutter *c);

#endif
