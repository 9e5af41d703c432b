/* requests.c -- the requests of a task and their memory. */
#include "core/sha256.h"
#include "eval/eval.h"
#include <stdlib.h>

struct hl_block {
    struct hl_block *next;
    int64_t used, size;
    _Alignas(16) char data[];
};

void *hl_set_bytes(struct hl_set *s, int64_t n) {
    struct hl_block *b = s->blocks;
    n = (n + 15) / 16 * 16;
    if (!b || b->size - b->used < n) {
        const int64_t size = n > 1 << 18 ? n : 1 << 18;
        b = malloc(sizeof *b + (size_t)size);
        if (!b) return NULL;
        *b = (struct hl_block){.next = s->blocks, .size = size};
        s->blocks = b;
    }
    void *p = b->data + b->used;
    b->used += n;
    return memset(p, 0, (size_t)n);
}

struct hl_span hl_set_keep(struct hl_set *s, struct hl_span text) {
    char *p = hl_set_bytes(s, text.n + 1);
    if (p && text.n > 0) memcpy(p, text.p, (size_t)text.n);
    return (struct hl_span){p, p ? text.n : 0};
}

void hl_set_free(struct hl_set *s) {
    if (s->own) s->own_free(s->own);
    for (struct hl_block *b = s->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(s->request);
    free(s->doc);
    free(s->file);
    *s = (struct hl_set){0};
}

static hola_status grow(void **list, int64_t n, int64_t *room, size_t size) {
    if (n < *room) return HOLA_OK;
    void *p = realloc(*list, (size_t)(*room * 2 + 64) * size);
    if (!p) return hl_fail(HOLA_ENOMEM, "eval: no memory for %lld requests", (long long)*room * 2);
    *list = p;
    *room = *room * 2 + 64;
    return HOLA_OK;
}

hola_status hl_set_doc(struct hl_set *s, struct hl_doc **doc) {
    void *p = s->doc;
    hola_status st = grow(&p, s->docs, &s->room_docs, sizeof *s->doc);
    s->doc = p;
    if (st != HOLA_OK) return st;
    s->doc[s->docs] = (struct hl_doc){.first = s->n};
    *doc = &s->doc[s->docs++];
    return HOLA_OK;
}

hola_status hl_set_ask(struct hl_set *s, const struct hl_request *r) {
    void *p = s->request;
    hola_status st = grow(&p, s->n, &s->room_n, sizeof *s->request);
    s->request = p;
    if (st != HOLA_OK) return st;
    struct hl_doc *d = &s->doc[s->docs - 1];
    s->request[s->n] = *r;
    s->request[s->n].doc = s->docs - 1;
    s->request[s->n].choice = d->n++;
    s->n++;
    return HOLA_OK;
}

hola_status hl_set_hash(struct hl_set *s) {
    struct hl_sha256 sha;
    hl_sha256_begin(&sha);
    hola_status st = hl_sha256_file(&sha, s->file);
    if (st == HOLA_OK) hl_sha256_end(&sha, s->sha256);
    return st;
}

void hl_answers_free(struct hl_answer *a, int64_t n) {
    for (int64_t i = 0; a && i < n; i++) free(a[i].text.data), free(a[i].top);
    free(a);
}
