/* hola.h -- the public interface of libhola: HOLA language models and those it is compared with. C11 and C++17.
 * docs/library.md is the guide to it, examples/ has complete programs.
 *
 * Errors. Every call that can fail returns a hola_status; hola_last_error() then holds one line that says what failed
 * and where. The library never prints and never exits, except that a failed internal assertion prints one line and
 * aborts. NULL where something is needed is HOLA_EINVAL; calls that return no status then do nothing and return 0, -1,
 * false or NULL. Options may be NULL (the defaults), so may what a _free gets, and what a comment says. On failure *out
 * is NULL.
 *
 * Threads. A model is shared and read-only while sessions use it; what changes per token lives in a session. Any thread
 * may use any object, one thread at a time for each session, history, trainer and detokenizer; models and tokenizers may
 * be used by many at once. Calls that compute on one model (feed, score, step, sample after them, save, load, clone,
 * mark, rollback, train) wait for each other: one of them uses all threads of the model, and long feeds let others in
 * between two passes. To serve many sessions, step them together (hola_session_step) instead of one thread each.
 * Models do not wait for each other. After fork(), a child must not use objects of its parent.
 *
 * ABI. From version 0.2 on, a program runs with every later libhola of the same SONAME (libhola.so.0) without being
 * compiled again: functions stay, enums grow at their end, and structs named _opts, hola_options and hola_sampling grow
 * at their end. They begin with `size`, which their _INIT macro sets: the library reads that many bytes, and fields that
 * the program does not know have their defaults. A size of 0 stands for the fields of version 0.2, which every program
 * has, so `{.threads = 4}` is safe too. A larger struct than the library's is refused if it sets what the library
 * does not know. hola_config and hola_tensor_info have no size: they only change with the SONAME. */
#ifndef HOLA_H
#define HOLA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLA_VERSION_MAJOR 0
#define HOLA_VERSION_MINOR 1
#define HOLA_VERSION_PATCH 0
#define HOLA_VERSION "0.1.0"

#if defined(__GNUC__)
#define HOLA_API __attribute__((visibility("default")))
#else
#define HOLA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

#define HOLA_STATUS_LIST(X)                 \
    X(HOLA_OK, "ok")                        \
    X(HOLA_EINVAL, "invalid argument")      \
    X(HOLA_EIO, "input/output error")       \
    X(HOLA_EFORMAT, "malformed file")       \
    X(HOLA_ENOMEM, "out of memory")         \
    X(HOLA_ENOTSUP, "not supported")        \
    X(HOLA_EDEVICE, "device error")         \
    X(HOLA_ENUMERIC, "not a finite number") \
    X(HOLA_ECANCELLED, "cancelled")
#define HOLA_STATUS_ENUM(name, text) name,
typedef enum hola_status { HOLA_STATUS_LIST(HOLA_STATUS_ENUM) HOLA_STATUS_COUNT } hola_status;
#undef HOLA_STATUS_ENUM

/* The last failure of this thread, one line without a newline; valid until the thread's next failure. */
HOLA_API const char *hola_last_error(void);
HOLA_API const char *hola_status_text(hola_status s);
HOLA_API const char *hola_version(void);
/* Frees what the library says is yours and has no _free of its own: ids and texts. free() does the same where the
 * program and the library share a C library. */
HOLA_API void hola_free(void *p);

/* ---- configuration ---- */

/* INT8 and INT4: the large matrices as small integers, in groups with a scale; the rest keeps its type. */
typedef enum hola_dtype { HOLA_F32, HOLA_BF16, HOLA_F16, HOLA_INT8, HOLA_INT4, HOLA_DTYPE_COUNT } hola_dtype;
typedef enum hola_model_type {
    HOLA_TYPE_HOLA,
    HOLA_TYPE_GATED_DELTANET,
    HOLA_TYPE_DELTA_NET,
    HOLA_TYPE_TRANSFORMER,
    HOLA_TYPE_GLA,
    HOLA_TYPE_GSA,
    HOLA_TYPE_KDA,
    HOLA_TYPE_COUNT
} hola_model_type;
/* Which tokens the exact memory keeps (docs/math.md). For a token with key k and value v, e = v - k^T S' is the
 * residual: what the decayed state S' failed to predict of v. The token's write is beta e.
 *   BETAE    the largest write magnitudes m = beta |e|
 *   E        the largest residuals |e|
 *   BETAV    the largest beta |v|
 *   RECENCY  the most recent tokens
 *   H2O      the tokens that got the most attention so far
 *   NONE     none: no exact memory, and no read of it
 *   STREAMING  the first cache_sinks tokens of a document and the most recent ones
 *   LOLA     those that the state recalls worst: the largest |v - k^T S|, measured anew at the end of every block
 *   LTE      the highest scores of a learned scorer, which is trained with the model */
