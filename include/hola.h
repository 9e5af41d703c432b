/* hola.h -- the public interface of libhola: HOLA, Gated DeltaNet and DeltaNet language models.
 *
 * Every call that can fail returns a hola_status; hola_last_error() then holds one line that says what
 * and where. The library never prints and never exits. A model is shared and read-only while sessions
 * use it; everything that changes per token lives in a session. C11 and C++17. */
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

#define HOLA_STATUS_LIST(X)            \
    X(HOLA_OK, "ok")                   \
    X(HOLA_EINVAL, "invalid argument") \
    X(HOLA_EIO, "input/output error")  \
    X(HOLA_EFORMAT, "malformed file")  \
    X(HOLA_ENOMEM, "out of memory")    \
    X(HOLA_ENOTSUP, "not supported")   \
    X(HOLA_EDEVICE, "device error")    \
    X(HOLA_ENUMERIC, "not a finite number")
#define HOLA_STATUS_ENUM(name, text) name,
typedef enum hola_status { HOLA_STATUS_LIST(HOLA_STATUS_ENUM) HOLA_STATUS_COUNT } hola_status;
#undef HOLA_STATUS_ENUM

/* The last failure of this thread, one line without a newline; lent until the thread's next failure. */
HOLA_API const char *hola_last_error(void);
HOLA_API const char *hola_status_text(hola_status s);
HOLA_API const char *hola_version(void);

/* ---- configuration ---- */

/* INT8 and INT4: the large matrices as small integers in groups with a scale, everything else as it was. */
typedef enum hola_dtype { HOLA_F32, HOLA_BF16, HOLA_F16, HOLA_INT8, HOLA_INT4, HOLA_DTYPE_COUNT } hola_dtype;
typedef enum hola_model_type {
    HOLA_TYPE_HOLA,
    HOLA_TYPE_GATED_DELTANET,
    HOLA_TYPE_DELTA_NET,
    HOLA_TYPE_COUNT
} hola_model_type;
/* What the exact memory keeps: the tokens with the largest write, residual, beta|v|, the latest ones,
 * the most attended ones; `none` switches the memory and its read off; `streaming` keeps the first
 * cache_sinks tokens of a document and the latest ones. */
typedef enum hola_evict {
    HOLA_EVICT_BETAE,
    HOLA_EVICT_E,
    HOLA_EVICT_BETAV,
    HOLA_EVICT_RECENCY,
    HOLA_EVICT_H2O,
    HOLA_EVICT_NONE,
    HOLA_EVICT_STREAMING, /* saved sessions hold these numbers: new ones come last */
    HOLA_EVICT_COUNT
} hola_evict;
typedef enum hola_cache_norm { HOLA_NORM_RMS, HOLA_NORM_L2, HOLA_NORM_COUNT } hola_cache_norm;

/* The architecture, as in config.json. Fill it with hola_config_preset() or hola_config_read(). */
typedef struct hola_config {
    hola_model_type model_type;
    int64_t hidden_size, num_hidden_layers, intermediate_size, vocab_size;
    int64_t num_heads, num_v_heads; /* key heads; value heads, a multiple of them */
    int64_t head_dim, head_v_dim;   /* d_k, d_v */
    int64_t conv_size;              /* taps of the short convolution; 0: SiLU alone */
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id; /* -1: none */
    double norm_eps, initializer_range, hidden_ratio;
    bool use_gate, tie_word_embeddings, allow_neg_eigval;
    bool use_beta; /* false (delta_net only): beta = 1 */
    /* the exact memory, model_type hola only */
    hola_evict cache_evict;
    hola_cache_norm cache_norm;
    int64_t cache_window, cache_chunk;
    double cache_gate_init, cache_tau_init;
    bool cache_tau_freeze;
    int64_t cache_sinks; /* streaming: tokens at a document's start that are never dropped */
} hola_config;

/* "46m", "170m", "340m", each also with "-gate" or "-nogate". */
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
    int threads;              /* 0: one per processor */
    const char *backend;      /* NULL or "cpu"; "cuda": the first GPU, "cuda:1" the second; for tests:
                                 "cpu-ref", the plain reference, "cpu-base", "cpu-avx2", "cpu-avx512", one
                                 instruction set, "cuda-f32", float activations */
} hola_options;

/* A fresh model with random weights (docs/format.md says which), the same for the same seed. */
HOLA_API hola_status hola_model_new(hola_model **out, const hola_config *cfg, uint64_t seed,
                                    const hola_options *opt);
/* Loads a model directory: config.json and safetensors, in one file or in shards. */
HOLA_API hola_status hola_model_load(hola_model **out, const char *dir, const hola_options *opt);
/* Writes config.json and model.safetensors, whole or not at all. Unknown fields of the config.json the
 * model was loaded from are kept. */
