/* policy.c -- the table of policies: one row per HOLA_EVICT_*. */
#include "ops/cache/policy.h"

enum { CACHE_SINKS = -1 }; /* set by the configuration */

static const struct {
    const char *name;  /* in config.json */
    const char *score; /* description of its score; NULL: the position */
    struct hl_policy policy;
} table[HOLA_EVICT_COUNT] = {
    [HOLA_EVICT_BETAE] = {"betae", "m", {.score = HL_SCORE_WRITE}},
    [HOLA_EVICT_E] = {"e", "|e|", {.score = HL_SCORE_RESIDUAL}},
    [HOLA_EVICT_BETAV] = {"betav", "beta|v|", {.score = HL_SCORE_VALUE}},
    [HOLA_EVICT_RECENCY] = {"recency", NULL, {.score = HL_SCORE_NONE, .by_position = true}},
    [HOLA_EVICT_H2O] = {"h2o", "sum p", {.score = HL_SCORE_NONE, .moves_with_reads = true}},
    [HOLA_EVICT_NONE] = {"none", NULL, {.score = HL_SCORE_NONE}},
    [HOLA_EVICT_STREAMING] = {"streaming", NULL, {.score = HL_SCORE_NONE, .by_position = true, .sinks = CACHE_SINKS}},
    [HOLA_EVICT_LOLA] = {"lola", "|v-kS|", {.score = HL_SCORE_RECALL}},
    [HOLA_EVICT_LTE] = {"lte", "learned", {.score = HL_SCORE_LEARNED}},
};

const char *hola_evict_name(hola_evict e) { return (unsigned)e < HOLA_EVICT_COUNT ? table[e].name : "unknown"; }
const char *hl_evict_score_name(hola_evict e) { return table[e].score; }

bool hl_policy_of(struct hl_policy *out, const hola_config *cfg) {
    *out = table[cfg->cache_evict].policy;
    if (out->sinks == CACHE_SINKS) out->sinks = cfg->cache_sinks;
    out->redundancy = cfg->cache_redundancy;
    out->layer_set = cfg->cache_layer_set && !out->by_position; /* positions are the same in all heads anyway */
    return cfg->cache_evict != HOLA_EVICT_NONE;
}
