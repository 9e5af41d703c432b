/* decode_case.h -- models of all kinds that the fused decoders support, and the distance between logits. */
#ifndef HL_DECODE_CASE_H
#define HL_DECODE_CASE_H
#include "cuda.h"
#include "model/session.h"
#include "models.h"

#define BODY_OF(inner)                                                                                       \
    "\"num_hidden_layers\":2,\"vocab_size\":101,\"intermediate_size\":" inner ",\"initializer_range\":0.15," \
    "\"cache_gate_init\":0.5,"
#define BODY BODY_OF("96")
#define HOLA_64 "\"model_type\":\"hola\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":64,\"expand_v\":1,"
#define HOLA_32 "\"model_type\":\"hola\",\"hidden_size\":128,\"num_heads\":3,\"head_dim\":32,\"expand_v\":1,"
#define SMALL_CACHE "\"cache_window\":16,\"cache_chunk\":32"
/* the sizes of a preset, which has a kernel of its own */
#define PRESET                                                                                       \
    "\"model_type\":\"hola\",\"num_hidden_layers\":1,\"vocab_size\":101,\"initializer_range\":0.04," \
    "\"cache_gate_init\":0.5,\"num_heads\":4,\"expand_v\":1,"
static const struct variant kinds[] = {
    {"64", "{" BODY HOLA_64 SMALL_CACHE "}"},
    {"32, no gate", "{" BODY HOLA_32 SMALL_CACHE ",\"use_gate\":false,\"tie_word_embeddings\":true}"},
    {"128", "{" BODY "\"model_type\":\"hola\",\"hidden_size\":128,\"num_heads\":1,\"head_dim\":128,\"expand_"
            "v\":1," SMALL_CACHE "}"},
    {"e, value heads", "{" BODY HOLA_32 SMALL_CACHE ",\"num_v_heads\":6,\"cache_evict\":\"e\"}"},
    {"betav, wide values",
     "{" BODY "\"model_type\":\"hola\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32,\"expand_v\":2," SMALL_CACHE
     ",\"cache_evict\":\"betav\"}"},
    {"streaming", "{" BODY HOLA_64 SMALL_CACHE ",\"cache_evict\":\"streaming\",\"cache_sinks\":4}"},
    {"l2, sharp, negative",
     "{" BODY HOLA_64 SMALL_CACHE ",\"cache_norm\":\"l2\",\"cache_tau_init\":3,\"allow_neg_eigval\":true}"},
    {"window 0", "{" BODY HOLA_64 "\"cache_window\":0,\"cache_chunk\":32}"},
    {"block of 256", "{" BODY HOLA_64 "\"cache_window\":64,\"cache_chunk\":256}"},
    {"none", "{" BODY HOLA_64 "\"cache_evict\":\"none\"}"},
    {"gated_deltanet",
     "{" BODY "\"model_type\":\"gated_deltanet\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32,\"expand_v\":2}"},
    {"delta_net", "{" BODY "\"model_type\":\"delta_net\",\"hidden_size\":192,\"num_heads\":3}"},
    {"kda", "{" BODY "\"model_type\":\"kda\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32}"},
    {"kda, value heads, bound", "{" BODY "\"model_type\":\"kda\",\"hidden_size\":64,\"num_heads\":1,\"num_v_heads\":2,"
                                "\"head_dim\":64,\"lower_bound\":-5,\"allow_neg_eigval\":true}"},
    {"kda, memory", "{" BODY "\"model_type\":\"kda\",\"hidden_size\":64,\"num_heads\":2,\"head_dim\":32,"
                    "\"cache_evict\":\"betae\"," SMALL_CACHE "}"},
    {"gla", "{" BODY "\"model_type\":\"gla\",\"hidden_size\":128,\"num_heads\":2}"},
    {"gla, no gate, clamped", "{" BODY "\"model_type\":\"gla\",\"hidden_size\":64,\"num_heads\":1,"
                              "\"use_output_gate\":false,\"clamp_min\":-0.02}"},
    {"gsa", "{" BODY "\"model_type\":\"gsa\",\"hidden_size\":64,\"num_heads\":2}"},
    {"transformer", "{" BODY "\"model_type\":\"transformer\",\"hidden_size\":128,\"num_heads\":2}"},
    {"transformer, grouped", "{" BODY "\"model_type\":\"transformer\",\"hidden_size\":256,\"num_heads\":4,"
                             "\"num_kv_heads\":2}"},
    {"transformer, 128", "{" BODY "\"model_type\":\"transformer\",\"hidden_size\":128,\"num_heads\":1}"},
    {"gsa, one head", "{" BODY "\"model_type\":\"gsa\",\"hidden_size\":128,\"num_heads\":1}"},
    {"192, three chunks", "{" BODY_OF("512") "\"model_type\":\"hola\",\"hidden_size\":192,\"num_heads\":2,"
                                             "\"head_dim\":64,\"expand_v\":1," SMALL_CACHE "}"},
    {"46m", "{" PRESET "\"hidden_size\":512,\"head_dim\":128,\"intermediate_size\":768}"},
    {"340m", "{" PRESET "\"hidden_size\":1024,\"head_dim\":256,\"intermediate_size\":2816,\"use_gate\":false}"},
    {"384, value heads", "{" BODY "\"model_type\":\"hola\",\"hidden_size\":384,\"num_heads\":2,\"num_v_heads\":4,"
                         "\"head_dim\":64,\"expand_v\":1," SMALL_CACHE "}"},
    {"window of four blocks", "{" BODY HOLA_64 "\"cache_window\":40,\"cache_chunk\":12}"},
};
enum {
    ALL_KINDS = sizeof kinds / sizeof *kinds,
    KINDS = ALL_KINDS - 4
}; /* without the presets, which take long, and two for decode_batch */

static bool slow;
#define NEEDS_DEVICE() \
    if (!dev_there(&slow)) skip()

static inline hola_model *model_of(int kind, const char *backend, bool unfused) {
    hola_options opt = {.threads = 1, .backend = backend};
    hola_config cfg;
    hola_model *m;
    CHECK_OK(hl_config_parse(&cfg, kinds[kind].json, (int64_t)strlen(kinds[kind].json), kinds[kind].name));
    CHECK_OK(hola_model_new(&m, &cfg, 7, &opt));
    m->decoder.off = unfused;
    m->decoder.always = true;
    return m;
}
static inline double distance(const float *x, const float *y, int64_t n) {
    double num = 0, den = 0;
    for (int64_t i = 0; i < n; i++) {
        num += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        den += (double)y[i] * y[i];
    }
    double e = sqrt(num / den);
    return e == e ? e : 1e30;
}

#endif
