/* detokenizer.c -- streaming ids to bytes: pieces in context, stop strings, whole characters. */
#include "tokenizer/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEFORE = 8 };

struct hola_detokenizer {
    const hola_tokenizer *t;
    int32_t before[BEFORE]; /* the last ids: what a piece decodes to may depend on them */
    int n_before;
    struct hl_text window; /* their text, with the next id's */
    struct hl_text text;   /* text not taken before the last id, plus its bytes */
    int64_t taken;         /* bytes of it taken since */
    int64_t piece;         /* offset of the last id's bytes */
    int64_t piece_len;
    bool stopped, any;
    int64_t n_stop, longest;
    struct stop {
        char *text;
        int64_t len;
    } * stop;
};

hola_status hola_detokenizer_new(hola_detokenizer **out, const hola_tokenizer *t, const char *const *stop,
                                 const int64_t *stop_len, int64_t n_stop) {
    HL_NEED(out, "out");
    *out = NULL;
    if (n_stop < 0 || (n_stop > 0 && !stop))
        return hl_fail(HOLA_EINVAL, "n_stop is %lld, but the stop strings are NULL", (long long)n_stop);
    for (int64_t i = 0; i < n_stop; i++)
        if (!stop[i]) return hl_fail(HOLA_EINVAL, "stop string %lld is NULL", (long long)i);
    hola_detokenizer *d = calloc(1, sizeof *d);
    if (d) d->stop = calloc((size_t)n_stop + 1, sizeof *d->stop);
    if (d && d->stop) d->t = t;
    for (int64_t i = 0; d && d->stop && i < n_stop; i++) {
        const int64_t len = stop_len ? stop_len[i] : (int64_t)strlen(stop[i]);
        if (len < 1) {
            hola_detokenizer_free(d);
            return hl_fail(HOLA_EINVAL, "stop string %lld is empty", (long long)i);
        }
        d->stop[i] = (struct stop){malloc((size_t)len), len};
        if (!d->stop[i].text) break;
        memcpy(d->stop[i].text, stop[i], (size_t)len);
        if (len > d->longest) d->longest = len;
        d->n_stop++;
    }
    if (!d || !d->stop || d->n_stop < n_stop || hl_text_clear(&d->text) != HOLA_OK) {
        hola_detokenizer_free(d);
        return hl_fail(HOLA_ENOMEM, "detokenizer: no memory");
    }
    *out = d;
    return HOLA_OK;
}

void hola_detokenizer_free(hola_detokenizer *d) {
    if (!d) return;
    for (int64_t i = 0; d->stop && i < d->n_stop; i++) free(d->stop[i].text);
    free(d->stop);
    hl_text_free(&d->text), hl_text_free(&d->window);
    free(d);
}

void hola_detokenizer_begin(hola_detokenizer *d, const int32_t *before, int64_t n) {
    if (!d) return;
    if (!before) n = 0;
    d->text.n = d->taken = d->piece = d->piece_len = 0;
    d->n_before = 0;
    d->stopped = d->any = false;
    for (int64_t i = n > BEFORE - 1 ? n - (BEFORE - 1) : 0; i < n && d->t; i++)
        if (before[i] >= 0 && before[i] < hola_tokenizer_size(d->t)) d->before[d->n_before++] = before[i];
}

/* The first stop string that extends beyond `from` ends the text at its start. */
static void look_for_stop(hola_detokenizer *d, int64_t from) {
    int64_t cut = d->text.n;
    from = from >= d->longest ? from - d->longest + 1 : 0;
    for (int64_t i = 0; i < d->n_stop; i++)
        for (int64_t at = from; at + d->stop[i].len <= d->text.n && at < cut; at++)
            if (memcmp(d->text.data + at, d->stop[i].text, (size_t)d->stop[i].len) == 0) cut = at, d->stopped = true;
    if (d->stopped) d->text.n = cut;
}

/* The text that the id adds after the previous ones: some pieces lose a space only at the very start. */
static hola_status add_piece(hola_detokenizer *d, int32_t id) {
    int64_t last;
    if (id >= hola_tokenizer_size(d->t)) return HOLA_OK; /* the model's vocabulary may be larger: no text */
    d->before[d->n_before] = id;
    hola_status s = hl_tokenizer_decode_last(d->t, d->before, d->n_before + 1, &d->window, &last);
    if (s == HOLA_OK && d->window.n > last) s = hl_text_put(&d->text, d->window.data + last, d->window.n - last);
    if (s == HOLA_OK && ++d->n_before == BEFORE) {
        memmove(d->before, d->before + 1, (BEFORE - 1) * sizeof *d->before);
        d->n_before--;
    }
    return s;
}

/* Taken text is dropped when the next id is added. Until then the caller may use it, and request the last id's
 * bytes. */
static void forget_taken(hola_detokenizer *d) {
    if (d->taken == 0) return;
    memmove(d->text.data, d->text.data + d->taken, (size_t)(d->text.n - d->taken));
    d->text.n -= d->taken, d->taken = 0;
}

hola_status hola_detokenizer_add(hola_detokenizer *d, int32_t id, bool *stopped) {
    hola_status s = HOLA_OK;
    HL_NEED(d, "the detokenizer");
    if (id < 0) return hl_fail(HOLA_EINVAL, "detokenizer: id %d", (int)id);
    forget_taken(d);
    const int64_t from = d->piece = d->text.n;
    if (!d->stopped) s = d->t ? add_piece(d, id) : hl_text_printf(&d->text, d->any ? " %d" : "%d", (int)id);
    d->piece_len = d->text.n - from;
    d->any = true;
    if (s == HOLA_OK && !d->stopped) look_for_stop(d, from);
    if (stopped) *stopped = d->stopped;
    return s;
}

/* ---- final text ---- */

/* The number of trailing bytes that form an incomplete character. */
static int64_t incomplete(const char *p, int64_t n) {
    for (int64_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char c = (unsigned char)p[n - k];
        if (c >= 0xc2 && c < 0xf5) return k < (c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4) ? k : 0;
        if (c < 0x80 || c > 0xbf) return 0;
    }
    return 0;
}

/* The number of trailing bytes that may start a stop string. */
static int64_t beginning_of_stop(const hola_detokenizer *d, const char *p, int64_t n) {
    int64_t most = 0;
    for (int64_t i = 0; i < d->n_stop; i++)
        for (int64_t k = d->stop[i].len - 1 < n ? d->stop[i].len - 1 : n; k > most; k--)
            if (memcmp(p + n - k, d->stop[i].text, (size_t)k) == 0) most = k;
    return most;
}

const char *hola_detokenizer_take(hola_detokenizer *d, bool end, int64_t *len) {
    if (len) *len = 0;
    if (!d || !len) return NULL;
    const char *from = d->text.data + d->taken;
    int64_t n = d->text.n - d->taken;
    if (!end && !d->stopped) {
        /* a character that a held-back stop string would split is held back too */
        n -= beginning_of_stop(d, from, n);
        n -= incomplete(from, n);
    }
    d->taken += n, *len = n;
    return from;
}

/* (a stop string may have cut the text within the piece; its bytes are still stored) */
const char *hola_detokenizer_piece(const hola_detokenizer *d, int64_t *len) {
    if (len) *len = 0;
    if (!d || !len) return NULL;
    *len = d->piece_len;
    return d->text.data + d->piece;
}
