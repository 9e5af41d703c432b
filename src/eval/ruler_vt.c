/* ruler_vt.c -- variable tracking: VAR A = 12345, then VAR B = VAR A, and so on, among lines of noise. The question is
 * preceded by an example of the same kind, with names of three letters instead of five. */
#include "eval/ruler_internal.h"
#include <stdlib.h>
#include <string.h>

enum { HOPS = 4, NAMES = HOPS + 1, EXAMPLE_TOKENS = 500 };
#define QUESTION "\nQuestion: Find all variables that are assigned the value "
#define PREFIX " Answer: According to the chain(s) of variable assignment in the text above, 5 variables are "

struct vt {
    bool example;         /* being made */
    struct hl_text shown; /* the example */
    char name[NAMES][8];  /* its variables */
};

static void draw_name(struct hl_mt *m, int letters, char *out) {
    for (int i = 0; i < letters; i++) out[i] = (char)('A' + hl_py_choices(m, 26));
    out[letters] = 0;
}

/* Five names. On a duplicate, the tools keep drawing until five are distinct and fail on the sixth. */
static bool draw_names(struct hl_ruler_gen *g, int letters, char name[NAMES][8]) {
    int n = 0;
    for (int i = 0; i < NAMES || n < NAMES; i++) {
        char next[8];
        bool again = false;
        draw_name(&g->random, letters, next);
        for (int j = 0; j < n; j++) again |= strcmp(name[j], next) == 0;
        if (!again) strcpy(name[n++], next);
        if (i >= NAMES && n == NAMES) return false;
    }
    return true;
}

/* The parts of a list of n noise sentences: sentence i, and their number. With few lines the harness splits them at
 * full stops. */
static const char *piece(const struct hl_ruler_gen *g, int64_t n, int64_t i) {
    static const char *const part[] = {"The grass is green.", " The sky is blue.",      " The sun is yellow.",
                                       " Here we go.",        " There and back again.", "\n"};
    if (g->nvidia) return HL_NOISE;
    return n <= NAMES ? part[i % 6] : HL_NOISE "\n";
}
static int64_t pieces(const struct hl_ruler_gen *g, int64_t n) { return !g->nvidia && n <= NAMES ? 6 * n : n; }

