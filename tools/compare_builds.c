/* compare_builds.c -- prints everything that a build of hola computes, as lines "name = value", where the value is a
 * hash of bytes or a number with all its bits. compare_builds.sh compiles this file against two trees and compares the
 * output, so it uses only hola.h. It works in the current directory and leaves its files there (KIND/model, KIND/f32
 * ..., KIND/session.f32 ...), for --read by another build. */
#define _GNU_SOURCE
#include "hola.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char usage[] =
    "usage: compare_builds [options]\n\n"
    "  --backend NAME  as in hola_options (default cpu)\n"
    "  --threads N     default 1\n"
    "  --kind A,B,...  these kinds of models alone\n"
    "  --presets       the presets, and a model of 46m, instead of the kinds\n"
    "  --read DIR      load the models and sessions that a run left in DIR and go on with them\n"
    "  --list          the kinds\n";

/* ---- what is compared ---- */

/* Small sizes and short blocks, so that many of them close; zero means the default of complete(). */
struct kind {
    const char *name;
    hola_model_type type;
    hola_evict evict;
    hola_cache_norm norm;
    int64_t hidden, layers, heads, groups, dk, dv, vocab, chunk, window;
    bool no_gate, no_conv, no_window, tied, negative, no_beta, tau;
    /* the baselines: groups is query heads per key head, or with kda value heads; sees is window_size */
    int64_t sees;
    hola_feature_map map;
    bool biased, normed, no_weights, bounded;
    bool large; /* a size with its own fast path: skipped with cpu-ref, which would take minutes */
};
#define GDN .type = HOLA_TYPE_GATED_DELTANET
#define DN .type = HOLA_TYPE_DELTA_NET
#define KDA .type = HOLA_TYPE_KDA
#define GLA .type = HOLA_TYPE_GLA
#define GSA .type = HOLA_TYPE_GSA
#define ATTENTION .type = HOLA_TYPE_TRANSFORMER
static const struct kind kinds[] = {
    {"betae", .layers = 3},
    {"e", .evict = HOLA_EVICT_E},
    {"betav", .evict = HOLA_EVICT_BETAV},
    {"recency", .evict = HOLA_EVICT_RECENCY},
    {"h2o", .evict = HOLA_EVICT_H2O},
    {"none", .evict = HOLA_EVICT_NONE},
    {"betae-l2", .norm = HOLA_NORM_L2, .tau = true},
    {"e-l2", .evict = HOLA_EVICT_E, .norm = HOLA_NORM_L2},
    {"betav-l2", .evict = HOLA_EVICT_BETAV, .norm = HOLA_NORM_L2, .chunk = 32},
    {"recency-l2", .evict = HOLA_EVICT_RECENCY, .norm = HOLA_NORM_L2, .tau = true},
    {"h2o-l2", .evict = HOLA_EVICT_H2O, .norm = HOLA_NORM_L2, .tau = true},
    {"tau", .tau = true, .chunk = 32, .window = 16},
    {"nogate", .no_gate = true, .tied = true},
    {"noconv", .no_conv = true},
    {"noconv-nogate", .no_conv = true, .no_gate = true, .evict = HOLA_EVICT_H2O},
    {"grouped", .groups = 2},
    {"grouped-h2o", .groups = 2, .dv = 32, .evict = HOLA_EVICT_H2O, .chunk = 32},
    {"negative", .negative = true},
    {"dv", .dv = 24},
    {"window0", .no_window = true},
    {"chunk64", .large = true, .chunk = 64, .window = 16, .layers = 3, .dk = 32},
    {"odd", .hidden = 60, .heads = 3, .dk = 20, .dv = 28, .vocab = 301, .chunk = 24, .window = 5},
    {"paper", .chunk = 256, .window = 64},
    {"head64", .large = true, .hidden = 128, .dk = 64, .chunk = 64, .window = 16},
    {"head128", .large = true, .hidden = 128, .layers = 1, .heads = 1, .dk = 128, .chunk = 64, .window = 16,
     .tied = true},
    {"head256", .large = true, .hidden = 128, .layers = 1, .heads = 1, .dk = 256, .chunk = 64, .window = 16},
    {"gdn", GDN, .layers = 3},
    {"gdn-nogate", GDN, .no_gate = true, .tied = true},
    {"gdn-noconv", GDN, .no_conv = true},
    {"gdn-grouped", GDN, .groups = 2, .dv = 32},
    {"gdn-negative", GDN, .negative = true},
    {"gdn-head128", GDN, .large = true, .hidden = 128, .layers = 1, .heads = 1, .dk = 128},
    {"dn", DN, .no_gate = true, .layers = 3},
    {"dn-gate", DN, .tied = true},
    {"dn-nobeta", DN, .no_gate = true, .no_beta = true},
    {"dn-noconv", DN, .no_conv = true, .no_gate = true},
    {"dn-negative", DN, .negative = true, .no_gate = true, .dv = 24},
    {"dn-head128", DN, .large = true, .hidden = 128, .layers = 1, .heads = 1, .dk = 128, .no_gate = true},
    {"streaming", .evict = HOLA_EVICT_STREAMING},
    {"lola", .evict = HOLA_EVICT_LOLA, .groups = 2},
    {"lola-l2", .evict = HOLA_EVICT_LOLA, .norm = HOLA_NORM_L2},
    {"lte", .evict = HOLA_EVICT_LTE},
    {"kda", KDA, .evict = HOLA_EVICT_NONE, .layers = 3},
    {"kda-grouped", KDA, .evict = HOLA_EVICT_NONE, .groups = 2, .dv = 32, .negative = true},
    {"kda-bounded", KDA, .evict = HOLA_EVICT_NONE, .no_conv = true, .bounded = true, .tied = true},
    {"kda-memory", KDA, .groups = 2},
    {"kda-lte", KDA, .evict = HOLA_EVICT_LTE, .norm = HOLA_NORM_L2},
    {"gla", GLA, .no_conv = true, .layers = 3},
    {"gla-conv", GLA, .groups = 2, .heads = 4, .dv = 24, .map = HOLA_MAP_RELU},
    {"gla-nogate", GLA, .no_conv = true, .no_gate = true, .no_weights = true, .map = HOLA_MAP_SQRELU},
    {"gsa", GSA, .hidden = 32, .no_conv = true, .layers = 3, .map = HOLA_MAP_SWISH},
    {"gsa-conv", GSA, .hidden = 64, .groups = 2, .heads = 4, .map = HOLA_MAP_RELU, .no_weights = true},
    {"transformer", ATTENTION, .layers = 3},
    {"transformer-grouped", ATTENTION, .groups = 2, .heads = 4, .tied = true},
    {"transformer-normed", ATTENTION, .normed = true, .biased = true},
    {"transformer-window", ATTENTION, .sees = 20, .groups = 2, .biased = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds, STEPPED = 17 };
static const char *const types[HOLA_DTYPE_COUNT] = {"f32", "bf16", "f16", "int8", "int4"};

static struct kind complete(struct kind k) {
    if (!k.hidden) k.hidden = 64;
    if (!k.layers) k.layers = 2;
    if (!k.heads) k.heads = 2;
    if (!k.groups) k.groups = 1;
    if (!k.dk) k.dk = 16;
    if (!k.dv) k.dv = k.dk;
    if (!k.vocab) k.vocab = 300;
    if (!k.chunk) k.chunk = 16;
    if (!k.window) k.window = 8;
    if (k.no_window) k.window = 0;
    return k;
}

/* ---- lines ---- */

static char scope[256]; /* prefix of names */
static char dir[128];   /* directory of the kind */
static hola_options options = {.threads = 1, .backend = "cpu"};

static void put(const char *value, const char *name, ...) __attribute__((format(printf, 2, 3)));
static void put(const char *value, const char *name, ...) {
    va_list args;
    va_start(args, name);
    printf("%s/", scope);
    vprintf(name, args);
    printf(" = %s\n", value);
    va_end(args);
}
/* true on success; else prints the failure, which the other build must then print as well */
static bool went(hola_status s, const char *what) {
    char text[512];
    if (s == HOLA_OK) return true;
    snprintf(text, sizeof text, "error: %s: %s", hola_status_text(s), hola_last_error());
    put(text, "%s", what);
    return false;
}
static const char *exact(double x) { /* a number with all its bits */
    static char text[64];
    snprintf(text, sizeof text, "%a (%.6g)", x, x);
    return text;
}
static const char *whole(int64_t x) {
    static char text[32];
    snprintf(text, sizeof text, "%" PRId64, x);
    return text;
}

static uint64_t hash_more(uint64_t h, const void *data, int64_t bytes) { /* FNV-1a */
    const unsigned char *p = data;
    for (int64_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}
static uint64_t hash_of(const void *data, int64_t bytes) { return hash_more(0xcbf29ce484222325u, data, bytes); }
static const char *hex(uint64_t h) {
    static char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, h);
    return text;
}
static const char *floats(const float *x, int64_t n) { return hex(hash_of(x, n * (int64_t)sizeof *x)); }
static const char *numbers(const int32_t *x, int64_t n) { return hex(hash_of(x, n * (int64_t)sizeof *x)); }

static void *room(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) fprintf(stderr, "compare_builds: no memory\n"), exit(2);
    return p;
}
/* the bytes of dir/file; NULL: missing */
static char *bytes_of(const char *file, int64_t *size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *size = ftell(f);
    rewind(f);
    char *data = room(*size, 1);
    if (fread(data, 1, (size_t)*size, f) != (size_t)*size) *size = 0;
    fclose(f);
    return data;
}
static void put_file(const char *file) {
    int64_t size = 0;
    char *data = bytes_of(file, &size);
    put(data ? hex(hash_of(data, size)) : "missing", "%s", file);
    free(data);
}
static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static int32_t *some_ids(int64_t n, int64_t vocab, uint64_t seed) {
    int32_t *ids = room(n, sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(mix(seed * 1000003 + (uint64_t)i) % (uint64_t)vocab);
    return ids;
}

/* ---- models ---- */

static bool model_of(const struct kind *k, hola_model **out) {
    hola_config c;
    *out = NULL;
    if (!went(hola_config_preset(&c, "46m", k->type), "preset")) return false;
    c.hidden_size = k->hidden, c.num_hidden_layers = k->layers, c.intermediate_size = 3 * k->hidden / 2;
    c.vocab_size = k->vocab, c.num_heads = k->heads, c.num_v_heads = k->heads * k->groups;
    c.head_dim = k->dk, c.head_v_dim = k->dv, c.conv_size = k->no_conv ? 0 : 4;
    c.initializer_range = 0.2; /* varied logits */
    c.use_gate = !k->no_gate, c.tie_word_embeddings = k->tied, c.allow_neg_eigval = k->negative;
    c.use_beta = !k->no_beta;
    c.num_kv_heads = k->heads / k->groups, c.window_size = k->sees, c.qkv_bias = k->biased, c.qk_norm = k->normed;
    c.feature_map = k->map, c.elementwise_affine = !k->no_weights, c.num_slots = 12;
    if (k->bounded) c.lower_bound = -5, c.safe_gate = true;
    if (k->type == HOLA_TYPE_HOLA || k->type == HOLA_TYPE_KDA) {
        c.cache_evict = k->evict, c.cache_norm = k->norm, c.cache_window = k->window, c.cache_chunk = k->chunk;
        c.cache_gate_init = 0.5, c.cache_tau_freeze = !k->tau; /* so that the memory has an effect */
    }
    return went(hola_config_check(&c), "check") && went(hola_model_new(out, &c, 7, &options), "new");
}

static void put_tensors(const hola_model *m, const char *what) {
    for (int64_t i = 0; i < hola_model_tensor_count(m); i++) {
        hola_tensor_info t;
        if (!went(hola_model_tensor(m, i, &t), what)) return;
        float *x = room(t.count, sizeof *x);
        if (went(hola_model_tensor_read(m, i, x), what)) {
            uint64_t h = hash_of(x, t.count * (int64_t)sizeof *x);
            h = hash_more(h, t.dim, t.ndim * (int64_t)sizeof *t.dim);
            put(hex(h), "%s/%s/%s%s", what, t.name, hola_dtype_name(t.dtype), t.trained ? "" : "/frozen");
        }
        free(x);
    }
}

/* A new model has norms of 1 and equal biases; this makes every weight differ from its neighbours, so that none can be
 * mistaken for another. Done in the file, because hola.h cannot change weights. */
static bool stir(const char *file) {
    int64_t size = 0;
    uint64_t head = 0;
    char path[512], *data = bytes_of(file, &size);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (data && size > 8) memcpy(&head, data, 8);
    for (int64_t i = 8 + (int64_t)head; data && i + 4 <= size; i += 4) {
        float x;
        const double r = (double)(mix((uint64_t)i) >> 11) * 0x1p-52 - 1;
        memcpy(&x, data + i, 4);
        x = (float)(x * (1 + 0.25 * r) + 0.02 * r);
        memcpy(data + i, &x, 4);
    }
    FILE *f = data ? fopen(path, "wb") : NULL;
    bool good = f && fwrite(data, 1, (size_t)size, f) == (size_t)size;
    if (f) good = fclose(f) == 0 && good;
    free(data);
    if (!good) put("error: cannot be written", "%s", file);
    return good;
}

static bool load(hola_model **out, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = NULL;
    return went(hola_model_load(out, path, &options), name);
}

/* ---- training ---- */

static bool accumulate(hola_trainer *t, const struct kind *k, uint64_t seed, bool learn, const char *what) {
    const int64_t c = k->chunk, n = c > 64 ? 2 * c + 2 * c / 3 : 4 * c + 11;
    /* documents of exactly one block, one token less, one token, and longer ones */
    const int64_t starts[] = {0, c, 2 * c - 1, 2 * c, 2 * c + 5};
    const int64_t n_starts = learn ? 5 : 1; /* and a single document */
    int32_t *ids = some_ids(n, k->vocab, seed);
    double loss = 0;
    int64_t targets = 0;
    hola_status s = learn ? hola_trainer_accumulate(t, ids, n, starts, n_starts, 1.0 / (double)n, &loss, &targets)
                          : hola_trainer_evaluate(t, ids, n, starts, n_starts, &loss, &targets);
    free(ids);
    if (!went(s, what)) return false;
    put(exact(loss), "%s/loss%" PRIu64, what, seed);
    put(whole(targets), "%s/targets%" PRIu64, what, seed);
    return true;
}

static void train(const struct kind *k, bool recompute, bool plain, int updates) {
    char what[64];
    hola_model *m;
    hola_trainer *t = NULL;
    double norm = 0;
    hola_train_opts o = {.max_tokens = 8 * k->chunk, .recompute = recompute};
    /* AdamW divides by the gradient's magnitude, and adding the result to a weight hides most of the rest. With a large
     * eps, no decay and no clipping, a step is -1000 times the gradient, whose bits then show in the weights. */
    if (plain) o.eps = 1e3, o.weight_decay = -1, o.clip = -1;
    snprintf(what, sizeof what, "%s%s", plain ? "gradient" : "train", recompute ? "-recompute" : "");
    if (!load(&m, "model")) return;
    bool good = went(hola_trainer_new(&t, m, &o), what);
    for (int i = 0; good && i < updates; i++) {
        good = accumulate(t, k, (uint64_t)(2 * i), true, what);
        if (!plain) good = good && accumulate(t, k, (uint64_t)(2 * i + 1), true, what);
        good = good && went(hola_trainer_update(t, plain ? 1e6 : 1e-2, &norm), what);
        put(exact(norm), "%s/norm%d", what, i);
    }
    if (good && !plain) accumulate(t, k, 99, false, what);
    hola_trainer_free(t);
    if (good) put_tensors(m, what);
    hola_model_free(m);
}

/* ---- sessions ---- */

struct run {
    const struct kind *k;
    hola_model *m;
    int32_t *ids; /* [n], fed from the beginning */
    int64_t n, vocab, chunk;
    float *logits; /* [n][vocab] */
};

/* a new session that has been fed the first n ids */
static hola_session *fed(const struct run *r, int64_t n, const char *what) {
    hola_session *s = NULL;
    if (!went(hola_session_new(&s, r->m), what)) return NULL;
    if (n == 0 || went(hola_session_feed(s, r->ids, n, r->logits), what)) return s;
    hola_session_free(s);
    return NULL;
}
/* feeds one more token, then several: what a session has stored shows in its next logits */
static void put_next(const struct run *r, hola_session *s, int64_t more, const char *what) {
    const int64_t at = hola_session_position(s), v = r->vocab;
    if (at + 1 + more > r->n || !went(hola_session_feed(s, r->ids + at, 1, r->logits), what)) {
        put("error: out of tokens, or not fed", "%s", what);
        return;
    }
    uint64_t h = hash_of(r->logits, v * 4);
    for (int64_t i = 0; i < more && i < 3; i++)
        if (went(hola_session_feed(s, r->ids + at + 1 + i, 1, r->logits), what)) h = hash_more(h, r->logits, v * 4);
    if (more > 3 && went(hola_session_feed(s, r->ids + at + 4, more - 3, r->logits), what))
        h = hash_more(h, r->logits, v * 4);
    put(hex(h), "%s", what);
}

static void feeds(const struct run *r) {
    const int64_t c = r->chunk, v = r->vocab, n = 2 * c + 3;
    const int64_t lengths[] = {1, 2, 5, c - 1, c, c + 1, 2 * c - 1, 2 * c, 2 * c + 3, r->n - 20};
    const int64_t pieces[] = {1, 7, c, 3, c - 1, 2, c + 1, 1};
    char what[64];
    hola_session *s;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        snprintf(what, sizeof what, "prefill%" PRId64, lengths[i]);
        if (!(s = fed(r, lengths[i], what))) continue;
        put(floats(r->logits, v), "%s", what);
        put_next(r, s, 6, strcat(what, "/next"));
        hola_session_free(s);
    }
    if ((s = fed(r, 0, "bytes"))) {
        put(whole(hola_session_bytes(s)), "bytes");
        for (int64_t i = 0; i < n; i++) hola_session_feed(s, r->ids + i, 1, r->logits + i * v);
        put(floats(r->logits, n * v), "one by one");
        hola_session_reset(s);
        int64_t at = 0;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces && at + pieces[i] < r->n; at += pieces[i++])
            if (went(hola_session_feed(s, r->ids + at, pieces[i], r->logits), "pieces"))
                put(floats(r->logits, v), "pieces/%" PRId64, at + pieces[i]);
        int32_t recent[HOLA_RECENT];
        const int64_t had = hola_session_recent(s, recent, HOLA_RECENT);
        put(numbers(recent, had), "recent/%" PRId64, had);
    }
    hola_session_free(s);
    if ((s = fed(r, 3, "each")) && went(hola_session_feed_each(s, r->ids + 3, n - 3, r->logits), "each")) {
        for (int64_t at = 0; at < n - 3; at += c)
            put(floats(r->logits + at * v, (n - 3 - at < c ? n - 3 - at : c) * v), "each/%" PRId64, at);
        put_next(r, s, 2, "each/next");
    }
    hola_session_free(s);
    double *p = room(n, sizeof *p), sum = 0;
    if ((s = fed(r, 2, "score")) && went(hola_session_score(s, r->ids + 2, r->ids + 3, n - 2, p), "score")) {
        for (int64_t i = 0; i < n - 2; i++) sum += p[i];
        put(hex(hash_of(p, (n - 2) * (int64_t)sizeof *p)), "score");
        put(exact(sum), "score/sum");
        put_next(r, s, 2, "score/next");
    }
    hola_session_free(s);
    free(p);
}

