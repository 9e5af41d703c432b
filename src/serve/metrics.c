/* metrics.c -- see metrics.h. */
#include "serve/metrics.h"
#include <inttypes.h>

const double hl_histogram_bounds[HL_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                          0.25,  0.5,    1,     2.5,  5,     10,   60};

void hl_histogram_add(struct hl_histogram *h, double seconds) {
    int i = 0;
    while (i < HL_HISTOGRAM_BUCKETS && seconds > hl_histogram_bounds[i]) i++;
    atomic_fetch_add(&h->bucket[i], 1);
    atomic_fetch_add(&h->nanoseconds, seconds > 0 ? (uint64_t)(seconds * 1e9) : 0);
    atomic_fetch_add(&h->count, 1);
}

static void describe(struct hl_text *out, const char *name, const char *type, const char *help) {
    hl_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_histogram(struct hl_text *out, struct hl_histogram *h, const char *name, const char *help) {
    uint64_t sum = 0;
    describe(out, name, "histogram", help);
    for (int i = 0; i < HL_HISTOGRAM_BUCKETS; i++) {
        sum += atomic_load(&h->bucket[i]);
        hl_text_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, hl_histogram_bounds[i], sum);
    }
    sum += atomic_load(&h->bucket[HL_HISTOGRAM_BUCKETS]);
    hl_text_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.9f\n%s_count %" PRIu64 "\n", name, sum, name,
                   1e-9 * (double)atomic_load(&h->nanoseconds), name, sum);
}

void hl_serve_metrics_write(struct hl_serve_metrics *m, struct hl_text *out) {
#define WRITE(field, name, type, help) \
    describe(out, name, type, help);   \
    hl_text_printf(out, name " %" PRId64 "\n", atomic_load(&m->field));
    HL_COUNTER_LIST(WRITE)
#undef WRITE
    describe(out, "hola_sessions", "gauge", "Sessions, by where their state is");
    hl_text_printf(out, "hola_sessions{where=\"memory\"} %" PRId64 "\nhola_sessions{where=\"disk\"} %" PRId64 "\n",
                   atomic_load(&m->sessions_memory), atomic_load(&m->sessions_disk));
    write_histogram(out, &m->queue, "hola_queue_seconds", "Time a request waited for a place");
    write_histogram(out, &m->first_token, "hola_time_to_first_token_seconds",
                    "Time from a request's arrival to its first token");
    write_histogram(out, &m->between_tokens, "hola_inter_token_seconds", "Time between two tokens of a sequence");
}