HOLA_API hola_status hola_model_save(const hola_model *m, const char *dir, hola_dtype dtype);
HOLA_API void hola_model_free(hola_model *m);
HOLA_API const hola_config *hola_model_config(const hola_model *m);

typedef struct hola_tensor_info {
    const char *name; /* as in the file; lent by the model */
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
 * 255 are bytes, 256 begins a text, 257 ends one. Read-only after load: threads may share it. */
HOLA_API hola_status hola_tokenizer_load(hola_tokenizer **out, const char *path);
HOLA_API void hola_tokenizer_free(hola_tokenizer *t);
HOLA_API int64_t hola_tokenizer_size(const hola_tokenizer *t); /* ids are below it */
HOLA_API int32_t hola_tokenizer_bos(const hola_tokenizer *t);  /* -1: none */
HOLA_API int32_t hola_tokenizer_eos(const hola_tokenizer *t);
/* Any bytes are a text. *ids is yours: free() it. No BOS or EOS is added. threads: 0 for one per processor;
 * the ids do not depend on it. */
HOLA_API hola_status hola_tokenizer_encode(const hola_tokenizer *t, const char *text, int64_t len,
                                           int threads, int32_t **ids, int64_t *n);
/* The bytes of ids, special tokens left out; *text is yours, with a NUL behind its len bytes. */
HOLA_API hola_status hola_tokenizer_decode(const hola_tokenizer *t, const int32_t *ids, int64_t n,
                                           char **text, int64_t *len);

/* ---- sessions: one sequence, constant memory ----
 *
 * A session holds all that changes as tokens come: the state of every layer, the position, the last ids, the
 * last logits, the sampler's seed. Sessions of one model may be used by several threads, each by one at a time. */

typedef struct hola_session hola_session;

HOLA_API hola_status hola_session_new(hola_session **out, hola_model *m);
HOLA_API hola_status hola_session_clone(hola_session **out, const hola_session *s); /* goes on by itself */
HOLA_API void hola_session_free(hola_session *s);
HOLA_API void hola_session_reset(hola_session *s);             /* as new */
HOLA_API int64_t hola_session_position(const hola_session *s); /* tokens fed so far */
HOLA_API int64_t hola_session_bytes(const hola_session *s);    /* of its state: the same at any position */
/* Feeds n tokens. logits: NULL, or room for vocab_size floats that receive those after the last one. Logits
 * that are not finite are refused (HOLA_ENUMERIC) here and below: the session is then of no more use. */
HOLA_API hola_status hola_session_feed(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* The same with the logits after each of the tokens, [n][vocab_size]: a draft checked in one pass, say. */
HOLA_API hola_status hola_session_feed_each(hola_session *s, const int32_t *ids, int64_t n, float *logits);
/* Feeds n tokens; logprobs[i] = log p(next[i] | everything up to ids[i]). */
HOLA_API hola_status hola_session_score(hola_session *s, const int32_t *ids, const int32_t *next, int64_t n,
                                        double *logprobs);
/* One token for each of n sessions of one model, each at its own position, in one pass; logits: NULL or
 * [n][vocab_size]. On a CPU every session gets the bits that it gets alone; a device may round differently in
 * company. Where the logits of some are not finite, the others have theirs (hola_session_logits). */
HOLA_API hola_status hola_session_step(hola_session *const *s, int64_t n, const int32_t *ids, float *logits);
/* The logits after the last token, lent until the session changes; NULL: the call that fed it had no use for
 * them. */
HOLA_API const float *hola_session_logits(const hola_session *s);
/* The last n ids, oldest first, into ids; returns how many there were, at most HOLA_RECENT. */
#define HOLA_RECENT 1024
HOLA_API int64_t hola_session_recent(const hola_session *s, int32_t *ids, int64_t n);

/* How the next token is chosen, step by step in this order. */
typedef struct hola_sampling {
    double repeat_penalty; /* logits of the last repeat_last_n tokens, divided (negative: times); 1: off */
    int64_t repeat_last_n; /* at most HOLA_RECENT */
    int64_t top_k;         /* the k likeliest; 0: all */
    double top_p;          /* the likeliest that together have this probability; 1: all */
    double min_p;          /* those with at least this part of the likeliest one's; 0: all */
    double temp;           /* logits divided by it; 0: the likeliest token, no chance */
} hola_sampling;
HOLA_API hola_sampling hola_sampling_default(void); /* 1, 64, 40, 0.95, 0.05, 0.8 */
/* The chance is a function of the seed (0 in a new session) and the position: the same text from the same seed,
 * in a batch or alone, after a snapshot or a rollback. */
HOLA_API void hola_session_seed(hola_session *s, uint64_t seed);
HOLA_API uint64_t hola_session_seed_of(const hola_session *s);
/* A token from the last logits; nothing is fed. p NULL: the default. */
HOLA_API hola_status hola_session_sample(hola_session *s, const hola_sampling *p, int32_t *id);
/* hola_session_step, and then hola_session_sample of each, into next (which may be ids). The sessions have no
 * logits afterwards: a device hands over the few that the choice needs. */
HOLA_API hola_status hola_session_step_sample(hola_session *const *s, int64_t n, const int32_t *ids,
                                              const hola_sampling *p, int32_t *next);

/* A file of fixed size with all of a session, whole or not at all. dtype: of the state in it; HOLA_F32 is exact. */
HOLA_API hola_status hola_session_save(const hola_session *s, const char *path, hola_dtype dtype);
/* What the file holds replaces the session's; a file that is damaged or of a model with another configuration
 * or other weights is refused and changes nothing. */
HOLA_API hola_status hola_session_load(hola_session *s, const char *path);

/* Remembers this point (one per session, the last) for hola_session_rollback, which takes the last k tokens
 * back: what the session then gives is what it would give had they never been fed, to the bit on a CPU. Costs a
 * copy of the state without its exact memory; that follows if a block of it closes. At most HOLA_RECENT tokens
 * may lie behind the point, and those of them that stay are fed again. */
HOLA_API hola_status hola_session_mark(hola_session *s);
HOLA_API hola_status hola_session_rollback(hola_session *s, int64_t k);

/* ---- history: the ids of a session and points of it in memory, to go back to any of them ---- */

typedef struct hola_history hola_history;
typedef struct hola_history_opts { /* zero means default */
    int64_t every;                 /* tokens from one point to the next: 512; 8192 on a device */
    int64_t most; /* points at a time: 8; older ones are thinned out. Each is a whole session */
} hola_history_opts;

/* Of an empty session, which it does not own and which must live longer. */
HOLA_API hola_status hola_history_new(hola_history **out, hola_session *s, const hola_history_opts *opt);
HOLA_API void hola_history_free(hola_history *h);
/* Feeds the session and keeps points on the way. Tokens may also go to the session itself, alone or in a batch,
 * as long as a call here follows before HOLA_RECENT of them have. */
HOLA_API hola_status hola_history_feed(hola_history *h, const int32_t *ids, int64_t n, float *logits);
HOLA_API hola_status hola_history_keep(hola_history *h); /* a point here: the end of a turn, say */
/* Brings the session to exactly these n tokens: back to the deepest point that they begin with, then on with the
 * rest. reused (may be NULL): how many were not fed again. logits as in hola_session_feed, but needed. */
HOLA_API hola_status hola_history_prompt(hola_history *h, const int32_t *ids, int64_t n, float *logits,
                                         int64_t *reused);
/* Takes the last k tokens back, as hola_session_rollback does, from however far. */
HOLA_API hola_status hola_history_rollback(hola_history *h, int64_t k);

/* ---- training ---- */

typedef struct hola_trainer hola_trainer;

typedef struct hola_train_opts { /* zero means default */
    int64_t max_tokens;          /* most tokens of one hola_trainer_accumulate call; default 4096 */
    double beta1, beta2, eps;    /* 0.9, 0.95, 1e-8 */
    double weight_decay;         /* 0.01; negative: none */
    double clip;                 /* global gradient norm, 1.0; negative: no clipping */
    bool recompute;              /* about half the activation memory for a few percent more time */
} hola_train_opts;

HOLA_API hola_status hola_trainer_new(hola_trainer **out, hola_model *m, const hola_train_opts *opt);
HOLA_API void hola_trainer_free(hola_trainer *t);
/* n tokens in documents that begin at starts[0] = 0 < starts[1] < ...; each starts from an empty state.
 * A token's target is the next one of its document. Adds the gradient of weight * (sum of the losses);
 * loss_sum and targets (both optional) receive the sum over targets and their number. */
HOLA_API hola_status hola_trainer_accumulate(hola_trainer *t, const int32_t *ids, int64_t n,
                                             const int64_t *starts, int64_t n_starts, double weight,
                                             double *loss_sum, int64_t *targets);
/* The same losses without gradients. */
HOLA_API hola_status hola_trainer_evaluate(hola_trainer *t, const int32_t *ids, int64_t n,
                                           const int64_t *starts, int64_t n_starts, double *loss_sum,
                                           int64_t *targets);
/* Clips, takes one AdamW step at this learning rate, clears the gradients. A step whose gradient is not
 * finite changes nothing, clears the gradients and returns HOLA_ENUMERIC. */
HOLA_API hola_status hola_trainer_update(hola_trainer *t, double lr, double *grad_norm);

#ifdef __cplusplus
}
#endif
#endif
