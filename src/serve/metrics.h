/* metrics.h -- the server's counters; any thread may update and read them. */
#ifndef HL_METRICS_H
#define HL_METRICS_H
#include "core/text.h"
#include <stdatomic.h>

enum { HL_HISTOGRAM_BUCKETS = 14 };
extern const double hl_histogram_bounds[HL_HISTOGRAM_BUCKETS]; /* seconds */
struct hl_histogram {
    _Atomic uint64_t bucket[HL_HISTOGRAM_BUCKETS + 1]; /* counts per bucket, not cumulative */
    _Atomic uint64_t count, nanoseconds;
};
void hl_histogram_add(struct hl_histogram *h, double seconds);

#define HL_COUNTER_LIST(X)                                                                                     \
    X(prompt_tokens, "hola_prompt_tokens_total", "counter", "Prompt tokens read; those from a snapshot aside") \
    X(cached_tokens, "hola_prompt_tokens_cached_total", "counter", "Prompt tokens taken from a snapshot")      \
    X(generated_tokens, "hola_generated_tokens_total", "counter", "Tokens generated")                          \
    X(steps, "hola_steps_total", "counter", "Decoding steps")                                                  \
    X(step_sessions, "hola_step_sessions_total", "counter", "Sequences in all decoding steps")                 \
    X(disconnects, "hola_disconnects_total", "counter", "Requests whose client left before the end")           \
    X(saves, "hola_session_saves_total", "counter", "Session files written")                                   \
    X(save_errors, "hola_session_save_errors_total", "counter", "Session files that could not be written")     \
    X(running, "hola_requests_running", "gauge", "Requests under way")                                         \
    X(waiting, "hola_requests_waiting", "gauge", "Requests that wait for a place")                             \
    X(connections, "hola_connections", "gauge", "Open connections")                                            \
    X(session_bytes, "hola_session_bytes", "gauge", "Bytes of idle sessions in memory")                        \
    X(snapshots, "hola_snapshots", "gauge", "Prefix snapshots")                                                \
    X(snapshot_bytes, "hola_snapshot_bytes", "gauge", "Bytes of prefix snapshots")
struct hl_serve_metrics {
#define HL_COUNTER_FIELD(name, text, type, help) _Atomic int64_t name;
    HL_COUNTER_LIST(HL_COUNTER_FIELD)
#undef HL_COUNTER_FIELD
    _Atomic int64_t sessions_memory, sessions_disk;
    struct hl_histogram queue, first_token, between_tokens;
};
/* In the Prometheus text format. */
void hl_serve_metrics_write(struct hl_serve_metrics *m, struct hl_text *out);

#endif
