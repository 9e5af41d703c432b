/* pace.h -- how long a piece of a prompt takes, learnt from the latest pieces.
 *
 * The time is a fixed part, for every pass, and a part per token. On a machine with more to do than cores the fixed part
 * is most of it: a pass waits for all of its threads many times. An estimate proportional to the length would then ask
 * for ever shorter pieces, which cost the most. Medians are taken, so that one piece in four may be an exception. */
#ifndef HL_PACE_H
#define HL_PACE_H
#include <stdbool.h>
#include <stdint.h>

enum { HL_PACE_KEPT = 16, HL_PACE_UNIT = 64, HL_PACE_POWERS = 8, HL_PACE_MOST = HL_PACE_UNIT << (HL_PACE_POWERS - 1) };
struct hl_pace {
    double tokens[HL_PACE_KEPT], seconds[HL_PACE_KEPT]; /* the latest pieces */
    int n, next;
    double power[2][HL_PACE_POWERS]; /* [several]: seconds; 0: unknown */
};
void hl_pace_add(struct hl_pace *p, int64_t tokens, double seconds);
/* seconds = fixed + each x tokens; false: nothing is known yet */
bool hl_pace_line(const struct hl_pace *p, double *fixed, double *each);
/* The length of a piece for about this many seconds: a multiple of HL_PACE_UNIT, at most HL_PACE_MOST. */
int64_t hl_pace_length(const struct hl_pace *p, double seconds);

/* A device takes pieces of HL_PACE_UNIT times a power of two: it prepares for every length anew, and its time is no line.
 * Of each length the latest times count, of a prompt's piece and of several prompts together. */
void hl_pace_add_power(struct hl_pace *p, int64_t tokens, bool several, double seconds);
/* The longest that takes at most so many seconds; one of which nothing is known counts as twice the one below. */
int64_t hl_pace_power(const struct hl_pace *p, bool several, double seconds);

#endif
