/* recall.c -- see recall.h. */
#include "data/recall.h"
#include "core/rng_stream.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct hl_recall hl_recall_default(void) {
    return (struct hl_recall){
        .fillers = 8, .keys = 64, .values = 64, .facts = 32, .queries = 16, .length = 1024, .distance = 256};
}

int64_t hl_recall_vocab(const struct hl_recall *r) { return HL_RECALL_FIRST_FILLER + r->fillers + r->keys + r->values; }

/* Length of the part that contains the facts. */
static int64_t fact_part(const struct hl_recall *r) { return r->length - 1 - r->distance - 3 * r->queries; }

hola_status hl_recall_check(const struct hl_recall *r) {
    enum { MOST = 1 << 28 }; /* sums of these cannot overflow */
    const int64_t all[] = {r->fillers, r->keys, r->values, r->facts, r->queries, r->length};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] < 1 || all[i] > MOST)
            return hl_fail(HOLA_EINVAL, "recall: every count must be at least 1, not %" PRId64, all[i]);
    if (r->distance < 0 || r->distance > MOST)
        return hl_fail(HOLA_EINVAL, "recall: a distance of %" PRId64, r->distance);
    if (r->facts > r->keys)
        return hl_fail(HOLA_EINVAL, "recall: %" PRId64 " facts of only %" PRId64 " keys", r->facts, r->keys);
    if (r->queries > r->facts)
        return hl_fail(HOLA_EINVAL, "recall: %" PRId64 " queries for %" PRId64 " facts", r->queries, r->facts);
    if (fact_part(r) < 2 * r->facts)
        return hl_fail(HOLA_EINVAL,
                       "recall: %" PRId64 " facts, a distance of %" PRId64 " and %" PRId64 " queries need %" PRId64
                       " tokens, not %" PRId64,
                       r->facts, r->distance, r->queries, 1 + 2 * r->facts + r->distance + 3 * r->queries, r->length);
    return HOLA_OK;
}

hola_status hl_recall_make(const struct hl_recall *r, uint64_t seed, int64_t index, int32_t *ids, uint8_t *mask) {
    struct hl_rng_stream d = {.seed = seed ^ hl_fnv1a("recall"), .stream = (uint64_t)index};
    int64_t facts_left = r->facts, slots = fact_part(r) - r->facts, n = 0, phase;
    const int32_t key0 = (int32_t)(HL_RECALL_FIRST_FILLER + r->fillers), value0 = (int32_t)(key0 + r->keys);
    int32_t *key = malloc((size_t)r->keys * sizeof *key), *value = malloc((size_t)r->facts * sizeof *value);
    int32_t *asked = malloc((size_t)r->facts * sizeof *asked);
    hola_status s = key && value && asked ? HOLA_OK : hl_fail(HOLA_ENOMEM, "recall: no memory");
    if (s != HOLA_OK) goto done;
    hl_rng_stream_distinct(&d, key, r->keys, r->facts);
    hl_rng_stream_distinct(&d, asked, r->facts, r->queries);
    for (int64_t i = 0; i < r->facts; i++) value[i] = hl_rng_stream_below(&d, r->values);
    phase = hl_rng_stream_below(&d, r->fillers);
    if (mask) memset(mask, 0, (size_t)r->length);

    ids[n++] = HL_RECALL_BEGIN;
    /* a slot is a fact with probability (facts left)/(slots left): all placements are equally likely */
    for (int64_t f = 0; slots > 0; slots--) {
        if (hl_rng_stream_below(&d, slots) < facts_left) {
            ids[n++] = key0 + key[f];
            ids[n++] = value0 + value[f++];
            facts_left--;
        } else ids[n++] = (int32_t)(HL_RECALL_FIRST_FILLER + phase++ % r->fillers);
    }
    for (int64_t i = 0; i < r->distance; i++) ids[n++] = (int32_t)(HL_RECALL_FIRST_FILLER + phase++ % r->fillers);
    for (int64_t i = 0; i < r->queries; i++) {
        ids[n++] = HL_RECALL_ASK;
        ids[n++] = key0 + key[asked[i]];
        if (mask) mask[n] = 1;
        ids[n++] = value0 + value[asked[i]];
    }
    HL_ASSERT(n == r->length && facts_left == 0);
done:
    free(key);
    free(value);
    free(asked);
    return s;
}