/* several sessions in one batch, at different positions, across block ends */
static void steps(const struct run *r) {
    const int64_t v = r->vocab;
    const hola_sampling ways[] = {
        hola_sampling_default(),
        {.repeat_penalty = 1, .top_p = 1},
        {.repeat_penalty = 1.3, .repeat_last_n = 16, .top_k = 0, .top_p = 0.9, .min_p = 0, .temp = 1.2},
        {.repeat_penalty = 1, .repeat_last_n = 64, .top_k = 5, .top_p = 1, .min_p = 0, .temp = 0.7}};
    for (int size = 1; size <= STEPPED; size = size == 1 ? 3 : size == 3 ? 8 : size + 9) {
        hola_session *s[STEPPED] = {0};
        int32_t ids[STEPPED];
        char what[64];
        bool good = true;
        snprintf(what, sizeof what, "step%d", size);
        good = (s[0] = fed(r, r->chunk - 6, what)) != NULL;
        for (int i = 1; i < size && good; i++) /* each three tokens after the previous */
            good = went(hola_session_clone(&s[i], s[i - 1]), what) &&
                   went(hola_session_feed(s[i], r->ids + hola_session_position(s[i]), 3, NULL), what);
        for (int j = 0; j < 9 && good; j++) {
            for (int i = 0; i < size; i++) ids[i] = r->ids[hola_session_position(s[i])];
            good = went(hola_session_step(s, size, ids, r->logits), what);
            if (good) put(floats(r->logits, size * v), "%s/%d", what, j);
        }
        for (int i = 0; i < size && good; i++) hola_session_seed(s[i], 11 * (uint64_t)i + 1);
        for (size_t w = 0; w < sizeof ways / sizeof *ways && good; w++) {
            uint64_t h = 1;
            for (int j = 0; j < 5 && good; j++) {
                good = went(hola_session_step_sample(s, size, ids, &ways[w], ids), what);
                h = hash_more(h, ids, size * (int64_t)sizeof *ids);
            }
            put(hex(h), "%s/sample%zu", what, w);
        }
        if (good && hola_session_position(s[0]) < r->n - 4) put_next(r, s[0], 1, what);
        for (int i = 0; i < size; i++) hola_session_free(s[i]);
    }
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) { /* a single session, sampled from the logits */
        const int64_t n = r->chunk + 9;
        int32_t *ids = room(n, sizeof *ids);
        hola_session *s = fed(r, 5, "sample");
        if (s) hola_session_seed(s, 42);
        for (int64_t i = 0; s && i < n; i++)
            if (!went(hola_session_sample(s, &ways[w], &ids[i]), "sample") ||
                !went(hola_session_feed(s, &ids[i], 1, r->logits), "sample"))
                break;
        put(numbers(ids, n), "sample%zu/alone", w);
        if (s) put(hex(hola_session_seed_of(s)), "sample%zu/seed", w);
        hola_session_free(s);
        free(ids);
    }
}

