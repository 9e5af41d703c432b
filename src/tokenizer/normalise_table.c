/* normalise_table.c -- the tables of normalise.h, as tools/make_unicode.py writes them, made fit for searching.
 *
 * Decompositions are a stream of records. The first word: character, how many words follow << 21, kind << 26. Kinds: 0
 * canonical, 1 canonical that is never composed again, 2 compatible, 3 a run of compatible ones: how many, and what the
 * first becomes, to which each next adds one. Hangul syllables are computed. */
#include "tokenizer/normalise.h"
#include "tokenizer/canonical_table.h"
#include "tokenizer/compatible_table.h"
#include "tokenizer/unicode.h"
#include <stdlib.h>

enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_N = 19, V_N = 21, T_N = 28 };
#define COUNT(array) ((int)(sizeof array / sizeof array[0]))
#define ONE ((uint64_t)1 << 40) /* the value is the one part; else it is the record's place */

static hola_status read_stream(struct hl_forms *f, struct hl_table *to, const uint32_t *stream, int n) {
    hola_status s = HOLA_OK;
    for (int i = 0; i < n && s == HOLA_OK;) {
        uint32_t c = stream[i] & 0x1fffff, parts = stream[i] >> 21 & 31, kind = stream[i] >> 26;
        if (kind == 3)
            for (uint32_t k = 0; k < stream[i + 1] && s == HOLA_OK; k++)
                s = hl_table_put(to, c + k, ONE | (stream[i + 2] + k));
        else s = hl_table_put(to, c, (uint64_t)i);
        if (kind == 0 && parts == 2 && s == HOLA_OK)
            s = hl_table_put(&f->composed, (uint64_t)stream[i + 1] << 32 | stream[i + 2], c);
        i += 1 + (int)parts;
    }
    return s;
}

hola_status hl_forms_new(struct hl_forms **out) {
    struct hl_forms *f = calloc(1, sizeof *f);
    hola_status s = f ? HOLA_OK : hl_fail(HOLA_ENOMEM, "tokenizer: no memory for a normalizer");
    *out = NULL;
    if (s == HOLA_OK) s = read_stream(f, &f->canonical, canonical, COUNT(canonical));
    if (s == HOLA_OK) s = read_stream(f, &f->compatible, compatible, COUNT(compatible));
    for (int i = 0; i + 3 < COUNT(lower_run) && s == HOLA_OK; i += 4)
        for (uint32_t k = 0, c = lower_run[i]; k < lower_run[i + 1] && s == HOLA_OK; k++, c += lower_run[i + 2])
            s = hl_table_put(&f->lower, c, c + lower_run[i + 3]);
    if (s == HOLA_OK) *out = f, f = NULL;
    hl_forms_free(f);
    return s;
}

void hl_forms_free(struct hl_forms *f) {
    if (!f) return;
    hl_table_free(&f->canonical), hl_table_free(&f->compatible);
    hl_table_free(&f->composed), hl_table_free(&f->lower);
    free(f);
}

int hl_decompose(const struct hl_forms *f, uint32_t c, bool also_compatible, uint32_t part[HL_MOST_PARTS]) {
    const uint32_t *stream = canonical;
    const struct hl_slot *s;
    if (c >= S_BASE && c < S_BASE + L_N * V_N * T_N) {
        uint32_t i = c - S_BASE;
        part[0] = L_BASE + i / (V_N * T_N);
        part[1] = V_BASE + i % (V_N * T_N) / T_N;
        part[2] = T_BASE + i % T_N;
        return i % T_N ? 3 : 2;
    }
    s = hl_table_get(&f->canonical, c);
    if (!s && also_compatible) s = hl_table_get(&f->compatible, c), stream = compatible;
    if (!s) return 0;
    if (s->value & ONE) return part[0] = (uint32_t)s->value, 1;
    int n = (int)(stream[s->value] >> 21 & 31);
    memcpy(part, stream + s->value + 1, (size_t)n * sizeof *part);
    return n;
}

uint32_t hl_compose(const struct hl_forms *f, uint32_t a, uint32_t b) {
    const struct hl_slot *s;
    if (a >= L_BASE && a < L_BASE + L_N && b >= V_BASE && b < V_BASE + V_N)
        return S_BASE + ((a - L_BASE) * V_N + (b - V_BASE)) * T_N;
    if (a >= S_BASE && a < S_BASE + L_N * V_N * T_N && (a - S_BASE) % T_N == 0 && b > T_BASE && b < T_BASE + T_N)
        return a + (b - T_BASE);
    s = hl_table_get(&f->composed, (uint64_t)a << 32 | b);
    return s ? (uint32_t)s->value : 0;
}

int hl_combining(uint32_t c) {
    int lo = 0, hi = COUNT(combining_range);
    if (c < 0x300 || (c >= 0x3100 && c < 0xa66f) || (c >= 0xac00 && c < 0xfb1e)) return 0;
    while (hi - lo > 1) { /* the last range that begins at or before c */
        int mid = (lo + hi) / 2;
        if (combining_range[mid] >> 8 <= c) lo = mid;
        else hi = mid;
    }
    return (int)(combining_range[lo] & 255);
}

uint32_t hl_lower(const struct hl_forms *f, uint32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    const struct hl_slot *s = hl_table_get(&f->lower, c);
    return s ? (uint32_t)s->value : c;
}
