/* cache_view_page.c -- the page of hola inspect --memory: cache_view.html, drawn by cache_view.js. */
#include "cli/cache_view.h"
#include "core/file.h"
#include "plot/page.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

HL_PAGE_FILE(hl_cache_view_html, "src/cli/cache_view.html"); /* the page's content */
HL_PAGE_FILE(hl_cache_view_js, "src/cli/cache_view.js");

/* the most numbers that a browser handles well: 128 MiB */
enum { MOST_NUMBERS = 1 << 25 };

static char *base64(const void *data, int64_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = data;
    char *out = malloc((size_t)(n + 2) / 3 * 4 + 1), *to = out;
    for (int64_t i = 0; out && i < n; i += 3) {
        const int have = n - i < 3 ? (int)(n - i) : 3;
        const uint32_t x = (uint32_t)s[i] << 16 | (have > 1 ? (uint32_t)s[i + 1] << 8 : 0) | (have > 2 ? s[i + 2] : 0);
        for (int d = 0; d < 4; d++) *to++ = d <= have ? digits[x >> (18 - 6 * d) & 63] : '=';
    }
    if (out) *to = 0;
    return out;
}

static json_t *integers(const int64_t *x, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)x[i]));
    return list;
}
static json_t *numbers(const float *x, int64_t n) {
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real((double)x[i]));
    return list;
}

/* The data for cache_view.js, as text; NULL: out of memory. */
static char *page_data(const struct cache_view_report *r) {
    const struct hl_cache_view *v = &r->view;
    const int64_t heads = v->layers * v->heads;
    json_t *tokens = json_array(), *kept = json_array(), *read = json_array();
    float *m = malloc((size_t)(heads * v->n) * sizeof *m);
    for (int64_t t = 0; t < v->n; t++) json_array_append_new(tokens, json_string(r->text[t]));
    for (int64_t i = 0; i < heads; i++) {
        const struct hl_cache_view_head *h = &v->head[i];
        json_array_append_new(kept, integers(h->pos, h->kept));
        json_array_append_new(read, json_pack("{s:o, s:o, s:I, s:f, s:f}", "pos", integers(h->seen_pos, h->seen), "p",
                                              numbers(h->p, h->seen), "kept", (json_int_t)h->seen_kept, "sink",
                                              (double)h->p_sink, "gate", (double)h->gate));
        if (m) memcpy(m + i * v->n, h->m, (size_t)v->n * sizeof *m);
    }
    char *packed = m ? base64(m, heads * v->n * (int64_t)sizeof *m) : NULL;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:s}", "evict",
        hola_evict_name(r->cfg->cache_evict), "window", (json_int_t)r->cfg->cache_window, "chunk",
        (json_int_t)r->cfg->cache_chunk, "layers", (json_int_t)v->layers, "heads", (json_int_t)v->heads, "query",
        (json_int_t)v->query, "layer", (json_int_t)(r->opts->layer < 0 ? 0 : r->opts->layer), "head",
        (json_int_t)(r->opts->head < 0 ? 0 : r->opts->head), "parameters", (json_int_t)hola_config_parameters(r->cfg),
        "tokens", tokens, "kept", kept, "read", read, "m", packed ? packed : "");
    char *text = root && packed ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(root);
    free(packed);
    free(m);
    return text;
}

int cache_view_page_write(const struct cache_view_report *r, const char *path) {
    const int64_t numbers = r->view.layers * r->view.heads * r->view.n;
    struct hl_text page = {0};
    if (numbers > MOST_NUMBERS)
        return cli_fail("%s: %" PRId64 " tokens x %" PRId64 " heads are too many for a page (%d numbers at most)", path,
                        r->view.n, r->view.layers * r->view.heads, MOST_NUMBERS);
    char *data = page_data(r);
    if (!data) return cli_fail("%s: no memory for the page", path);
    hl_page_begin(&page, "What the exact memory holds", "", 0);
    hl_text_put(&page, hl_cache_view_html, hl_cache_view_html_end - hl_cache_view_html);
    hl_page_end(&page, data, hl_cache_view_js, hl_cache_view_js_end - hl_cache_view_js);
    free(data);
    hola_status s = hl_text_status(&page);
    if (s == HOLA_OK) s = hl_write_file(path, page.data, page.n);
    hl_text_free(&page);
    return s == HOLA_OK ? CLI_OK : cli_fail_library();
}