static void back_and_forth(const struct run *r) {
    const int64_t c = r->chunk, back[] = {0, 1, 2, 5, 8};
    hola_session *s = fed(r, c + c / 2, "clone"), *other = NULL;
    if (s && went(hola_session_clone(&other, s), "clone")) {
        put_next(r, s, c, "clone/first");
        put_next(r, other, c / 2, "clone/second");
        put_next(r, other, 4, "clone/second/on");
    }
    hola_session_free(other);
    hola_session_free(s);
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) { /* eight tokens across the end of a block */
        if (!(s = fed(r, 2 * c - 3, "rollback"))) return;
        if (went(hola_session_mark(s), "mark") && went(hola_session_feed(s, r->ids + 2 * c - 3, 8, NULL), "feed") &&
            went(hola_session_rollback(s, back[i]), "rollback")) {
            char what[64];
            snprintf(what, sizeof what, "rollback%" PRId64, back[i]);
            put(whole(hola_session_position(s)), "%s/position", what);
            put_next(r, s, 6, what);
        }
        hola_session_free(s);
    }
    hola_history *h = NULL;
    const hola_history_opts o = {.every = c / 2, .most = 4};
    int64_t reused = 0;
    int32_t *ids = room(r->n, sizeof *ids);
    memcpy(ids, r->ids, (size_t)r->n * sizeof *ids);
    s = fed(r, 0, "history");
    if (s && went(hola_history_new(&h, s, &o), "history") &&
        went(hola_history_feed(h, ids, 2 * c + 5, r->logits), "history")) {
        put(floats(r->logits, r->vocab), "history/feed");
        went(hola_history_keep(h), "history/keep");
        ids[c + 3] = (ids[c + 3] + 1) % (int32_t)r->vocab; /* different text from here on */
        if (went(hola_history_prompt(h, ids, 2 * c + 1, r->logits, &reused), "history/prompt")) {
            put(floats(r->logits, r->vocab), "history/prompt");
            put(whole(reused), "history/prompt/reused");
        }
        if (went(hola_history_rollback(h, c + 2), "history/rollback")) {
            put(whole(hola_session_position(s)), "history/rollback/position");
            put_next(r, s, 5, "history/rollback");
        }
    }
    hola_history_free(h);
    hola_session_free(s);
    free(ids);
}

