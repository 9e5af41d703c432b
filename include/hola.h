/* hola.h -- the public interface of libhola: HOLA language models and the baselines. Valid C11 and C++17.
 * docs/library.md is the guide, examples/ has complete programs.
 *
 * Errors. Every call that can fail returns a hola_status; hola_last_error() then returns one line that says what failed
 * and where. The library never prints or exits, except that a failed internal assertion prints one line and aborts. A
 * NULL required argument gives HOLA_EINVAL; calls without a status then do nothing and return 0, -1, false or NULL.
 * Options may be NULL (defaults), as may the argument of a _free and any other argument whose comment says so. On
 * failure *out is NULL.
 *
 * Threads. A model is shared and read-only while sessions use it; per-token state lives in the session. Any thread may
 * use any object, but a session, history, trainer or detokenizer only from one thread at a time; models and tokenizers
 * may be used by many threads at once. Calls that compute on one model (feed, score, step, sample after them, save,
 * load, clone, mark, rollback, train) are serialised: each uses all threads of the model, and long feeds let others in
 * between passes. To serve many sessions, step them together (hola_session_step) instead of using one thread each.
 * Different models run independently. After fork(), a child must not use its parent's objects.
 *
 * ABI. From version 0.2 on, a program runs with every later libhola of the same SONAME (libhola.so.0) without being
 * recompiled: functions stay, and enums, structs named _opts, hola_options and hola_sampling only grow at their end.
 * These structs begin with `size`, which their _INIT macro sets: the library reads that many bytes and uses defaults
 * for fields the program does not know. A size of 0 means the fields of version 0.2, which every program has, so
 * `{.threads = 4}` is safe too. A struct larger than the library's is refused if it sets fields the library does not
 * know. hola_config and hola_tensor_info have no size: they only change with the SONAME. */
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
/* Frees what the library hands over and has no _free function: ids and text. free() does the same if the program and
 * the library share a C library. */
HOLA_API void hola_free(void *p);

/* ---- configuration ---- */

/* INT8 and INT4: the large matrices as small integers, in groups with one scale each; other tensors keep their type. */
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
 *   NONE     no tokens: there is no exact memory
 *   STREAMING  the first cache_sinks tokens of a document and the most recent ones
 *   LOLA     the tokens the state recalls worst: the largest |v - k^T S|, measured again at the end of every block
 *   LTE      the highest scores of a learned scorer, trained with the model */
typedef enum hola_evict {
    HOLA_EVICT_BETAE,
    HOLA_EVICT_E,
    HOLA_EVICT_BETAV,
    HOLA_EVICT_RECENCY,
    HOLA_EVICT_H2O,
    HOLA_EVICT_NONE,
    HOLA_EVICT_STREAMING,
    HOLA_EVICT_LOLA,
    HOLA_EVICT_LTE, /* saved sessions store these numbers: add new ones at the end */
    HOLA_EVICT_COUNT
} hola_evict;
/* Applied by gla and gsa to q and k. SQRELU: relu squared. */
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
    int64_t num_heads, num_v_heads; /* key heads; value heads, a multiple of num_heads */
    int64_t head_dim, head_v_dim;   /* d_k, d_v */
    int64_t conv_size;              /* taps of the short convolution; 0: SiLU only */
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id; /* -1: none */
    double norm_eps, initializer_range, hidden_ratio;
    bool use_gate, tie_word_embeddings, allow_neg_eigval;
    bool use_beta; /* false (delta_net only): beta = 1 */
    /* the exact memory: for model_type hola, and for kda if cache_evict is not NONE */
    hola_evict cache_evict;
    hola_cache_norm cache_norm;
    int64_t cache_window, cache_chunk;
    double cache_gate_init, cache_tau_init;
    bool cache_tau_freeze;
    bool cache_gate_linear;  /* the read is scaled by max(g, 0) of the gate g, not sigmoid(g): at 0 the memory is off */
    bool cache_gate_token;   /* per-token gate: adds a projection of the layer's input to the head's gate */
    double cache_redundancy; /* > 0: rows whose key has a larger cosine to that of a better row rank last */
    bool cache_layer_set;    /* all heads of a layer keep the same tokens, ranked by the norm of their scores */
    int64_t cache_sinks;     /* streaming: tokens at the start of a document that are never evicted */
    int64_t cache_lte_dim;   /* lte: channels of the scorer */
    /* softmax attention, model_type transformer; heads have hidden_size / num_heads channels */
    int64_t num_kv_heads; /* key and value heads; divides num_heads */
    int64_t window_size;  /* keys visible to a token, including its own; 0: all */
    bool qkv_bias, qk_norm;
    double rope_theta;
    /* gla and gsa, which also use num_kv_heads */
    hola_feature_map feature_map;
    bool elementwise_affine;      /* the output norm has weights */
    bool fuse_norm;               /* gla: selects fla's name of those weights */
    double clamp_min;             /* gla: least log decay; -INFINITY: no bound */
    int64_t num_slots;            /* gsa */
    double gate_logit_normalizer; /* gsa: divides the log decays */
    /* kda */
    double lower_bound; /* of log decays; 0: no bound, and a different formula */
    bool safe_gate;     /* new models: A_log starts at 0 */
} hola_config;

