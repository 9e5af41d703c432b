/* generate_text.c -- ids to bytes as they come: pieces in their context, stop strings, whole characters. */
#include "cli/generate.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BEFORE = sizeof((struct gen_text *)0)->before / sizeof(int32_t) };

void gen_text_begin(struct gen_text *t, const struct gen *g, const hola_session *s, bool keep) {
    *t = (struct gen_text){.g = g, .keep = keep};
    const int n = (int)hola_session_recent(s, t->before, BEFORE - 1);
    for (int i = 0; i < n && g->t; i++)
        if (t->before[i] < hola_tokenizer_size(g->t)) t->before[t->n_before++] = t->before[i];
}

static bool append(struct gen_text *t, const char *bytes, int64_t n) {
    return hl_text_put(&t->text, bytes, n) == HOLA_OK || (cli_fail_library(), false);
}

/* The first stop string that lies in the text from `from` on ends it there. */
static void look_for_stop(struct gen_text *t, int64_t from) {
    const struct arg_list *stop = &t->g->o->stop;
    int64_t longest = 0, cut = t->text.n;
    for (int i = 0; i < stop->n; i++)
        if ((int64_t)strlen(stop->item[i]) > longest) longest = (int64_t)strlen(stop->item[i]);
    from = from > t->out + longest ? from - longest : t->out;
    for (int i = 0; i < stop->n; i++) {
        const int64_t n = (int64_t)strlen(stop->item[i]);
        for (int64_t at = from; at + n <= t->text.n && at < cut; at++)
            if (memcmp(t->text.data + at, stop->item[i], (size_t)n) == 0) cut = at, t->stopped = true;
    }
    if (t->stopped) t->text.n = cut;
}

/* What the id adds to the text of those before it: some pieces lose a space at the very front only. */
static bool add_piece(struct gen_text *t, int32_t id) {
    char *old = NULL, *all = NULL;
    int64_t n_old = 0, n_all = 0;
    t->before[t->n_before] = id;
    if (id >= hola_tokenizer_size(t->g->t)) return true; /* a vocabulary may be larger: no text */
    bool ok = true;
    if (hola_tokenizer_decode(t->g->t, t->before, t->n_before, &old, &n_old) ||
        hola_tokenizer_decode(t->g->t, t->before, t->n_before + 1, &all, &n_all))
        cli_fail_library(), ok = false;
    if (ok && n_all > n_old) ok = append(t, all + n_old, n_all - n_old);
    free(old), free(all);
    if (++t->n_before == BEFORE) {
        memmove(t->before, t->before + 1, (BEFORE - 1) * sizeof *t->before);
        t->n_before--;
    }
    return ok;
}

bool gen_text_add(struct gen_text *t, int32_t id) {
    const int64_t from = t->text.n;
    char number[16];
    bool ok;
    if (t->g->t) ok = add_piece(t, id);
    else ok = append(t, number, snprintf(number, sizeof number, "%s%d", t->any ? " " : "", (int)id));
    t->any = true;
    if (ok) look_for_stop(t, from);
    return ok;
}

/* ---- what may go out ---- */

/* How many bytes at the end are a character that is not complete. */
static int64_t incomplete(const char *p, int64_t n) {
    for (int64_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char c = (unsigned char)p[n - k];
        if (c >= 0xc2 && c < 0xf5) return k < (c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4) ? k : 0;
        if (c < 0x80 || c > 0xbf) return 0;
    }
    return 0;
}

/* How many bytes at the end may become a stop string. */
static int64_t beginning_of_stop(const struct arg_list *stop, const char *p, int64_t n) {
    int64_t most = 0;
    for (int i = 0; i < stop->n; i++) {
        int64_t k = (int64_t)strlen(stop->item[i]) - 1;
        for (k = k < n ? k : n; k > most; k--)
            if (memcmp(p + n - k, stop->item[i], (size_t)k) == 0) most = k;
    }
    return most;
}

void gen_text_flush(struct gen_text *t, bool end, FILE *f) {
    int64_t to = t->text.n;
    if (!end && !t->stopped) {
        const int64_t a = incomplete(t->text.data + t->out, t->text.n - t->out),
                      b = beginning_of_stop(&t->g->o->stop, t->text.data + t->out, t->text.n - t->out);
        to -= a > b ? a : b;
    }
    if (to > t->out && f) {
        fwrite(t->text.data + t->out, 1, (size_t)(to - t->out), f);
        fflush(f);
    }
    if (to > t->out) t->out = to;
    if (t->keep || t->out == 0) return;
    memmove(t->text.data, t->text.data + t->out, (size_t)(t->text.n - t->out));
    t->text.n -= t->out, t->out = 0;
}

/* ---- JSON ---- */

/* Bytes of the character that begins at p: 0 where none does. */
static int64_t character(const unsigned char *p, int64_t n) {
    if (p[0] < 0x80) return 1;
    const int64_t len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n) return 0;
    for (int64_t i = 1; i < len; i++)
        if (p[i] < 0x80 || p[i] > 0xbf) return 0;
    /* too long a form, surrogates, beyond U+10FFFF */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

json_t *gen_text_json(const char *data, int64_t len) {
    char *clean = malloc((size_t)(3 * len + 1));
    int64_t n = 0;
    if (!clean) return NULL;
    for (int64_t i = 0, k; i < len; i += k ? k : 1) {
        k = character((const unsigned char *)data + i, len - i);
        memcpy(clean + n, k ? data + i : "\xef\xbf\xbd", (size_t)(k ? k : 3));
        n += k ? k : 3;
    }
    json_t *text = json_stringn(clean, (size_t)n);
    free(clean);
    return text;
}
