/* text.c -- see text.h. */
#include "core/text.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` items plus the NUL. */
static hola_status grow(void **data, int64_t n, int64_t *cap, int64_t more, size_t size) {
    int64_t room = *cap > INT64_MAX / 4 ? INT64_MAX / 2 : *cap + *cap / 2 + 64;
    if (more < *cap - n) return HOLA_OK;
    if (room <= n + more) room = n + more + 1;
    void *p = room < INT64_MAX / 16 ? realloc(*data, (size_t)room * size) : NULL;
    if (!p) return hl_fail(HOLA_ENOMEM, "no memory for %lld tokens or bytes", (long long)room);
    *data = p;
    *cap = room;
    return HOLA_OK;
}

hola_status hl_ids_room(struct hl_ids *v, int64_t more) {
    void *p = v->data;
    hola_status s = grow(&p, v->n, &v->cap, more, sizeof *v->data);
    v->data = p;
    return s;
}

hola_status hl_text_status(const struct hl_text *t) {
    return t->failed ? hl_fail(HOLA_ENOMEM, "no memory for a text of %lld bytes", (long long)t->n) : HOLA_OK;
}

hola_status hl_text_room(struct hl_text *t, int64_t more) {
    void *p = t->data;
    hola_status s = t->failed ? hl_text_status(t) : grow(&p, t->n, &t->cap, more, 1);
    t->data = p;
    t->failed = s != HOLA_OK;
    return s;
}

hola_status hl_text_put(struct hl_text *t, const char *bytes, int64_t n) {
    hola_status s = hl_text_room(t, n);
    if (s != HOLA_OK) return s;
    if (n > 0) memcpy(t->data + t->n, bytes, (size_t)n);
    t->n += n;
    t->data[t->n] = 0;
    return HOLA_OK;
}

hola_status hl_text_puts(struct hl_text *t, const char *string) {
    return hl_text_put(t, string, (int64_t)strlen(string));
}

hola_status hl_text_printf(struct hl_text *t, const char *fmt, ...) {
    for (;;) { /* at most twice */
        va_list ap;
        va_start(ap, fmt);
        const int n = vsnprintf(t->data ? t->data + t->n : NULL, (size_t)(t->cap - t->n), fmt, ap);
        va_end(ap);
        HL_ASSERT(n >= 0);
        const bool fits = !t->failed && n < t->cap - t->n;
        hola_status s = fits ? HOLA_OK : hl_text_room(t, n);
        if (fits) t->n += n;
        if (fits || s != HOLA_OK) return s;
    }
}

hola_status hl_text_clear(struct hl_text *t) {
    t->n = 0;
    return hl_text_put(t, "", 0);
}

void hl_text_free(struct hl_text *t) {
    free(t->data);
    *t = (struct hl_text){.data = NULL};
}