/* name: "46m", "170m" or "340m"; hola, gated_deltanet and delta_net also take the suffix "-gate" or "-nogate", kda
 * takes "-memory": with the exact memory. */
HOLA_API hola_status hola_config_preset(hola_config *out, const char *name, hola_model_type type);
/* Reads config.json; path names the file or the model directory; or the config of a GGUF file. */
HOLA_API hola_status hola_config_read(hola_config *out, const char *path);
HOLA_API hola_status hola_config_check(const hola_config *cfg);
HOLA_API int64_t hola_config_parameters(const hola_config *cfg); /* trained scalars */
HOLA_API const char *hola_model_type_name(hola_model_type t);
HOLA_API const char *hola_evict_name(hola_evict e);
HOLA_API const char *hola_cache_norm_name(hola_cache_norm n);
HOLA_API const char *hola_dtype_name(hola_dtype t);

/* ---- models ---- */

typedef struct hola_model hola_model;

/* How the operands of the large matrix products are rounded: of all but the gates; sums are always floats, and INT8 and
 * INT4 weights have products of their own. AUTO: not at all on the CPU; a GPU computes with bf16 activations. BF16: both
 * operands to bf16, on the CPU too, in training and inference; on a GPU the same as AUTO. FP8: training on a Hopper GPU;
 * a slow simulation on the CPU. */
typedef enum hola_precision {
    HOLA_PRECISION_AUTO,
    HOLA_PRECISION_BF16,
    HOLA_PRECISION_FP8,
    HOLA_PRECISION_COUNT
} hola_precision;

typedef struct hola_options { /* zero means default */
    size_t size;              /* HOLA_OPTIONS_INIT */
    int threads;              /* 0: one per processor */
    const char *backend;      /* NULL or "cpu"; "cuda": the first GPU, "cuda:1": the second; "auto": the first GPU if
                                 there is one, else the CPU. For tests: "cpu-ref" (plain reference code), "cpu-base",
                                 "cpu-avx2", "cpu-avx512", "cpu-neon" (one instruction set), "cuda-f32" (float
                                 activations) */
    hola_precision precision; /* of inference: AUTO or BF16 */
} hola_options;
#define HOLA_OPTIONS_INIT \
    { sizeof(hola_options), 0, NULL, HOLA_PRECISION_AUTO }