/* ---- files ---- */

static const char *session_path(hola_dtype t) {
    static char path[256];
    snprintf(path, sizeof path, "%s/session.%s", dir, types[t]);
    return path;
}

/* also used by --read with another build's files */
static void read_sessions(const struct run *r) {
    for (int t = 0; t <= HOLA_F16; t++) {
        char what[64];
        hola_session *s = fed(r, 1, "session");
        snprintf(what, sizeof what, "session.%s/read", types[t]);
        if (s && went(hola_session_load(s, session_path((hola_dtype)t)), what)) {
            const float *x = hola_session_logits(s);
            put(x ? floats(x, r->vocab) : "none", "%s/logits", what);
            put(whole(hola_session_position(s)), "%s/position", what);
            put(hex(hola_session_seed_of(s)), "%s/seed", what);
            put_next(r, s, r->chunk, what);
        }
        hola_session_free(s);
    }
}
static void read_models(struct run *r) {
    hola_model *of_run = r->m;
    for (int t = 0; t < HOLA_DTYPE_COUNT; t++) {
        char what[64];
        if (!load(&r->m, types[t])) continue;
        put_tensors(r->m, types[t]);
        hola_session *s = fed(r, r->chunk + 7, types[t]);
        if (s) {
            snprintf(what, sizeof what, "%s/logits", types[t]);
            put(floats(r->logits, r->vocab), "%s", what);
            put_next(r, s, r->chunk, strcat(what, "/next"));
        }
        hola_session_free(s);
        hola_model_free(r->m);
    }
    r->m = of_run;
}
static void write_files(const struct run *r) {
    char path[256];
    for (int t = 0; t < HOLA_DTYPE_COUNT; t++) {
        snprintf(path, sizeof path, "%s/%s", dir, types[t]);
        if (!went(hola_model_save(r->m, path, (hola_dtype)t), types[t])) continue;
        snprintf(path, sizeof path, "%s/model.safetensors", types[t]);
        put_file(path);
        snprintf(path, sizeof path, "%s/config.json", types[t]);
        put_file(path);
    }
    hola_session *s = fed(r, r->chunk + r->chunk / 2 + 1, "session");
    if (s) hola_session_seed(s, 77);
    for (int t = 0; s && t <= HOLA_F16; t++) {
        if (went(hola_session_save(s, session_path((hola_dtype)t), (hola_dtype)t), "session"))
            put_file(session_path((hola_dtype)t) + strlen(dir) + 1);
    }
    hola_session_free(s);
}

