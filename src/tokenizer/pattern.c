/* pattern.c -- builds the automaton of a pattern: character classes, then all reachable states. See pattern.h. */
#include "tokenizer/pattern_program.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>

enum { STATES = 1000, CLASSES = 200, THREADS = 512 };

struct builder {
    struct hl_program program;
    struct hl_pattern *p;
    uint64_t sets_of[CLASSES]; /* the sets that contain a class, one bit each */
    struct state {
        int16_t *thread;
        int n;
    } state[STATES];
    int states;
    uint16_t seen[HL_PATTERN_OPS], put[HL_PATTERN_OPS]; /* marks of the transition being built */
    uint16_t mark;
    int16_t list[HL_PATTERN_OPS];
    int n;
    const char *where;
    hola_status status;
};

/* ---- classes: characters that no set distinguishes ---- */

static int class_of_sets(struct builder *b, uint64_t sets) {
    int i = 0;
    while (i < b->p->classes && b->sets_of[i] != sets) i++;
    if (i < b->p->classes) return i;
    if (i == CLASSES) {
        b->status = hl_fail(HOLA_ENOTSUP, "%s: a pattern of too many classes of characters", b->where);
        return 0;
    }
    b->sets_of[i] = sets;
    return b->p->classes++;
}

/* Iterates over all characters, one constant range at a time. */
static void make_classes(struct builder *b, uint8_t *of) {
    int at[HL_PATTERN_SETS] = {0};
    for (uint32_t c = 0, end; c <= HL_NO_CHARACTER && b->status == HOLA_OK; c = end) {
        uint64_t sets = 0;
        end = HL_NO_CHARACTER + 1;
        for (int i = 0; i < b->program.sets; i++) {
            const struct hl_charset *s = &b->program.set[i];
            while (at[i] < s->n && s->edge[at[i]] <= c) at[i]++;
            if (at[i] % 2) sets |= (uint64_t)1 << i;
            if (at[i] < s->n && s->edge[at[i]] < end) end = s->edge[at[i]];
        }
        memset(of + c, class_of_sets(b, sets), end - c);
    }
}

/* Blocks of 256 characters; blocks of a single class are shared. */
static void make_pages(struct builder *b, const uint8_t *of) {
    struct hl_pattern *p = b->p;
    int n = 0, room = 0, uniform[CLASSES];
    memset(uniform, 0xff, sizeof uniform);
    for (int page = 0; page < 0x1100; page++) {
        const uint8_t *at = of + 256 * page;
        bool same = memcmp(at, at + 1, 255) == 0;
        if (same && uniform[at[0]] >= 0) {
            p->page[page] = (uint16_t)uniform[at[0]];
            continue;
        }
        if (n == room) {
            void *more = realloc(p->block, (size_t)(room = room ? 2 * room : 64) * sizeof *p->block);
            if (!more) {
                b->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", b->where);
                return;
            }
            p->block = more;
        }
        if (same) uniform[at[0]] = n;
        memcpy(p->block[n], at, 256);
        p->page[page] = (uint16_t)n++;
    }
    p->invalid = of[HL_NO_CHARACTER];
    for (int i = 0; i < 256; i++) p->of[i] = of[p->bytes ? hl_char_of_byte((unsigned char)i) : (uint32_t)i];
}

/* ---- states ---- */

/* Follows a thread to the next character, of this class (or to the end). False: it has matched, so no later one counts. */
static bool follow(struct builder *b, int16_t from, uint64_t sets, bool end) {
    int16_t stack[THREADS];
    int n = 0;
    stack[n++] = from;
    while (n > 0) {
        int16_t i = stack[--n];
        const struct hl_thread_op *op = &b->program.op[i];
        if (b->seen[i] == b->mark) continue;
        b->seen[i] = b->mark;
        if (op->op == HL_OP_MATCH) return false;
        if (n + 2 > THREADS) {
            b->status = hl_fail(HOLA_ENOTSUP, "%s: a pattern of too many alternatives", b->where);
            return false;
        }
        if (op->op == HL_OP_SPLIT) stack[n++] = op->y, stack[n++] = op->x;
        else if (op->op == HL_OP_JUMP) stack[n++] = op->x;
        else if (op->op == HL_OP_LOOK) {
            if (end ? op->at_end : (sets >> op->x & 1) != 0) stack[n++] = (int16_t)(i + 1);
        } else if (!end && (sets >> op->x & 1) && b->put[i + 1] != b->mark) {
            b->put[i + 1] = b->mark;
            b->list[b->n++] = (int16_t)(i + 1);
        }
    }
    return true;
}

