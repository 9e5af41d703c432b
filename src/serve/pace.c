/* pace.c -- see pace.h: the median of the slopes between all pairs of pieces, then of what they leave (Theil and Sen). */
#include "serve/pace.h"
#include <stdlib.h>

enum { PAIRS = HL_PACE_KEPT * (HL_PACE_KEPT - 1) / 2, KNOWN = 4, GROWTH = 4 };

void hl_pace_add(struct hl_pace *p, int64_t tokens, double seconds) {
    p->tokens[p->next] = (double)tokens, p->seconds[p->next] = seconds;
    p->next = (p->next + 1) % HL_PACE_KEPT;
    if (p->n < HL_PACE_KEPT) p->n++;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Slopes between pieces of clearly different lengths; returns how many. */
static int slopes(const struct hl_pace *p, double slope[PAIRS]) {
    int k = 0;
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < i; j++) {
            const double more = p->tokens[i] - p->tokens[j];
            if (more >= HL_PACE_UNIT / 2 || -more >= HL_PACE_UNIT / 2)
                slope[k++] = (p->seconds[i] - p->seconds[j]) / more;
        }
    return k;
}

bool hl_pace_line(const struct hl_pace *p, double *fixed, double *each) {
    double slope[PAIRS], left[HL_PACE_KEPT];
    if (p->n == 0) return false;
    for (int i = 0; i < p->n; i++) left[i] = p->seconds[i] / p->tokens[i];
    const double all = median(left, p->n); /* if all of it were per token */
    const int k = slopes(p, slope);
    *each = k ? median(slope, k) : all;
    if (*each > all) *each = all;
    if (*each < all / 64) *each = all / 64; /* noise can make it zero or less */
    for (int i = 0; i < p->n; i++) left[i] = p->seconds[i] - *each * p->tokens[i];
    *fixed = median(left, p->n);
    if (*fixed < 0 || k == 0) *fixed = 0;
    return true;
}

int64_t hl_pace_length(const struct hl_pace *p, double seconds) {
    double fixed, each, slope[PAIRS], longest = 0;
    if (!hl_pace_line(p, &fixed, &each)) return HL_PACE_UNIT;
    for (int i = 0; i < p->n; i++)
        if (p->tokens[i] > longest) longest = p->tokens[i];
    double n = (seconds - fixed) / each;
    /* A piece whose fixed part is more than two thirds of it saves little time by being shorter. */
    if (n < fixed / (2 * each)) n = fixed / (2 * each);
    /* If even the shortest pieces take too long, and no other lengths are known, the reason is found by a longer one. */
    if (n < HL_PACE_UNIT && p->n >= KNOWN && slopes(p, slope) == 0) n = 2 * longest;
    if (n > GROWTH * longest) n = GROWTH * longest; /* the line is not trusted further */
    if (n > HL_PACE_MOST) n = HL_PACE_MOST;
    const int64_t units = (int64_t)n / HL_PACE_UNIT;
    return HL_PACE_UNIT * (units < 1 ? 1 : units);
}

/* The shortest power that holds so many tokens. */
static int power_of(int64_t tokens) {
    int i = 0;
    while (i < HL_PACE_POWERS - 1 && HL_PACE_UNIT << i < tokens) i++;
    return i;
}
void hl_pace_add_power(struct hl_pace *p, int64_t tokens, bool several, double seconds) {
    const int i = power_of(tokens);
    double *known = p->power[several];
    const int64_t full = HL_PACE_UNIT << i;
    if (known[i] > 0 && 4 * tokens < 3 * full) return; /* says too little of a full one */
    seconds *= (double)full / (double)tokens;
    if (known[i] <= 0) known[i] = seconds;
    else
        known[i] =
            0.75 * known[i] + 0.25 * (seconds < 2 * known[i] ? seconds : 2 * known[i]); /* it may be an exception */
    /* One that was too long is tried again, in time: often enough to forget an exception within a minute or two, seldom
     * enough for a percentile of gaps. */
    if (i + 1 < HL_PACE_POWERS) known[i + 1] *= 0.9999;
}
int64_t hl_pace_power(const struct hl_pace *p, bool several, double seconds) {
    const double *known = p->power[several];
    int best = 0;
    for (int i = 0; i < HL_PACE_POWERS; i++)
        if (known[i] > 0 && known[i] <= seconds) best = i;
    if (best + 1 < HL_PACE_POWERS && known[best] > 0 && known[best + 1] <= 0 && 2 * known[best] <= seconds) best++;
    return HL_PACE_UNIT << best;
}