static int rising(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void replace(struct hl_text *t, const char *from, const char *to) {
    struct hl_text out = {.failed = t->failed};
    hl_py_replace(&out, hl_span_text(t), from, to);
    hl_text_free(t);
    *t = out;
}

static hola_status put_context(struct hl_ruler_gen *g, int64_t n, char name[NAMES][8], int64_t value,
                               struct hl_text *out) {
    const int64_t total = pieces(g, n);
    int64_t at[NAMES];
    int next = 0;
    struct hl_text context = {.data = NULL};
    hola_status s = hl_py_sample(&g->random, total, NAMES, at);
    if (s != HOLA_OK) return s;
    qsort(at, NAMES, sizeof *at, rising);
    for (int64_t i = 0; i < total; i++) {
        const char *join = g->nvidia ? "\n" : " ";
        if (i) hl_text_puts(&context, join);
        if (next < NAMES && at[next] == i) {
            if (next == 0) hl_text_printf(&context, "VAR %s = %lld", name[0], (long long)value);
            else hl_text_printf(&context, "VAR %s = VAR %s ", name[next], name[next - 1]);
            hl_text_puts(&context, join);
            next++;
        }
        hl_text_puts(&context, piece(g, n, i));
    }
    replace(&context, ". \n", ".\n");
    if (context.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
    else hl_text_put(out, context.data, context.n);
    hl_text_free(&context);
    return s;
}

/* The example with other names, and for NVIDIA another value. */
static void put_example(struct hl_ruler_gen *g, struct hl_text *out) {
    struct vt *w = g->state;
    hl_text_put(out, w->shown.data, w->shown.n);
    for (int i = 0; i < NAMES; i++) {
        char next[8];
        draw_name(&g->random, 3, next);
        replace(out, w->name[i], next);
    }
    if (!g->nvidia) return;
    char value[24] = "";
    int64_t v = hl_np_randint(&g->numpy, 10000, 99999);
    for (int i = 4; i >= 0; i--, v /= 10) value[i] = (char)('0' + v % 10);
    replace(out, "12345", value);
}

static hola_status vt_build(struct hl_ruler_gen *g, int64_t units, int64_t index, bool search, struct hl_draft *d) {
    struct vt *w = g->state;
    char name[NAMES][8];
    struct hl_text text = {.data = NULL};
    (void)index;
    d->failed = !draw_names(g, w->example ? 3 : 5, name);
    int64_t value = g->nvidia && w->example ? 12345 : hl_np_randint(&g->numpy, 10000, 99999);
    if (d->failed) {
        if (!(g->nvidia && w->example)) hl_np_randint(&g->numpy, 10000, 99999); /* for the chain that fails */
        return HOLA_OK;
    }
    hl_text_puts(&text, "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n");
    hola_status s = put_context(g, units, name, value, &text);
    hl_text_printf(&text, QUESTION "%lld in the text above.", (long long)value);
    int64_t cut = text.n;
    hl_text_printf(&text, PREFIX "%s the value %lld, they are: ", g->nvidia ? "assigned" : "assgined",
                   (long long)value);
    for (int i = 0; i < NAMES && s == HOLA_OK; i++) s = hl_draft_ref(d, name[i], (int64_t)strlen(name[i]));
    if (s == HOLA_OK && text.failed) s = hl_fail(HOLA_ENOMEM, "ruler: no memory");
    if (s == HOLA_OK) {
        if (g->nvidia && !search && !w->example) {
            put_example(g, &d->text);
            hl_text_puts(&d->text, "\n");
        }
        d->cut = d->text.n + cut;
        hl_text_put(&d->text, text.data, text.n);
        hl_text_puts(&d->tail, " ");
        hl_py_repr(&d->tail, d->refs, d->n_refs);
    }
    hl_text_free(&text);
    return s;
}

/* The harness prepends the example to the final text, and drops the space at the end of the prefix. */
static hola_status vt_finish(struct hl_ruler_gen *g, struct hl_draft *d) {
    struct hl_text all = {.data = NULL};
    if (g->nvidia) return HOLA_OK;
    put_example(g, &all);
    hl_text_puts(&all, "\n\n");
    d->cut += all.n;
    hl_text_put(&all, d->text.data, d->text.n - 1);
    hl_text_free(&d->text);
    d->text = all;
    return HOLA_OK;
}

static int64_t vt_least(const struct hl_ruler_gen *g, int64_t index) {
    (void)index;
    return g->nvidia ? NAMES : 1;
}

extern const struct hl_ruler_kind hl_ruler_vt;

/* One sample of up to 500 tokens, or the smallest one if none fits. */
static hola_status make_example(struct hl_ruler_gen *g) {
    struct vt *w = g->state;
    const int64_t length = g->length, reserve = g->reserve;
    struct hl_draft d = {.cut = -1};
    int64_t units, tokens;
    w->example = true;
    g->length = EXAMPLE_TOKENS;
    g->reserve = g->nvidia ? 0 : reserve;
    g->step = g->probe = 5;
    hola_status s = hl_ruler_search(g, &hl_ruler_vt, &units);
    if (s == HOLA_OK) s = hl_ruler_draw(g, &hl_ruler_vt, units, 0, &d, &tokens);
    if (s == HOLA_EINVAL) {
        g->length = INT64_MAX / 2;
        s = hl_ruler_draw(g, &hl_ruler_vt, g->step, 0, &d, &tokens);
    }
    if (s == HOLA_OK) {
        hl_text_put(&w->shown, d.text.data, d.text.n);
        for (int i = 0; i < NAMES; i++) {
            strcpy(w->name[i], d.refs[i]);
            hl_text_puts(&w->shown, " ");
            hl_text_puts(&w->shown, d.refs[i]);
        }
        hl_text_puts(&w->shown, g->nvidia ? "\n" : "\n\n");
        s = hl_ruler_count(g, &w->shown, NULL, NULL, &g->extra);
    }
    hl_draft_free(&d);
    w->example = false;
    g->length = length;
    g->reserve = reserve;
    return s;
}

static hola_status vt_open(struct hl_ruler_gen *g) {
    struct vt *w = g->state = calloc(1, sizeof *w);
    if (!w) return hl_fail(HOLA_ENOMEM, "ruler: no memory");
    hola_status s = make_example(g);
    g->step = g->probe = g->nvidia && g->length < 4096 ? 5 : 10;
    return s;
}

static void vt_close(struct hl_ruler_gen *g) {
    struct vt *w = g->state;
    if (w) hl_text_free(&w->shown);
    free(w);
}

const struct hl_ruler_kind hl_ruler_vt = {
    .open = vt_open, .close = vt_close, .least = vt_least, .build = vt_build, .finish = vt_finish};