/* ---- all of it ---- */

static void compare_kind(const struct kind *k, const char *from) {
    struct run r = {.k = k, .n = 4 * k->chunk + 40, .vocab = k->vocab, .chunk = k->chunk};
    hola_model *m = NULL;
    r.ids = some_ids(r.n, r.vocab, 5);
    r.logits = room(r.n * r.vocab, sizeof *r.logits);
    snprintf(scope, sizeof scope, "%s", k->name);
    snprintf(dir, sizeof dir, "%s%s%s", from ? from : "", from ? "/" : "", k->name);
    if (!from) {
        char path[256];
        snprintf(path, sizeof path, "%s/model", dir);
        bool good = model_of(k, &m);
        if (good) put(whole(hola_config_parameters(hola_model_config(m))), "parameters");
        if (good) put_tensors(m, "new");
        good = good && went(hola_model_save(m, path, HOLA_F32), "save");
        hola_model_free(m);
        if (good) put_file("model/model.safetensors"), put_file("model/config.json");
        good = good && stir("model/model.safetensors");
        for (int i = 0; i < 4 && good; i++) train(k, i & 1, i < 2, i < 2 ? 1 : 3);
    }
    if (load(&r.m, "model")) {
        if (!from) {
            hola_trainer *t = NULL;
            hola_train_opts o = {.max_tokens = 8 * k->chunk};
            if (went(hola_trainer_new(&t, r.m, &o), "evaluate")) accumulate(t, k, 3, false, "evaluate");
            hola_trainer_free(t);
            feeds(&r);
            steps(&r);
            back_and_forth(&r);
            write_files(&r);
        }
        read_sessions(&r);
        read_models(&r);
    }
    hola_model_free(r.m);
    free(r.ids);
    free(r.logits);
    fflush(stdout);
}

