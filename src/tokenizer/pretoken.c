/* pretoken.c -- splits a text into pieces by patterns. See pretoken.h.
 *
 * Where a text may be split. Between an ASCII character a and a ' ', every level must guarantee that no match continues
 * across, that no match ending there depends on whether the ' ' or the end of the text follows, and that nothing is
 * merged across; then the matches of all levels are the same in one text and in two. If, in addition, some level always
 * starts a match at a ' ', the boundary also exists in the whole text. Patterns have no lookbehind, so this is
 * sufficient.
 *
 * A search tries every character as the start of a match. If the attempts read far ahead and fail (\s+$ before a word),
 * that would take quadratic time. So after a long failure the states of the attempts are recorded by position: an
 * attempt that reaches a position in the state of a failed one also fails. */
#include "tokenizer/pretoken.h"
#include <stdlib.h>
#include <string.h>

enum { LONG_FAILURE = 256 };

void hl_cuts_free(struct hl_cuts *c) {
    for (int i = 0; c && i < c->n; i++) hl_pattern_free(c->level[i].pattern);
    free(c);
}

/* ---- where texts may be split ---- */

static bool merges_across(const struct hl_level *l) {
    const struct hl_pattern *p = l->pattern;
    bool begins = hl_pattern_next(p, HL_PATTERN_START, p->of[' ']) != HL_PATTERN_DEAD;
    if (l->behavior == HL_ISOLATED || l->behavior == HL_REMOVED) return false;
    return l->invert || l->behavior == HL_MERGED_WITH_NEXT || begins;
}

/* Whether a match may continue from an `a` to a ' ', or distinguish it from the end of the text. */
static bool goes_on(const struct hl_pattern *p, unsigned char a) {
    for (uint32_t s = HL_PATTERN_START; s < p->states; s++) {
        uint32_t then = hl_pattern_next(p, s, p->of[a]);
        if (hl_pattern_next(p, then, p->of[' ']) != HL_PATTERN_DEAD) return true;
        if (hl_pattern_ends(p, then, p->of[' ']) != hl_pattern_ends(p, then, p->classes - 1)) return true;
    }
    return false;
}

void hl_cuts_finish(struct hl_cuts *c) {
    bool begins = false, merged = false;
    for (int i = 0; i < c->n; i++) {
        const struct hl_level *l = &c->level[i];
        begins = begins || (l->behavior <= HL_REMOVED && hl_pattern_always(l->pattern, l->pattern->of[' ']));
        merged = merged || merges_across(l);
    }
    for (unsigned char a = ' ' + 1; a < 0x7f; a++) {
        bool may = begins && !merged;
        for (int i = 0; i < c->n && may; i++) may = !goes_on(c->level[i].pattern, a);
        if (may) c->cut_after[a / 64] |= (uint64_t)1 << a % 64;
    }
    bool everywhere = c->n == 1;
    for (int k = 0; everywhere && k + 1 < c->level[0].pattern->classes; k++)
        everywhere = hl_pattern_always(c->level[0].pattern, k);
    /* such matches have no gaps, so keeping them and removing the gaps are the same */
    c->plain = everywhere && c->level[0].behavior == (c->level[0].invert ? HL_REMOVED : HL_ISOLATED);
}

/* ---- matches ---- */

static void forget(struct hl_cutting *l) {
    free(l->state);
    l->state = NULL;
    l->state_from = l->state_to = 0;
    l->remember = false;
}

/* Like hl_pattern_match, using the states of earlier failed attempts. */
static int64_t match_remembering(const struct hl_pattern *p, struct hl_cutting *l, const char *text, int64_t at) {
    uint32_t state = HL_PATTERN_START;
    int64_t last = -1;
    for (int size; at < l->end; at += size) {
        int class = hl_pattern_class(p, text, l->end, at, &size);
        if (hl_pattern_ends(p, state, class)) last = at;
        if ((state = hl_pattern_next(p, state, class)) == HL_PATTERN_DEAD) return last;
        if (at >= l->state_from && at < l->state_to) {
            if (last < 0 && l->state[at - l->state_from] == state) return -1;
            l->state[at - l->state_from] = state;
        }
    }
    return hl_pattern_ends(p, state, p->classes - 1) ? at : last;
}

