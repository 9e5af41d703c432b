/* cache_view.h -- hola inspect --memory: what a text leaves in the exact memory, as a table, JSON and a page. */
#ifndef HOLA_CLI_CACHE_VIEW_H
#define HOLA_CLI_CACHE_VIEW_H
#include "cli/cli.h"
#include "model/cache_view.h"

struct cache_view_opts {
    const char *file, *ids, *tokenizer, *html;
    int64_t query;       /* -1: the last token */
    int64_t layer, head; /* -1: all */
    int64_t top;         /* tokens listed per head */
    int color;
    bool on, json;
};
enum cache_view_color { CACHE_VIEW_COLOR_AUTO, CACHE_VIEW_COLOR_ALWAYS, CACHE_VIEW_COLOR_NEVER };
extern const char *const cache_view_colors[];

struct cache_view_report {
    const struct cache_view_opts *opts;
    const hola_config *cfg;
    struct hl_cache_view view;
    const int32_t *ids;
    char **text; /* of every token, printable UTF-8 */
};

/* The whole command, for a loaded model; dir is where to find its tokenizer. */
int cache_view_inspect(hola_model *m, const char *dir, const struct cache_view_opts *o);

/* cache_view_page.c: one self-contained HTML page, written atomically. */
int cache_view_page_write(const struct cache_view_report *r, const char *path);

/* Whether a recency memory, holding the latest tokens of the closed blocks, would hold this one. */
bool cache_view_recent(const struct cache_view_report *r, int64_t pos);
static inline const struct hl_cache_view_head *cache_view_head(const struct cache_view_report *r, int64_t l,
                                                               int64_t h) {
    return &r->view.head[l * r->view.heads + h];
}
/* Whether the options select this head. */
static inline bool cache_view_chosen(const struct cache_view_report *r, int64_t l, int64_t h) {
    return (r->opts->layer < 0 || r->opts->layer == l) && (r->opts->head < 0 || r->opts->head == h);
}
#endif