typedef enum hola_evict {
    HOLA_EVICT_BETAE,
    HOLA_EVICT_E,
    HOLA_EVICT_BETAV,
    HOLA_EVICT_RECENCY,
    HOLA_EVICT_H2O,
    HOLA_EVICT_NONE,
    HOLA_EVICT_STREAMING,
    HOLA_EVICT_LOLA,
    HOLA_EVICT_LTE, /* saved sessions hold these numbers: new ones come last */
    HOLA_EVICT_COUNT
} hola_evict;
/* What gla and gsa do to q and k. SQRELU: relu squared. */
typedef enum hola_feature_map {
    HOLA_MAP_NONE,
    HOLA_MAP_RELU,
    HOLA_MAP_SWISH,
    HOLA_MAP_SIGMOID,
    HOLA_MAP_SQRELU,
    HOLA_MAP_COUNT
} hola_feature_map;
typedef enum hola_cache_norm { HOLA_NORM_RMS, HOLA_NORM_L2, HOLA_NORM_COUNT } hola_cache_norm;

/* The architecture, as in config.json. Fill it with hola_config_preset() or hola_config_read(). */
typedef struct hola_config {
    hola_model_type model_type;
    int64_t hidden_size, num_hidden_layers, intermediate_size, vocab_size;
    int64_t num_heads, num_v_heads; /* key heads; value heads: a multiple of them */
    int64_t head_dim, head_v_dim;   /* d_k, d_v */
    int64_t conv_size;              /* taps of the short convolution; 0: only SiLU */
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id; /* -1: none */
    double norm_eps, initializer_range, hidden_ratio;
    bool use_gate, tie_word_embeddings, allow_neg_eigval;
    bool use_beta; /* false (delta_net only): beta = 1 */
    /* the exact memory; for model_type hola, and for kda where cache_evict is not NONE */
    hola_evict cache_evict;
    hola_cache_norm cache_norm;
    int64_t cache_window, cache_chunk;
    double cache_gate_init, cache_tau_init;
    bool cache_tau_freeze;
    bool
        cache_gate_linear; /* a gate g adds max(g, 0) of the read, not sigmoid(g): 0 leaves the model without a memory */
    bool cache_gate_token;   /* a gate per token: a projection of the layer's input is added to the head's gate */
    double cache_redundancy; /* > 0: rows with a larger cosine to the key of a better row are kept last */
    int64_t cache_sinks;     /* streaming: tokens at a document's start that are never dropped */
    int64_t cache_lte_dim;   /* lte: channels of the scorer */
    /* softmax attention of model_type transformer, whose heads have hidden_size / num_heads channels */
    int64_t num_kv_heads; /* key and value heads: a divisor of num_heads */
    int64_t window_size;  /* keys that a token sees, its own included; 0: all */
    bool qkv_bias, qk_norm;
    double rope_theta;
    /* gla and gsa, which have num_kv_heads too */
    hola_feature_map feature_map;
    bool elementwise_affine;      /* the output norm has weights */
    bool fuse_norm;               /* gla: how fla names those weights */
    double clamp_min;             /* gla: least log decay; -INFINITY: no bound */
    int64_t num_slots;            /* gsa */
    double gate_logit_normalizer; /* gsa: what log decays are divided by */
    /* kda */
    double lower_bound; /* of log decays; 0: none, and another formula */
    bool safe_gate;     /* fresh models: A_log starts at 0 */
} hola_config;

/* name: "46m", "170m" or "340m"; for hola, gated_deltanet and delta_net also followed by "-gate" or "-nogate", for kda by
 * "-memory": with the exact memory. */