static int64_t match(const struct hl_pattern *p, struct hl_cutting *l, const char *text, int64_t at) {
    int64_t seen, end;
    if (l->remember && at < l->state_to) {
        end = match_remembering(p, l, text, at);
        if (end >= 0) forget(l); /* its recorded states did not fail */
        return end;
    }
    end = hl_pattern_match(p, text, l->end, at, &seen);
    if (end < 0 && seen - at > LONG_FAILURE) {
        forget(l);
        l->state = calloc((size_t)(seen - at), sizeof *l->state); /* without memory it is only slower */
        if (l->state) l->state_from = at, l->state_to = seen, l->remember = true;
    }
    return end;
}

/* The match at l->at, or the gap before the next one. */
static struct hl_piece find(const struct hl_pattern *p, struct hl_cutting *l, const char *text, int64_t from) {
    int64_t at = from, end;
    if (l->found.end > from && l->found.begin == from) return l->found; /* end first: 0 of a level that has begun */
    for (int size; at < l->end; at += size) {
        int class = hl_pattern_class(p, text, l->end, at, &size);
        if (hl_pattern_next(p, HL_PATTERN_START, class) == HL_PATTERN_DEAD) continue;
        if ((end = match(p, l, text, at)) < 0) continue;
        if (at == from) return (struct hl_piece){at, end, true};
        l->found = (struct hl_piece){at, end, true};
        break;
    }
    return (struct hl_piece){from, at, false};
}

/* Whether the piece after one of kind `match` belongs to it. */
static bool takes_next(enum hl_behavior behavior, bool match, bool next) {
    switch (behavior) {
    case HL_CONTIGUOUS: return match == next;
    case HL_MERGED_WITH_PREVIOUS: return !match && next;
    case HL_MERGED_WITH_NEXT: return match && !next;
    default: return false;
    }
}

/* The next piece of a level that has text left. */
static struct hl_piece cut(const struct hl_level *how, struct hl_cutting *l, const char *text) {
    struct hl_piece piece = find(how->pattern, l, text, l->at), next;
    bool last = piece.match;
    l->at = piece.end;
    if (how->behavior <= HL_REMOVED) return piece;
    while (l->at < l->end) {
        next = find(how->pattern, l, text, l->at);
        if (!takes_next(how->behavior, last != how->invert, next.match != how->invert)) break;
        piece.end = l->at = next.end;
        last = next.match;
        if (how->behavior != HL_CONTIGUOUS) break;
    }
    return piece;
}

/* ---- pieces ---- */

static void begin_level(struct hl_cutting *l, int64_t begin, int64_t end) {
    if (l->state) forget(l); /* which covers only this much text */
    l->at = begin, l->end = end;
    l->found.end = 0;
}

void hl_cutter_begin(struct hl_cutter *c, const struct hl_cuts *cuts, const char *text, int64_t len) {
    c->cuts = cuts, c->text = text;
    for (int i = 0; i < cuts->n; i++) {
        c->level[i].state = NULL, c->level[i].remember = false;
        begin_level(&c->level[i], 0, i == 0 ? len : 0);
    }
}

bool hl_cutter_next(struct hl_cutter *c, struct hl_piece *piece) {
    const int n = c->cuts->n;
    int i = n - 1;
    for (;;) {
        while (i >= 0 && c->level[i].at >= c->level[i].end) i--;
        if (i < 0) return false;
        const struct hl_level *how = &c->cuts->level[i];
        *piece = cut(how, &c->level[i], c->text);
        if (how->behavior == HL_REMOVED && piece->match != how->invert) continue;
        if (++i == n) return true;
        begin_level(&c->level[i], piece->begin, piece->end);
    }
}

void hl_cutter_end(struct hl_cutter *c) {
    for (int i = 0; c->cuts && i < c->cuts->n; i++) forget(&c->level[i]);
}