/* A new model with random weights (drawn as in docs/format.md); the same seed gives the same weights. */
HOLA_API hola_status hola_model_new(hola_model **out, const hola_config *cfg, uint64_t seed, const hola_options *opt);
/* Loads a model directory: config.json and safetensors, one file or several shards; or a GGUF file. */
HOLA_API hola_status hola_model_load(hola_model **out, const char *dir, const hola_options *opt);
/* Writes config.json and model.safetensors; on failure each is either complete or untouched. Unknown fields of the
 * config.json the model was loaded from are kept. */
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
/* Copies tensor i to out as floats; out must hold info.count of them. */
HOLA_API hola_status hola_model_tensor_read(const hola_model *m, int64_t i, float *out);

/* ---- tokenizers ---- */

typedef struct hola_tokenizer hola_tokenizer;

/* path: a model directory (tokenizer.model, else tokenizer.json), one of these files, a GGUF file, or "byte": ids 0 to
 * 255 are the bytes, 256 is BOS, 257 is EOS. Tokenizers are read-only: threads may share one. */
HOLA_API hola_status hola_tokenizer_load(hola_tokenizer **out, const char *path);
HOLA_API void hola_tokenizer_free(hola_tokenizer *t);
HOLA_API int64_t hola_tokenizer_size(const hola_tokenizer *t); /* all ids are less than this */
HOLA_API int32_t hola_tokenizer_bos(const hola_tokenizer *t);  /* -1: none */
HOLA_API int32_t hola_tokenizer_eos(const hola_tokenizer *t);
/* text may hold any bytes. *ids is yours: hola_free() it. Adds no BOS or EOS. threads: 0 for one per processor; the ids
 * do not depend on it. */
HOLA_API hola_status hola_tokenizer_encode(const hola_tokenizer *t, const char *text, int64_t len, int threads,
                                           int32_t **ids, int64_t *n);
/* The bytes of the ids; special tokens are skipped. *text is yours: hola_free() it. A NUL follows its len bytes. */
HOLA_API hola_status hola_tokenizer_decode(const hola_tokenizer *t, const int32_t *ids, int64_t n, char **text,
                                           int64_t *len);
/* The text of one id as it reads inside a text ("\u2581the": " the"); for a special token, its name ("<s>"). It may be
 * part of a character. *text is yours: hola_free() it. A NUL follows its len bytes. */
HOLA_API hola_status hola_tokenizer_piece(const hola_tokenizer *t, int32_t id, char **text, int64_t *len);
/* The id of a special or added token by its name ("<|im_end|>"); -1 if there is none. */
HOLA_API int32_t hola_tokenizer_special(const hola_tokenizer *t, const char *name);
HOLA_API bool hola_tokenizer_is_special(const hola_tokenizer *t, int32_t id); /* it decodes to no text */

/* ---- streaming text: one id at a time, with stop strings ---- */

typedef struct hola_detokenizer hola_detokenizer;

/* t must outlive the detokenizer; NULL: the text is the ids, as numbers separated by spaces. Copies the n_stop stop
 * strings; stop_len NULL: they are NUL-terminated. */
HOLA_API hola_status hola_detokenizer_new(hola_detokenizer **out, const hola_tokenizer *t, const char *const *stop,
                                          const int64_t *stop_len, int64_t n_stop);
HOLA_API void hola_detokenizer_free(hola_detokenizer *d);
/* Starts a new text that follows these n ids; only the last 7 matter, and n may be 0. */
HOLA_API void hola_detokenizer_begin(hola_detokenizer *d, const int32_t *before, int64_t n);
/* Adds an id; special tokens and ids outside the vocabulary have no text. *stopped (may be NULL): a stop string is
 * complete, and the text ends before it. */
HOLA_API hola_status hola_detokenizer_add(hola_detokenizer *d, int32_t id, bool *stopped);
/* The text that has become final since the last call: no part of an incomplete UTF-8 character or of a possible stop
 * string. end: no more ids follow, so return everything. Valid until the next call. */
HOLA_API const char *hola_detokenizer_take(hola_detokenizer *d, bool end, int64_t *len);
/* The bytes that the last id added to the text, final or not; valid until the next call. */
HOLA_API const char *hola_detokenizer_piece(const hola_detokenizer *d, int64_t *len);