#define N1 "%" PRId64 " "
#define N4 N1 N1 N1 N1
static void compare_preset(const char *name, hola_model_type type) {
    hola_config c;
    hola_model *m = NULL;
    char path[256], text[512];
    snprintf(scope, sizeof scope, "preset/%s/%s", hola_model_type_name(type), name);
    snprintf(dir, sizeof dir, "preset-%s-%s", hola_model_type_name(type), name);
    if (!went(hola_config_preset(&c, name, type), "preset")) return;
    put(whole(hola_config_parameters(&c)), "parameters");
    snprintf(text, sizeof text, "%d %d %d, %d %d %d %d, %d", c.model_type, c.cache_evict, c.cache_norm, c.use_gate,
             c.tie_word_embeddings, c.allow_neg_eigval, c.use_beta, c.cache_tau_freeze);
    put(text, "choices");
    snprintf(text, sizeof text, N4 ", " N4 ", " N4 N1 N1, c.hidden_size, c.num_hidden_layers, c.intermediate_size,
             c.vocab_size, c.num_heads, c.num_v_heads, c.head_dim, c.head_v_dim, c.conv_size, c.max_position_embeddings,
             c.bos_token_id, c.eos_token_id, c.cache_window, c.cache_chunk);
    put(text, "sizes");
    snprintf(text, sizeof text, "%a %a %a %a %a", c.norm_eps, c.initializer_range, c.hidden_ratio, c.cache_gate_init,
             c.cache_tau_init);
    put(text, "numbers");
    /* its config.json, from a model that keeps everything except the sizes that cost memory */
    c.num_hidden_layers = 1, c.vocab_size = 16, c.intermediate_size = 32;
    if (!went(hola_model_new(&m, &c, 3, &options), "new")) return;
    snprintf(path, sizeof path, "%s/small", dir);
    if (went(hola_model_save(m, path, HOLA_BF16), "save")) put_file("small/config.json");
    put_tensors(m, "small");
    hola_model_free(m);
}