/* The state with the threads in b->list, created if there is none. */
static int state_of(struct builder *b) {
    for (int i = 0; i < b->states; i++)
        if (b->state[i].n == b->n && memcmp(b->state[i].thread, b->list, sizeof *b->list * (size_t)b->n) == 0) return i;
    struct state *s = &b->state[b->states];
    if (b->states == STATES) b->status = hl_fail(HOLA_ENOTSUP, "%s: a pattern of too many states", b->where);
    else if (!(s->thread = malloc(sizeof *s->thread * (size_t)(b->n + 1))))
        b->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", b->where);
    if (b->status != HOLA_OK) return 0;
    memcpy(s->thread, b->list, sizeof *b->list * (size_t)b->n);
    s->n = b->n;
    return b->states++;
}

static uint32_t transition(struct builder *b, int state, int class) {
    bool end = class == b->p->classes - 1, matched = false;
    const struct state s = b->state[state];
    if (++b->mark == 0) {
        memset(b->seen, 0, sizeof b->seen), memset(b->put, 0, sizeof b->put);
        b->mark = 1;
    }
    b->n = 0;
    for (int i = 0; i < s.n && !matched; i++) matched = !follow(b, s.thread[i], end ? 0 : b->sets_of[class], end);
    int next = b->status == HOLA_OK ? state_of(b) : 0;
    return (uint32_t)next << 1 | matched;
}

static void make_states(struct builder *b) {
    struct hl_pattern *p = b->p;
    state_of(b); /* none: dead */
    b->list[0] = 0, b->n = 1;
    if (b->status == HOLA_OK) state_of(b);
    for (int i = 0; i < b->states && b->status == HOLA_OK; i++) {
        uint32_t *more = realloc(p->next, sizeof *more * (size_t)(i + 1) * (size_t)p->classes);
        if (more) p->next = more;
        else b->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", b->where);
        for (int c = 0; c < p->classes && b->status == HOLA_OK; c++) {
            uint32_t v = transition(b, i, c);
            p->next[i * p->classes + c] = v;
            if (i == HL_PATTERN_START && (v & 1) && b->status == HOLA_OK)
                b->status = hl_fail(HOLA_ENOTSUP, "%s: a pattern that matches the empty text", b->where);
        }
    }
    p->states = b->states;
}

/* Transitions for bytes that are whole characters: one table lookup instead of two. */
static void make_bytes(struct builder *b) {
    struct hl_pattern *p = b->p;
    p->on_byte = malloc(sizeof *p->on_byte * (size_t)p->states);
    if (!p->on_byte) {
        b->status = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", b->where);
        return;
    }
    for (int64_t i = 0; i < p->states; i++)
        for (int c = 0; c < 256; c++)
            p->on_byte[i][c] = c < 0x80 || p->bytes ? p->next[i * p->classes + p->of[c]] : HL_PATTERN_BEYOND;
}

hola_status hl_pattern_new(struct hl_pattern **out, enum hl_pattern_kind kind, const char *text, int64_t len,
                           bool bytes, const char *where) {
    struct builder *b = calloc(1, sizeof *b);
    struct hl_pattern *p = calloc(1, sizeof *p);
    uint8_t *of = malloc(HL_NO_CHARACTER + 1);
    hola_status s;
    *out = NULL;
    if (!b || !p || !of) s = hl_fail(HOLA_ENOMEM, "%s: no memory for a pattern", where);
    else {
        b->p = p, b->where = where, p->bytes = bytes;
        b->status = hl_program_parse(&b->program, kind, text, len, where);
        if (b->status == HOLA_OK) make_classes(b, of);
        if (b->status == HOLA_OK) make_pages(b, of);
        p->classes++; /* the end */
        if (b->status == HOLA_OK) make_states(b);
        if (b->status == HOLA_OK) make_bytes(b);
        s = b->status;
        for (int i = 0; i < b->program.sets; i++) free(b->program.set[i].edge);
        for (int i = 0; i < b->states; i++) free(b->state[i].thread);
    }
    if (s == HOLA_OK) *out = p, p = NULL;
    hl_pattern_free(p);
    free(b), free(of);
    return s;
}

void hl_pattern_free(struct hl_pattern *p) {
    if (!p) return;
    free(p->next), free(p->on_byte), free(p->block), free(p);
}

bool hl_pattern_always(const struct hl_pattern *p, int class) {
    uint32_t then = hl_pattern_next(p, HL_PATTERN_START, class);
    for (int c = 0; c < p->classes; c++)
        if (!then || !hl_pattern_ends(p, then, c)) return false;
    return true;
}