/* ---- sessions: one sequence of tokens ----
 *
 * A session holds everything that changes per token: the state of every layer, the position, the last ids, the last
 * logits, and the sampler's seed.
 *
 * Sessions of recurrent models (fixed-size state and exact memory) and of transformers with a window have the same size
 * at any position. A transformer without a window keeps the keys and values of all tokens: its sessions grow by a page
 * per 256 tokens. A call that runs out of memory reports the length that fits. */

typedef struct hola_session hola_session;

HOLA_API hola_status hola_session_new(hola_session **out, hola_model *m);
HOLA_API hola_status hola_session_clone(hola_session **out, const hola_session *s); /* an independent copy */
HOLA_API void hola_session_free(hola_session *s);
HOLA_API void hola_session_reset(hola_session *s);             /* as after hola_session_new */
HOLA_API int64_t hola_session_position(const hola_session *s); /* tokens fed so far */
HOLA_API int64_t hola_session_bytes(const hola_session *s);    /* current size of its state */
/* Feeds n tokens. The session keeps the logits after the last one for sampling; logits: NULL, or receives a copy of
 * these vocab_size floats. If the logits are not finite, this call and those below return HOLA_ENUMERIC; the session
 * must then be reset or freed. */
HOLA_API hola_status hola_session_feed(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* Encodes and feeds a text, with BOS first if the session is empty and the tokenizer has one. len -1: the text is
 * NUL-terminated. n (may be NULL): number of tokens. */
HOLA_API hola_status hola_session_feed_text(hola_session *s, const hola_tokenizer *t, const char *text, int64_t len,
                                            int64_t *n);
/* For long feeds and scores of this session, also through its history: f is called between passes (512 tokens on a CPU,
 * 32,768 on a GPU, or 8192 if its memory is short) with no lock held. If it returns false, the call fails with
 * HOLA_ECANCELLED; the session then holds the tokens fed so far (hola_session_position) and no logits. f NULL: no
 * callback. Clones do not inherit it. */
typedef bool (*hola_on_progress)(void *ctx, int64_t done, int64_t total);
HOLA_API void hola_session_on_progress(hola_session *s, hola_on_progress f, void *ctx);
/* Like hola_session_feed, with the logits after each token, [n][vocab_size]: to check a draft in one pass, for example.
 * On a CPU, up to HOLA_STEPS tokens give the same bits as feeding them one at a time; longer calls round
 * differently. */
#define HOLA_STEPS 8
HOLA_API hola_status hola_session_feed_each(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* Feeds n tokens; logprobs[i] = log p(next[i] | everything up to ids[i]). */
HOLA_API hola_status hola_session_score(hola_session *s, const int32_t *ids, const int32_t *next, int64_t n,
                                        double *logprobs);
/* Feeds one token to each of n sessions of one model, each at its own position, in one pass. logits: NULL (none are
 * computed) or [n][vocab_size]. On a CPU every session gets the same bits as alone; a GPU may round differently in a
 * batch. If the logits of some sessions are not finite, the others are still valid (hola_session_logits). */
HOLA_API hola_status hola_session_step(hola_session *const *s, int64_t n, const int32_t *ids, float *logits);
/* The logits after the last token, valid until the session changes; NULL if the call that fed it keeps none: step
 * without logits, step_sample and score. */
HOLA_API const float *hola_session_logits(const hola_session *s);
/* Copies the last n ids, oldest first; returns the number copied, at most HOLA_RECENT. */
#define HOLA_RECENT 1024
HOLA_API int64_t hola_session_recent(const hola_session *s, int32_t *ids, int64_t n);

/* How to sample the next token; steps apply in this order. Zeros are not the defaults here: start from
 * HOLA_SAMPLING_INIT or hola_sampling_default(). */
typedef struct hola_sampling {
    size_t size;
    double repeat_penalty; /* divides the logits of recent tokens, multiplies negative ones; 1: off */
    int64_t repeat_last_n; /* how many tokens are recent; at most HOLA_RECENT */
    int64_t top_k;         /* keep the k most likely tokens; 0: all */
    double top_p;          /* keep the smallest set with this probability (nucleus sampling); 1: all */
    double min_p;          /* keep tokens with at least this fraction of the highest probability; 0: all */
    double temp;           /* temperature: divides the logits; 0: greedy, the most likely token */
} hola_sampling;
#define HOLA_SAMPLING_INIT \
    { sizeof(hola_sampling), 1, 64, 40, 0.95, 0.05, 0.8 }
/* (inline, so that the returned struct has the size the program was compiled with) */
static inline hola_sampling hola_sampling_default(void) {
    const hola_sampling p = HOLA_SAMPLING_INIT;
    return p;
}
/* The random number is a function of the seed (0 in a new session) and the position: the same seed gives the same text,
 * in a batch or alone, and after a snapshot or a rollback. */
HOLA_API void hola_session_seed(hola_session *s, uint64_t seed);
HOLA_API uint64_t hola_session_seed_of(const hola_session *s);
/* Samples a token from the last logits; does not feed it. p NULL: the default. */
HOLA_API hola_status hola_session_sample(hola_session *s, const hola_sampling *p, int32_t *id);
/* hola_session_step, then hola_session_sample for each session, into next (which may be ids). The sessions have no
 * logits afterwards: a GPU copies only the few that sampling needs to the host. HOLA_ENUMERIC: next is -1 for sessions
 * whose logits are not finite, and valid for the others. */
HOLA_API hola_status hola_session_step_sample(hola_session *const *s, int64_t n, const int32_t *ids,
                                              const hola_sampling *p, int32_t *next);

/* Feeds n tokens, 1 to HOLA_STEPS, in one pass; next[i] is what hola_session_step_sample would have chosen after ids[i]
 * (exactly, on a CPU). This verifies a draft from any source: the first i with next[i] != ids[i + 1] is where the draft
 * ends, and hola_session_rollback removes the rest. The session has no logits afterwards. */
HOLA_API hola_status hola_session_feed_sample(hola_session *s, const int32_t *ids, int64_t n, const hola_sampling *p,
                                              int32_t *next);

/* Saves the whole session; on failure the file is untouched. dtype: type of the saved state; HOLA_F32 is exact. */
HOLA_API hola_status hola_session_save(const hola_session *s, const char *path, hola_dtype dtype);
/* Replaces the session with the saved one. A file that is damaged, or was saved with another configuration or other
 * weights, is refused and the session is unchanged. */
HOLA_API hola_status hola_session_load(hola_session *s, const char *path);

/* Marks this point, one per session, for hola_session_rollback, which removes the last k tokens: the session then
 * behaves as if they had never been fed, bit for bit on a CPU. A mark copies the state without the exact memory, which
 * is copied only when one of its blocks closes. At most HOLA_RECENT tokens may follow the mark; a rollback feeds the
 * ones that stay again. */
HOLA_API hola_status hola_session_mark(hola_session *s);
HOLA_API hola_status hola_session_rollback(hola_session *s, int64_t k);

/* ---- history: the ids of a session and checkpoints of it, to go back to any position ---- */

typedef struct hola_history hola_history;
typedef struct hola_history_opts { /* zero means default */
    size_t size;                   /* HOLA_HISTORY_INIT */
    int64_t every;                 /* tokens between checkpoints: 512; 8192 on a GPU */
    int64_t most;                  /* checkpoints kept: 8, older ones are thinned out. Each is a full copy */
} hola_history_opts;
#define HOLA_HISTORY_INIT \
    { sizeof(hola_history_opts), 0, 0 }

/* s must be empty and outlive the history, which does not own it. */
HOLA_API hola_status hola_history_new(hola_history **out, hola_session *s, const hola_history_opts *opt);
HOLA_API void hola_history_free(hola_history *h);
/* Feeds the session and keeps checkpoints on the way. Tokens may also be fed to the session directly, alone or in a
 * batch, if a call here follows within HOLA_RECENT tokens. */
HOLA_API hola_status hola_history_feed(hola_history *h, const int32_t *ids, int64_t n, float *logits);
HOLA_API hola_status hola_history_keep(hola_history *h); /* keeps a checkpoint here, e.g. after a turn */
/* Brings the session to exactly these n tokens: goes back to the last checkpoint that agrees with them, then feeds the
 * rest. reused (may be NULL): number of tokens not fed again. logits: as in hola_session_feed. */
HOLA_API hola_status hola_history_prompt(hola_history *h, const int32_t *ids, int64_t n, float *logits,
                                         int64_t *reused);
/* Removes the last k tokens, like hola_session_rollback but for any k. */
HOLA_API hola_status hola_history_rollback(hola_history *h, int64_t k);

/* ---- generating text ---- */

typedef enum hola_end { HOLA_END_LENGTH, HOLA_END_EOS, HOLA_END_STOP, HOLA_END_CANCELLED, HOLA_END_COUNT } hola_end;

/* Called for every chosen token, before it is fed: its id, and the text that it made final (len may be 0): whole
 * characters, no part of a possible stop string. Text still held back at the end comes in one more call, with id -1.
 * Return false to stop after this token. */
typedef bool (*hola_on_token)(void *ctx, int32_t id, const char *text, int64_t len);

typedef struct hola_generate_opts { /* zero means default */
    size_t size;                    /* HOLA_GENERATE_INIT */
    int64_t max_tokens;             /* 256; negative: no limit */
    const hola_sampling *sampling;  /* NULL: the default */
    const char *const *stop;        /* n_stop strings; the text ends before the first one that occurs */
    const int64_t *stop_len;        /* NULL: NUL-terminated */
    int64_t n_stop;
    hola_history *history; /* NULL, or the session's: tokens are fed through it */
    bool ignore_eos;       /* continue after EOS */
    bool keep_logits;      /* during on_token, hola_session_logits returns the logits the token was chosen from */
    hola_on_token on_token;
    void *ctx;
    int64_t lookup;        /* drafting by look-up, see below: ids that must match, 3 on a CPU; negative: off */
    const int32_t *source; /* NULL, or n_source extra ids to draft from: a text that this one may repeat */
    int64_t n_source;
} hola_generate_opts;
#define HOLA_GENERATE_INIT \
    { sizeof(hola_generate_opts), 0, NULL, NULL, NULL, 0, NULL, false, false, NULL, NULL, 0, NULL, 0 }

/* Continues the text of a session, which must have logits (hola_session_feed). t NULL: the text is the ids, as numbers.
 * EOS is the tokenizer's, else the model's; it ends the text and is neither reported nor fed. All other chosen tokens
 * are fed, including the last, so that the next call continues where this one ended; after EOS, feed something first. n
 * (may be NULL): tokens reported. end (may be NULL): why it ended.
 * Look-up drafting: if the last ids occurred before, in the last HOLA_RECENT ids of the session, in the generated text
 * or in `source`, the ids that followed them there become a draft, and one pass checks several tokens. The text is the
 * same as without drafts, on a CPU bit for bit, and faster where it repeats itself. During on_token the session's
 * position may differ. Not available with keep_logits. On a GPU it is off unless lookup is positive. */
HOLA_API hola_status hola_generate(hola_session *s, const hola_tokenizer *t, const hola_generate_opts *opt, int64_t *n,
                                   hola_end *end);

/* ---- training ---- */

typedef struct hola_trainer hola_trainer;

typedef struct hola_train_opts { /* zero means default */
    size_t size;                 /* HOLA_TRAIN_INIT */
    int64_t max_tokens;          /* maximum per hola_trainer_accumulate call; default 4096 */
    double beta1, beta2, eps;    /* 0.9, 0.95, 1e-8 */
    double weight_decay;         /* 0.01; negative: none */
    double clip;                 /* largest global gradient norm, 1.0; negative: no clipping */
    bool recompute;              /* recompute activations: about half their memory, a few percent slower */
    hola_precision precision; /* of the large products, forward and backward, and on the CPU of the head's for BF16 */
} hola_train_opts;
#define HOLA_TRAIN_INIT \
    { sizeof(hola_train_opts), 0, 0, 0, 0, 0, 0, false, HOLA_PRECISION_AUTO }

HOLA_API hola_status hola_trainer_new(hola_trainer **out, hola_model *m, const hola_train_opts *opt);
HOLA_API void hola_trainer_free(hola_trainer *t);
/* n tokens in documents that begin at starts[0] = 0 < starts[1] < ...; each starts from an empty state. starts NULL:
 * one document. The target of a token is the next token of its document. Accumulates the gradient of weight * (sum of
 * the losses); loss_sum and targets (both may be NULL) receive the sum and the number of targets. */
HOLA_API hola_status hola_trainer_accumulate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                             int64_t n_starts, double weight, double *loss_sum, int64_t *targets);
/* The same losses, without gradients. */
HOLA_API hola_status hola_trainer_evaluate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                           int64_t n_starts, double *loss_sum, int64_t *targets);
/* Both with a loss mask [n]: token i is a target where loss_mask[i] is not 0; NULL: all are. With no targets the sum of
 * the losses is 0 and the gradient is unchanged. */