static void compare_presets(void) {
    static const char *const sizes[] = {"46m", "170m", "340m"}, *const gates[] = {"", "-gate", "-nogate"};
    const struct kind k = complete((struct kind){.vocab = 32000, .chunk = 64});
    struct run r = {.k = &k, .n = 400, .vocab = k.vocab, .chunk = 64};
    for (int i = 0; i < 9 * HOLA_TYPE_COUNT; i++) {
        char name[32];
        if (i % 3 && i / 9 > HOLA_TYPE_DELTA_NET) continue; /* one preset of each size */
        snprintf(name, sizeof name, "%s%s", sizes[i / 3 % 3], gates[i % 3]);
        compare_preset(name, (hola_model_type)(i / 9));
    }
    snprintf(scope, sizeof scope, "46m");
    snprintf(dir, sizeof dir, "46m");
    hola_config c;
    r.ids = some_ids(r.n, r.vocab, 5);
    r.logits = room(r.vocab, sizeof *r.logits);
    if (went(hola_config_preset(&c, "46m", HOLA_TYPE_HOLA), "preset") &&
        went(hola_model_new(&r.m, &c, 1, &options), "new")) {
        put_tensors(r.m, "new");
        if (went(hola_model_save(r.m, "46m/bf16", HOLA_BF16), "save"))
            put_file("bf16/model.safetensors"), put_file("bf16/config.json");
        hola_session *s = fed(&r, 300, "prefill");
        if (s) put(floats(r.logits, r.vocab), "prefill"), put_next(&r, s, 8, "next");
        hola_session_free(s);
    }
    hola_model_free(r.m);
    free(r.ids);
    free(r.logits);
}