HOLA_API hola_status hola_config_preset(hola_config *out, const char *name, hola_model_type type);
/* Reads config.json; path names the file or the model directory. */
HOLA_API hola_status hola_config_read(hola_config *out, const char *path);
HOLA_API hola_status hola_config_check(const hola_config *cfg);
HOLA_API int64_t hola_config_parameters(const hola_config *cfg); /* trained scalars */
HOLA_API const char *hola_model_type_name(hola_model_type t);
HOLA_API const char *hola_evict_name(hola_evict e);
HOLA_API const char *hola_cache_norm_name(hola_cache_norm n);
HOLA_API const char *hola_dtype_name(hola_dtype t);

/* ---- models ---- */

typedef struct hola_model hola_model;

typedef struct hola_options { /* zero means default */
    size_t size;              /* HOLA_OPTIONS_INIT */
    int threads;              /* 0: one per processor */
    const char *backend;      /* NULL or "cpu"; "cuda": the first GPU, "cuda:1": the second; "auto": the first GPU if
                                 there is one, else the CPU. For tests: "cpu-ref" (plain reference code), "cpu-base",
                                 "cpu-avx2", "cpu-avx512", "cpu-neon" (one instruction set), "cuda-f32" (float
                                 activations) */
} hola_options;
#define HOLA_OPTIONS_INIT \
    { sizeof(hola_options), 0, NULL }

/* A new model with random weights (docs/format.md says how they are drawn), the same for the same seed. */
HOLA_API hola_status hola_model_new(hola_model **out, const hola_config *cfg, uint64_t seed, const hola_options *opt);
/* Loads a model directory: config.json and safetensors, one file or several shards. */
HOLA_API hola_status hola_model_load(hola_model **out, const char *dir, const hola_options *opt);
/* Writes config.json and model.safetensors; on failure each is complete or untouched. Fields that hola does
 * not know are kept from the config.json that the model was loaded from. */
HOLA_API hola_status hola_model_save(const hola_model *m, const char *dir, hola_dtype dtype);
HOLA_API void hola_model_free(hola_model *m);
HOLA_API const hola_config *hola_model_config(const hola_model *m);

typedef struct hola_tensor_info {
    const char *name; /* as in the file; owned by the model */
    int ndim;
    int64_t dim[3];
    int64_t count;
    bool trained;
    hola_dtype dtype; /* as stored in the file it came from */
} hola_tensor_info;
HOLA_API int64_t hola_model_tensor_count(const hola_model *m);
HOLA_API hola_status hola_model_tensor(const hola_model *m, int64_t i, hola_tensor_info *out);
/* Copies tensor i out as floats; out has room for info.count of them. */
HOLA_API hola_status hola_model_tensor_read(const hola_model *m, int64_t i, float *out);

/* ---- tokenizers ---- */

typedef struct hola_tokenizer hola_tokenizer;

/* path: a model directory (tokenizer.model, else tokenizer.json), one of these files, or "byte": ids 0 to
 * 255 are the bytes, 256 is BOS, 257 is EOS. A tokenizer is read-only: threads may share it. */
HOLA_API hola_status hola_tokenizer_load(hola_tokenizer **out, const char *path);
HOLA_API void hola_tokenizer_free(hola_tokenizer *t);
HOLA_API int64_t hola_tokenizer_size(const hola_tokenizer *t); /* all ids are below it */
HOLA_API int32_t hola_tokenizer_bos(const hola_tokenizer *t);  /* -1: none */
HOLA_API int32_t hola_tokenizer_eos(const hola_tokenizer *t);
/* text may hold any bytes. *ids is yours: hola_free() it. No BOS or EOS is added. threads: 0 for one per processor;
 * the ids do not depend on it. */
HOLA_API hola_status hola_tokenizer_encode(const hola_tokenizer *t, const char *text, int64_t len, int threads,
                                           int32_t **ids, int64_t *n);
/* The bytes of the ids, without special tokens. *text is yours: hola_free() it. A NUL follows its len bytes. */
HOLA_API hola_status hola_tokenizer_decode(const hola_tokenizer *t, const int32_t *ids, int64_t n, char **text,
                                           int64_t *len);
/* The text of one id as it stands inside a text ("\u2581the": " the"); of a special token, its name ("<s>"). It may be
 * a part of a character. *text is yours: hola_free() it. A NUL follows its len bytes. */
