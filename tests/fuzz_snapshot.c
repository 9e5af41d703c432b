/* fuzz_snapshot.c -- any bytes as a session: refused with a message and nothing changed, or a session that goes on.
 * Every input is tried as it is, and with size and checksum set right, so that what lies behind them is reached. */
#include "mutate.h"
#include "model/config.h"
#include "model/session.h"

enum { TYPES = HOLA_F16 + 1 };

static hola_session *tiny_session(void) {
    static hola_session *s;
    hola_config c;
    hola_model *m;
    if (s) return s;
    hl_config_defaults(&c, HOLA_TYPE_HOLA);
    c.hidden_size = c.intermediate_size = 2;
    c.num_hidden_layers = c.num_heads = c.num_v_heads = 1;
    c.head_dim = c.head_v_dim = 2;
    c.vocab_size = 3;
    c.conv_size = 2;
    c.cache_window = 3;
    c.cache_chunk = 4;
    MUST(hola_model_new(&m, &c, 1, &(hola_options){.threads = 1}) == HOLA_OK);
    MUST(hola_session_new(&s, m) == HOLA_OK); /* as long as the program */
    return s;
}

/* 0 to 2: files in the three types. */
static struct seed seed_at(size_t i) {
    static char *file[TYPES];
    static int64_t size[TYPES];
    const int32_t ids[] = {0, 1, 2, 1, 0, 2, 2, 1, 0};
    float logits[3];
    if (i >= TYPES) return (struct seed){NULL, 0};
    if (!file[i]) {
        hola_session *s = tiny_session();
        hola_session_reset(s);
        MUST(hola_session_feed(s, ids, 5 + (int64_t)i, logits) == HOLA_OK);
        MUST(hl_snapshot_make(s, "f", (hola_dtype)i, &file[i], &size[i]) == HOLA_OK);
    }
    return (struct seed){file[i], (size_t)size[i]};
}

static void try(const char *data, size_t size) {
    hola_session *s = tiny_session();
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
    try((const char *)data, size);
    if (size < 128) return 0;
    char *copy = malloc(size);
    MUST(copy);
    memcpy(copy, data, size);
    const uint64_t bytes = size;
    memcpy(copy, seed_at(0).data, 24); /* magic, version and model too: the type is the input's */
    memcpy(copy + 12, data + 12, 4);
    memcpy(copy + 24, &bytes, 8);
    const uint64_t sum = hl_snapshot_sum(copy, (int64_t)size);
    memcpy(copy + 56, &sum, 8);
    try(copy, size);
    free(copy);
    return 0;
}