static bool listed(const char *list, const char *name) { /* a name in a comma-separated list */
    const size_t n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)); p++)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return true;
    return false;
}

int main(int argc, char **argv) {
    const char *only = NULL, *from = NULL;
    bool presets = false;
    int done = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--presets")) presets = true;
        else if (!strcmp(argv[i], "--list"))
            for (int j = 0; j < KINDS; j++) done = printf("%s\n", kinds[j].name);
        else if (value && !strcmp(argv[i], "--backend")) options.backend = value, i++;
        else if (value && !strcmp(argv[i], "--threads")) options.threads = atoi(value), i++;
        else if (value && !strcmp(argv[i], "--kind")) only = value, i++;
        else if (value && !strcmp(argv[i], "--read")) from = value, i++;
        else return fputs(usage, stderr), 2;
    }
    if (done) return 0;
    hola_config c;
    hola_model *m = NULL;
    /* status 3: this machine or build lacks the backend */
    if (hola_config_preset(&c, "46m", HOLA_TYPE_HOLA) == HOLA_OK) c.vocab_size = 16, c.num_hidden_layers = 1;
    if (hola_model_new(&m, &c, 1, &options) != HOLA_OK) {
        fprintf(stderr, "compare_builds: %s\n", hola_last_error());
        return 3;
    }
    hola_model_free(m);
    if (presets) return compare_presets(), 0;
    const bool ref = !strcmp(options.backend, "cpu-ref");
    for (int i = 0; i < KINDS; i++) {
        if (only ? !listed(only, kinds[i].name) : ref && kinds[i].large) continue;
        const struct kind k = complete(kinds[i]);
        compare_kind(&k, from);
        done++;
    }
    if (!done) fprintf(stderr, "compare_builds: %s: no such kind\n", only);
    return done ? 0 : 2;
}
