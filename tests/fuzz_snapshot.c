/* fuzz_snapshot.c -- any bytes as a session: refused with a message and nothing changed, or a session that goes on.
 * Every input is tried as it is, and with size and checksum set right, so that what lies behind them is reached. */
#include "mutate.h"
#include "model/config.h"
#include "model/session.h"

enum { TYPES = HOLA_F16 + 1 };

/* HOLA; a transformer, whose state grows; one with a window; gla, gsa, kda, and kda with the exact memory; HOLA with
 * lola and with lte. */
enum { MODELS = 9 };
static hola_session *tiny_session(int model) {
    static hola_session *sessions[MODELS];
    hola_session *s = sessions[model];
    hola_config c;
    hola_model *m;
    if (s) return s;
    static const hola_model_type types[MODELS] = {HOLA_TYPE_HOLA, HOLA_TYPE_TRANSFORMER, HOLA_TYPE_TRANSFORMER,
                                                  HOLA_TYPE_GLA,  HOLA_TYPE_GSA,         HOLA_TYPE_KDA,
                                                  HOLA_TYPE_KDA,  HOLA_TYPE_HOLA,        HOLA_TYPE_HOLA};
    hl_config_defaults(&c, types[model]);
    c.hidden_size = c.intermediate_size = 2;
    c.num_hidden_layers = c.num_heads = c.num_v_heads = c.num_kv_heads = 1;
    c.window_size = model == 2 ? 3 : 0;
    c.head_dim = c.head_v_dim = 2;
    c.num_slots = 2;
    if (model >= 6) c.cache_evict = model == 6 ? HOLA_EVICT_BETAE : model == 7 ? HOLA_EVICT_LOLA : HOLA_EVICT_LTE;
    c.vocab_size = 3;
    c.conv_size = 2;
    c.cache_window = 3;
    c.cache_chunk = 4;
    MUST(hola_model_new(&m, &c, 1, &(hola_options){.threads = 1}) == HOLA_OK);
    MUST(hola_session_new(&s, m) == HOLA_OK); /* as long as the program */
    return sessions[model] = s;
}

/* 0 to 2: files of the first model in the three types; then of the others. */
static struct seed seed_at(size_t i) {
    static char *file[MODELS * TYPES];
    static int64_t size[MODELS * TYPES];
    const int32_t ids[] = {0, 1, 2, 1, 0, 2, 2, 1, 0};
    float logits[3];
    if (i >= MODELS * TYPES) return (struct seed){NULL, 0};
    if (!file[i]) {
        hola_session *s = tiny_session((int)(i / TYPES));
        hola_session_reset(s);
        MUST(hola_session_feed(s, ids, 5 + (int64_t)(i % TYPES), logits) == HOLA_OK);
        MUST(hl_snapshot_make(s, "f", (hola_dtype)(i % TYPES), &file[i], &size[i]) == HOLA_OK);
    }
    return (struct seed){file[i], (size_t)size[i]};
}

static void try(int model, const char *data, size_t size) {
    hola_session *s = tiny_session(model);
    const int32_t ids[] = {0, 1, 2, 1, 0};
    float logits[3];
    hola_session_reset(s);
    MUST(hola_session_feed(s, ids, 5, logits) == HOLA_OK);
    hola_status status = hl_snapshot_parse(s, data, (int64_t)size, "f");
    if (status != HOLA_OK) {
        MUST(strncmp(hola_last_error(), "f: ", 3) == 0);
        MUST(hola_session_position(s) == 5 && hola_session_logits(s));
        MUST(memcmp(hola_session_logits(s), logits, sizeof logits) == 0);
        return;
    }
    const int64_t pos = hola_session_position(s);
    MUST(pos >= 0);
    for (int i = 0; i < 5; i++) { /* over the end of a block; numbers may grow too large */
        status = hola_session_feed(s, &ids[i], 1, logits);
        MUST(status == HOLA_OK || status == HOLA_ENUMERIC);
    }
    MUST(hola_session_position(s) == pos + 5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int model = 0; model < MODELS; model++) {
        try(model, (const char *)data, size);
        if (size < 128) continue;
        char *copy = malloc(size);
        MUST(copy);
        memcpy(copy, data, size);
        const uint64_t bytes = size;
        memcpy(copy, seed_at((size_t)model * TYPES).data,
               24); /* magic, version and model too: the type is the input's */
        memcpy(copy + 12, data + 12, 4);
        memcpy(copy + 24, &bytes, 8);
        const uint64_t sum = hl_snapshot_sum(copy, (int64_t)size);
        memcpy(copy + 56, &sum, 8);
        try(model, copy, size);
        free(copy);
    }
    return 0;
}