HOLA_API hola_status hola_trainer_accumulate_masked(hola_trainer *t, const int32_t *ids, int64_t n,
                                                    const int64_t *starts, int64_t n_starts, const uint8_t *loss_mask,
                                                    double weight, double *loss_sum, int64_t *targets);
HOLA_API hola_status hola_trainer_evaluate_masked(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                                  int64_t n_starts, const uint8_t *loss_mask, double *loss_sum,
                                                  int64_t *targets);
/* Clips the gradient, takes one AdamW step at this learning rate and zeroes the gradient. If the gradient is not
 * finite, it is zeroed, the weights stay unchanged, and the call returns HOLA_ENUMERIC. grad_norm may be NULL. */
HOLA_API hola_status hola_trainer_update(hola_trainer *t, double lr, double *grad_norm);

/* ---- for bindings to other languages ---- */

/* The size of a struct of this header by name, such as "hola_config"; 0: no such struct. */
HOLA_API size_t hola_sizeof(const char *struct_name);
/* Number of CUDA devices usable as backends "cuda:0" and so on; 0 in a build without CUDA. */
HOLA_API int hola_cuda_devices(void);
HOLA_API const char *hola_cuda_version(void); /* the CUDA version it was built with ("13.0"); NULL: none */
HOLA_API const char *hola_cuda_arch(void);    /* architectures with machine code ("90a 100"); NULL: no CUDA */
/* Like hola_config_read(), from the text of a config.json. */
HOLA_API hola_status hola_config_parse(hola_config *out, const char *text, int64_t len);
/* The positions kept by the exact memory of value head `head` of a layer, ascending, and their eviction scores (may be
 * NULL); room for cache_window of each. The last position % cache_chunk tokens are also read but not listed. */
HOLA_API hola_status hola_session_kept(const hola_session *s, int64_t layer, int64_t head, int64_t *pos, float *score,
                                       int64_t *count);
/* Sequence i, ids[starts[i]] up to ids[starts[i + 1]], is read from an empty state: logprobs[i] is the sum of log p(id
 * | all before it) over its last asked[i] ids (at least 1, and not all), greedy[i] whether each of them was the argmax.
 * Many sequences share a pass, and common prefixes are read once. */
HOLA_API hola_status hola_model_score(hola_model *m, const int32_t *ids, const int64_t *starts, const int64_t *asked,
                                      int64_t n, double *logprobs, bool *greedy);

#ifdef __cplusplus
}
#endif
#endif