HOLA_API hola_status hola_tokenizer_piece(const hola_tokenizer *t, int32_t id, char **text, int64_t *len);
/* The id of a special or added token by its name ("<|im_end|>"); -1: there is none. */
HOLA_API int32_t hola_tokenizer_special(const hola_tokenizer *t, const char *name);
HOLA_API bool hola_tokenizer_is_special(const hola_tokenizer *t, int32_t id); /* decoded, it has no text */

/* ---- text as it comes: one id at a time, with stop strings ---- */

typedef struct hola_detokenizer hola_detokenizer;

/* t must outlive it; NULL: the ids themselves, as numbers with spaces between. The n_stop stop strings are copied;
 * stop_len NULL: they end with a NUL. */
HOLA_API hola_status hola_detokenizer_new(hola_detokenizer **out, const hola_tokenizer *t, const char *const *stop,
                                          const int64_t *stop_len, int64_t n_stop);
HOLA_API void hola_detokenizer_free(hola_detokenizer *d);
/* A new text, which follows these n ids; the last 7 matter, and n may be 0. */
HOLA_API void hola_detokenizer_begin(hola_detokenizer *d, const int32_t *before, int64_t n);
/* Adds an id; special tokens and ids beyond the tokenizer's have no text. *stopped (may be NULL): a stop string is
 * complete, and the text ends before it. */
HOLA_API hola_status hola_detokenizer_add(hola_detokenizer *d, int32_t id, bool *stopped);
/* What has become certain since the last call: no part of an incomplete UTF-8 character, or of what may become a
 * stop string. end: nothing more comes, so all of it. Lent until the next call. */
HOLA_API const char *hola_detokenizer_take(hola_detokenizer *d, bool end, int64_t *len);
/* The bytes that the last id added to the text, whether certain or not; lent until the next call. */
HOLA_API const char *hola_detokenizer_piece(const hola_detokenizer *d, int64_t *len);

/* ---- sessions: one sequence of tokens ----
 *
 * A session holds everything that changes from token to token: the state of every layer, the position, the last
 * ids, the last logits, the sampler's seed.
 *
 * The size of a session is the same at any position for all recurrent models, whose state and exact memory have
 * fixed sizes, and for transformers with a window. Without one a transformer keeps the keys and values of all
 * tokens: its sessions grow, by a page per 256 tokens. A call that runs out of memory names the length that fits. */

typedef struct hola_session hola_session;

HOLA_API hola_status hola_session_new(hola_session **out, hola_model *m);
HOLA_API hola_status hola_session_clone(hola_session **out, const hola_session *s); /* an independent copy */
HOLA_API void hola_session_free(hola_session *s);
HOLA_API void hola_session_reset(hola_session *s);             /* as after hola_session_new */
HOLA_API int64_t hola_session_position(const hola_session *s); /* tokens fed so far */
HOLA_API int64_t hola_session_bytes(const hola_session *s);    /* of its state now */
/* Feeds n tokens. The session keeps the logits after the last one, to sample from; logits: NULL, or room for a copy of
 * these vocab_size floats. If logits are not finite, this call and those below return HOLA_ENUMERIC; the session must
 * then be reset or freed. */
HOLA_API hola_status hola_session_feed(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* Encodes a text and feeds it; BOS comes first where the session is empty and the tokenizer has one. len -1: up to its
 * NUL. n (may be NULL): how many tokens it was. */
HOLA_API hola_status hola_session_feed_text(hola_session *s, const hola_tokenizer *t, const char *text, int64_t len,
                                            int64_t *n);
/* For long feeds and scores of this session, also through its history: f is called between two passes (of 512 tokens on
 * a CPU, 8192 on a GPU), with no lock held. If it returns false, the call ends with HOLA_ECANCELLED; the session then
 * holds the tokens that were fed (hola_session_position) and no logits. NULL: none. A clone has none. */
typedef bool (*hola_on_progress)(void *ctx, int64_t done, int64_t total);
HOLA_API void hola_session_on_progress(hola_session *s, hola_on_progress f, void *ctx);
/* The same with the logits after each token, [n][vocab_size]: to check a draft in one pass, for example. On a CPU, a
 * pass over up to HOLA_STEPS tokens has the bits of so many passes over one; of longer ones the rounding differs. */
#define HOLA_STEPS 8
HOLA_API hola_status hola_session_feed_each(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* Feeds n tokens; logprobs[i] = log p(next[i] | everything up to ids[i]). */
HOLA_API hola_status hola_session_score(hola_session *s, const int32_t *ids, const int32_t *next, int64_t n,
                                        double *logprobs);
/* Feeds one token to each of n sessions of one model, each at its own position, in one pass. logits: NULL (none
 * are computed) or [n][vocab_size]. On a CPU every session gets the same bits as alone; a GPU may round differently in a batch.
 * If the logits of some sessions are not finite, the others still have theirs (hola_session_logits). */
HOLA_API hola_status hola_session_step(hola_session *const *s, int64_t n, const int32_t *ids, float *logits);
/* The logits after the last token, valid until the session changes; NULL if the call that fed it left none: step
 * without logits, step_sample and score. */
HOLA_API const float *hola_session_logits(const hola_session *s);
/* Copies the last n ids, oldest first; returns how many there were, at most HOLA_RECENT. */
#define HOLA_RECENT 1024
HOLA_API int64_t hola_session_recent(const hola_session *s, int32_t *ids, int64_t n);

/* How the next token is sampled; the steps are taken in this order. Zeros are not the defaults here: begin with
 * HOLA_SAMPLING_INIT or hola_sampling_default(). */
typedef struct hola_sampling {
    size_t size;
    double repeat_penalty; /* divides the logits of recent tokens, multiplies negative ones; 1: off */
    int64_t repeat_last_n; /* how many tokens are recent; at most HOLA_RECENT */
    int64_t top_k;         /* keep the k likeliest tokens; 0: all */
    double top_p;          /* keep the smallest set with this probability (nucleus sampling); 1: all */
    double min_p;          /* keep tokens with at least this fraction of the highest probability; 0: all */
    double temp;           /* temperature: divides the logits; 0: greedy, always the likeliest token */
} hola_sampling;
#define HOLA_SAMPLING_INIT \
    { sizeof(hola_sampling), 1, 64, 40, 0.95, 0.05, 0.8 }
/* (in the header, not in the library: a struct that is returned has the size that the program knows) */
static inline hola_sampling hola_sampling_default(void) {
    const hola_sampling p = HOLA_SAMPLING_INIT;
    return p;
}
/* The random number is a function of the seed (0 in a new session) and the position: the same seed gives the
 * same text, in a batch or alone, after a snapshot or a rollback. */
HOLA_API void hola_session_seed(hola_session *s, uint64_t seed);
HOLA_API uint64_t hola_session_seed_of(const hola_session *s);
/* Samples a token from the last logits; does not feed it. p NULL: the default. */
HOLA_API hola_status hola_session_sample(hola_session *s, const hola_sampling *p, int32_t *id);
/* hola_session_step, then hola_session_sample of each session, into next (which may be ids). The sessions have
 * no logits afterwards: a GPU copies only the few to the host that sampling needs. HOLA_ENUMERIC: next is -1 for
 * sessions whose logits are not finite, and chosen for the others. */
HOLA_API hola_status hola_session_step_sample(hola_session *const *s, int64_t n, const int32_t *ids,
                                              const hola_sampling *p, int32_t *next);

/* Feeds n tokens, 1 to HOLA_STEPS, in one pass; next[i]: what hola_session_step_sample would have chosen after ids[i],
 * on a CPU exactly. It checks a draft, whoever made it: the first i with next[i] != ids[i + 1] is where the draft ends,
 * and hola_session_rollback takes back the rest. The session has no logits afterwards. */
HOLA_API hola_status hola_session_feed_sample(hola_session *s, const int32_t *ids, int64_t n, const hola_sampling *p,
                                              int32_t *next);

/* Saves the whole session; on failure the file is untouched. dtype: of the state in it; HOLA_F32 is exact. */
HOLA_API hola_status hola_session_save(const hola_session *s, const char *path, hola_dtype dtype);
/* Replaces the session by the saved one. A file that is damaged, or saved with another configuration or other
 * weights, is refused and changes nothing. */
HOLA_API hola_status hola_session_load(hola_session *s, const char *path);

/* Marks this point, one per session, for hola_session_rollback, which takes back the last k tokens: the session
 * then behaves as if they had never been fed, to the bit on a CPU. A mark copies the state without the exact
 * memory; that is copied when a block of it closes. At most HOLA_RECENT tokens may follow the mark; those of
 * them that stay are fed again. */
HOLA_API hola_status hola_session_mark(hola_session *s);
HOLA_API hola_status hola_session_rollback(hola_session *s, int64_t k);

/* ---- history: the ids of a session and copies of it at some points, to go back to any position ---- */

typedef struct hola_history hola_history;
typedef struct hola_history_opts { /* zero means default */
    size_t size;                   /* HOLA_HISTORY_INIT */
    int64_t every;                 /* tokens between two points: 512; 8192 on a GPU */
    int64_t most;                  /* points kept: 8, older ones are thinned out. Each is a whole session */
} hola_history_opts;
#define HOLA_HISTORY_INIT \
    { sizeof(hola_history_opts), 0, 0 }

/* s is empty, is not owned by the history and must outlive it. */
HOLA_API hola_status hola_history_new(hola_history **out, hola_session *s, const hola_history_opts *opt);
HOLA_API void hola_history_free(hola_history *h);
/* Feeds the session and keeps points on the way. Tokens may also be fed to the session directly, alone or in a
 * batch, if a call here follows within HOLA_RECENT tokens. */
HOLA_API hola_status hola_history_feed(hola_history *h, const int32_t *ids, int64_t n, float *logits);
HOLA_API hola_status hola_history_keep(hola_history *h); /* keeps a point here: at the end of a turn, for example */
/* Brings the session to exactly these n tokens: goes back to the last point that agrees with them, then feeds
 * the rest. reused (may be NULL): how many were not fed again. logits: as in hola_session_feed. */
HOLA_API hola_status hola_history_prompt(hola_history *h, const int32_t *ids, int64_t n, float *logits,
                                         int64_t *reused);
/* Takes back the last k tokens, as hola_session_rollback does, however many. */
HOLA_API hola_status hola_history_rollback(hola_history *h, int64_t k);

/* ---- generating text ---- */

typedef enum hola_end { HOLA_END_LENGTH, HOLA_END_EOS, HOLA_END_STOP, HOLA_END_CANCELLED, HOLA_END_COUNT } hola_end;

/* Called for every token that was chosen, before it is fed: its id, and the text that it made certain (len may be 0):
 * whole characters, no part of what may become a stop string. If text is held back at the end, one more call brings it,
 * with id -1. false: the text ends with this token. */
typedef bool (*hola_on_token)(void *ctx, int32_t id, const char *text, int64_t len);

typedef struct hola_generate_opts { /* zero means default */
    size_t size;                    /* HOLA_GENERATE_INIT */
    int64_t max_tokens;             /* 256; negative: no limit */
    const hola_sampling *sampling;  /* NULL: the default */
    const char *const *stop;        /* n_stop strings; the text ends before the first that it would contain */
    const int64_t *stop_len;        /* NULL: they end with a NUL */
    int64_t n_stop;
    hola_history *history; /* NULL, or the session's: tokens are fed through it */
    bool ignore_eos;       /* go on after EOS */
    bool keep_logits;      /* while on_token runs, hola_session_logits has what the token was chosen from */
    hola_on_token on_token;
    void *ctx;
    int64_t lookup;        /* drafts from the text itself, as below: ids that must agree, 3 on a CPU; negative: none */
    const int32_t *source; /* NULL, or n_source more ids to draft from: a text that this one may repeat */
    int64_t n_source;
} hola_generate_opts;
#define HOLA_GENERATE_INIT \
    { sizeof(hola_generate_opts), 0, NULL, NULL, NULL, 0, NULL, false, false, NULL, NULL, 0, NULL, 0 }

/* Continues the text of a session, which must have logits (hola_session_feed). t NULL: the text is the ids, as numbers.
 * EOS is the tokenizer's, else the model's; it ends the text, is not reported and not fed. All other chosen tokens are
 * fed, the last one too, so that another call goes on where this one ended; only after EOS something must be fed first.
 * n (may be NULL): tokens reported. end (may be NULL): why it ended.
 * Look-up: where the last ids stood before, in the last HOLA_RECENT ids of the session, in what is written, or in
 * `source`, what followed them there is a draft of what comes next, and one pass checks up to HOLA_STEPS tokens. The
 * text is the same as without, on a CPU to the bit, and written faster where it repeats itself. While on_token runs,
 * the session's position may be another. Not with keep_logits. On a GPU there is none unless lookup is positive. */
HOLA_API hola_status hola_generate(hola_session *s, const hola_tokenizer *t, const hola_generate_opts *opt, int64_t *n,
                                   hola_end *end);

/* ---- training ---- */

typedef struct hola_trainer hola_trainer;

typedef struct hola_train_opts { /* zero means default */
    size_t size;                 /* HOLA_TRAIN_INIT */
    int64_t max_tokens;          /* the most per hola_trainer_accumulate call; default 4096 */
    double beta1, beta2, eps;    /* 0.9, 0.95, 1e-8 */
    double weight_decay;         /* 0.01; negative: none */
    double clip;                 /* largest global gradient norm, 1.0; negative: no clipping */
    bool recompute;              /* recompute activations: about half their memory, a few percent slower */
    bool fp8;                    /* the large products in FP8: on Hopper; on the CPU a slow simulation */
} hola_train_opts;
#define HOLA_TRAIN_INIT \
    { sizeof(hola_train_opts), 0, 0, 0, 0, 0, 0, false, false }

HOLA_API hola_status hola_trainer_new(hola_trainer **out, hola_model *m, const hola_train_opts *opt);
HOLA_API void hola_trainer_free(hola_trainer *t);
/* n tokens in documents that begin at starts[0] = 0 < starts[1] < ...; each starts from an empty state.
 * starts NULL: one document. The target of a token is the next token of its document. Adds the gradient of
 * weight * (sum of the losses); loss_sum and targets (both may be NULL) receive the sum and the number of
 * targets. */
HOLA_API hola_status hola_trainer_accumulate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                             int64_t n_starts, double weight, double *loss_sum, int64_t *targets);
/* The same losses, without gradients. */
HOLA_API hola_status hola_trainer_evaluate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                           int64_t n_starts, double *loss_sum, int64_t *targets);
/* Clips the gradient, takes one AdamW step at this learning rate, clears the gradient. If the gradient is not
 * finite, the weights stay, the gradient is cleared and HOLA_ENUMERIC is returned. grad_norm may be NULL. */
HOLA_API hola_status hola_trainer_update(hola_trainer *t, double lr, double *grad_norm);

/* ---- for bindings of other languages ---- */

/* The size of a struct of this header by its name, "hola_config" for example; 0: there is no such struct. */
HOLA_API size_t hola_sizeof(const char *struct_name);
/* CUDA devices that a backend can be opened on, as "cuda:0" and so on; 0 also where it was built without CUDA. */
HOLA_API int hola_cuda_devices(void);
HOLA_API const char *hola_cuda_version(void); /* "13.0", of the CUDA that it was built with; NULL: without */
HOLA_API const char *hola_cuda_arch(void);    /* "90a 100": what has machine code in it; NULL: without CUDA */
/* The text of a config.json, as hola_config_read() takes it. */
HOLA_API hola_status hola_config_parse(hola_config *out, const char *text, int64_t len);
/* The positions that the exact memory of value head `head` of a layer keeps, ascending, and what the eviction rule
 * compares (may be NULL); room for cache_window of each. The last position % cache_chunk tokens are read as well and
 * are not among them. */
HOLA_API hola_status hola_session_kept(const hola_session *s, int64_t layer, int64_t head, int64_t *pos, float *score,
                                       int64_t *count);
/* Sequence i, ids[starts[i]] up to ids[starts[i + 1]], is read from an empty state: logprobs[i] is the sum of
 * log p(id | all before it) over its last asked[i] ids (at least 1, and not all), greedy[i] whether each of them was
 * the likeliest. Many sequences share a pass, and beginnings that are alike are read once. */
HOLA_API hola_status hola_model_score(hola_model *m, const int32_t *ids, const int64_t *starts, const int64_t *asked,
                                      int64_t n, double *logprobs, bool *greedy);

#ifdef __cplusplus
}
#endif
#endif
