/* vectors.h -- whole small models against stored losses, logits and gradients; built in float and in double. The
 * vectors are stored next to the project (HOLA_SHARED, default ../shared); without them the test is skipped. */
#include "check.h"
#include "model/config.h"
#include "model/model.h"
#include <jansson.h>

static const char *const vector_names[] = {"hola_betae_rms",
                                           "hola_betae_rms_nogate",
                                           "hola_betae_l2",
                                           "hola_betav_rms",
                                           "hola_e_rms",
                                           "hola_recency_rms",
                                           "hola_streaming_rms",
                                           "hola_lola_rms",
                                           "hola_lte_rms",
                                           "hola_lte_packed",
                                           "gated_deltanet_gate",
                                           "gated_deltanet_ev2",
                                           "gated_deltanet_nogate",
                                           "delta_net",
                                           "transformer",
                                           "transformer_gqa",
                                           "transformer_packed",
                                           "gla",
                                           "gla_conv",
                                           "gla_packed",
                                           "gsa",
                                           "gsa_conv",
                                           "gsa_packed",
                                           "kda",
                                           "kda_gva",
                                           "kda_packed"};
enum { VECTORS = sizeof vector_names / sizeof *vector_names };

static json_t *vector_open(const char *name) {
    char path[512];
    const char *shared = getenv("HOLA_SHARED");
    snprintf(path, sizeof path, "%s/vectors/%s.json", shared ? shared : "../shared", name);
    return json_load_file(path, 0, NULL);
}

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

/* The rule by which the vectors' weights are regenerated from the tensor's name. */
static double vector_weight(const struct hl_tensor *t, double u) {
    const double s = 2 * u - 1;
    if (has(t->name, "embeddings")) return s;
    if (has(t->name, "conv1d")) return 0.6 * s;
    if (has(t->name, "norm")) return 1 + 0.2 * s;
    if (has(t->name, "A_log")) return log(0.5 + 4 * u);
    if (has(t->name, "dt_bias")) {
        double dt = exp(u * (log(0.1) - log(0.001)) + log(0.001));
        return dt + log(-expm1(-dt));
    }
    if (has(t->name, "cache_gate")) return -1 + 0.5 * s;
    if (has(t->name, "cache_sink")) return 0.5 * s;
    if (has(t->name, ".bias")) return 0.3 * s;
    return s * sqrt(3.0 / (double)t->dim[t->ndim - 1]);
}
/* A stream of numbers in [0, 1) has a name. */
static uint64_t vector_stream(uint64_t seed, const char *name) {
    for (const char *c = name; *c; c++) seed = (seed ^ (unsigned char)*c) * 0x100000001b3u;
    return seed;
}
static double vector_uniform(uint64_t stream, int64_t j) {
    return (double)(check_mix(stream + (uint64_t)j * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}
#define VECTOR_STREAM(name) vector_stream(0xcbf29ce484222325u, name)

static void vector_weights(hola_model *m) {
    for (int64_t i = 0; i < m->params.n; i++) {
        const struct hl_tensor *t = &m->params.tensor[i];
        const uint64_t stream = VECTOR_STREAM(t->name);
        for (int64_t j = 0; j < t->count; j++) {
            double u = vector_uniform(stream, j);
            double w =
                has(t->name, "cache_tau") ? (m->cfg.cache_norm == HOLA_NORM_L2 ? 2.5 : 1.0) : vector_weight(t, u);
            m->rows[t->offset + j] = (real)w;
        }
    }
}

static hola_model *vector_model(json_t *v, const char *backend) {
    char *text = json_dumps(json_object_get(v, "config"), 0);
    hola_config cfg;
    hola_model *m;
    hola_options opt = {.threads = 2, .backend = backend};
    CHECK_OK(hl_config_parse(&cfg, text, (int64_t)strlen(text), "vector"));
    free(text);
    if (json_object_get(json_object_get(v, "grad_l2"), "model.layers.0.attn.cache_tau")) cfg.cache_tau_freeze = false;
    CHECK_OK(hola_model_new(&m, &cfg, 0, &opt));
    vector_weights(m);
    return m;
}

static double number(json_t *v, const char *key) { return json_number_value(json_object_get(v, key)); }

#define VECTOR_NEAR(got, want, scale, what)                                                                    \
    do {                                                                                                       \
        double vector_e = fabs((got) - (want)) / fmax(1e-3, fabs(scale));                                      \
        if (!(vector_e <= tol))                                                                                \
            fail_msg("%s, %s: %s: %.12g, expected %.12g", name, backend, what, (double)(got), (double)(want)); \
        worst = fmax(worst, vector_e);                                                                         \
    } while (0)

static hola_precision vector_precision; /* of the products */

/* The run itself: one batch forward and backward with every buffer reachable. */
enum { VECTOR_TOKENS = 256, VECTOR_DOCS = 8 };
struct vector_run {
    hola_model *m;
    struct hl_activations acts;
    struct hl_seg seg[VECTOR_DOCS];
    struct hl_rows rows;
    int32_t ids[VECTOR_TOKENS], target[VECTOR_TOKENS];
    int64_t T;
    real *grads;
    double loss;
};

/* Documents begin at `starts`, one at 0 where there is none; their last tokens have no target. Returns the targets. */
static int64_t vector_documents(struct vector_run *r, json_t *starts) {
    const int64_t n = starts ? (int64_t)json_array_size(starts) : 1;
    int64_t targets = 0;
    assert_true(n <= VECTOR_DOCS);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = json_integer_value(json_array_get(starts, (size_t)i));
        const int64_t end = i + 1 < n ? json_integer_value(json_array_get(starts, (size_t)i + 1)) : r->T;
        r->seg[i] = (struct hl_seg){.row = row, .len = end - row};
        for (int64_t t = row; t < end; t++) r->target[t] = t + 1 < end ? r->ids[t + 1] : -1;
        targets += end - row - 1;
    }
    r->rows = (struct hl_rows){.T = r->T, .n = n, .seg = r->seg};
    return targets;
}

static void vector_forward_backward(struct vector_run *r, json_t *v, const char *backend, bool recompute) {
    json_t *ids = json_object_get(v, "ids");
    *r = (struct vector_run){.m = vector_model(v, backend), .T = (int64_t)json_array_size(ids)};
    r->m->training_precision = vector_precision;
    assert_true(r->T <= VECTOR_TOKENS);
    for (int64_t i = 0; i < r->T; i++) r->ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    const double share = 1.0 / (double)vector_documents(r, json_object_get(v, "starts"));
    r->acts = (struct hl_activations){.pass = HL_TRAIN, .backend = r->m->backend, .recompute = recompute};
    CHECK_OK(hl_model_need_master(r->m));
    CHECK_OK(hl_activations_reserve(&r->acts, &r->m->cfg, &r->rows, r->T));
    r->grads = calloc((size_t)r->m->params.total, sizeof(real));
    hl_model_forward(r->m, &r->acts, &r->rows, r->ids);
    hl_model_loss(r->m, &r->acts, r->T, r->target, share, r->grads);
    hl_model_backward(r->m, &r->acts, &r->rows, r->ids, r->grads);
    for (int64_t i = 0; i < r->T; i++)
        if (r->target[i] >= 0) r->loss += r->acts.nll[i] * share;
}

static void vector_close(struct vector_run *r) {
    hl_activations_free(&r->acts);
    free(r->grads);
    hola_model_free(r->m);
}

static double vector_logits(const struct vector_run *r, json_t *v, const char *name, const char *backend, double tol) {
    const real *E = r->m->rows + r->m->params.tensor[r->m->params.head].offset;
    const int64_t d = r->m->cfg.hidden_size, n = r->m->cfg.vocab_size;
    double worst = 0, sum = 0, rms = number(v, "logits_l2") / sqrt((double)(r->T * n));
    for (int64_t t = 0; t < r->T; t++) {
        char key[16];
        snprintf(key, sizeof key, "%d", (int)t);
        json_t *want = json_object_get(json_object_get(v, "logits_first4"), key);
        for (int64_t i = 0; i < n; i++) {
            double z = 0;
            for (int64_t j = 0; j < d; j++) z += (double)((real *)r->acts.lastn)[t * d + j] * (double)E[i * d + j];
            sum += z * z;
            if (want && i < 4) VECTOR_NEAR(z, json_number_value(json_array_get(want, (size_t)i)), rms, "logit");
        }
    }
    VECTOR_NEAR(sqrt(sum), number(v, "logits_l2"), number(v, "logits_l2"), "norm of all logits");
    return worst;
}

/* Every tensor against its own norm, and against that of the whole gradient: sums that cancel (A_log,
 * dt_bias) are small beside what they are summed from, and float cannot give them all digits. */
static double vector_gradients(const struct vector_run *r, json_t *v, const char *name, const char *backend, double own,
                               double tol) {
    const char *tensor;
    json_t *norm;
    double worst = 0, all = 0;
    json_object_foreach(json_object_get(v, "grad_l2"), tensor, norm) {
        all += json_number_value(norm) * json_number_value(norm);
    }
    json_object_foreach(json_object_get(v, "grad_l2"), tensor, norm) {
        const int64_t i = hl_params_find(&r->m->params, tensor);
        double sum = 0, want = json_number_value(norm), scale = sqrt(all);
        assert_true(i >= 0);
        const struct hl_tensor *t = &r->m->params.tensor[i];
        const real *g = r->grads + t->offset;
        for (int64_t j = 0; j < t->count; j++) sum += (double)g[j] * (double)g[j];
        VECTOR_NEAR(sqrt(sum), want, scale, tensor);
        if (!(fabs(sqrt(sum) - want) <= own * want))
            fail_msg("%s, %s: %s: norm %.9g", name, backend, tensor, sqrt(sum));
        json_t *dot = json_object_get(json_object_get(v, "grad_dot"), tensor);
        if (dot) { /* every entry counts, with a weight of its own */
            const uint64_t stream = vector_stream(VECTOR_STREAM(tensor), "/dot");
            double along = 0, w = json_number_value(dot);
            for (int64_t j = 0; j < t->count; j++) along += (double)g[j] * (2 * vector_uniform(stream, j) - 1);
            VECTOR_NEAR(along, w, 2 * scale, tensor);
            if (!(fabs(along - w) <= own * want))
                fail_msg("%s, %s: %s: along its stream %.9g, expected %.9g", name, backend, tensor, along, w);
        }
        json_t *first = json_object_get(json_object_get(v, "grad_first3"), tensor);
        for (size_t j = 0; j < json_array_size(first); j++) {
            const double w = json_number_value(json_array_get(first, j));
            VECTOR_NEAR((double)g[j], w, scale, tensor);
            if (!(fabs((double)g[j] - w) <= own * want))
                fail_msg("%s, %s: %s: %.9g", name, backend, tensor, (double)g[j]);
        }
    }
    return worst;
}

/* tol: loss; rest: logits relative to their rms, gradients relative to the whole; own: to the tensor's own norm */
static void vectors_on(const char *backend, double tol, double rest, double own) {
    for (int k = 0; k < VECTORS; k++) {
        const char *name = vector_names[k];
        json_t *v = vector_open(name);
        if (!v) {
            print_message("SKIP vectors: ../shared/vectors/%s.json is not there (set HOLA_SHARED)\n", name);
            skip();
        }
        for (int recompute = 0; recompute < 2; recompute++) {
            struct vector_run r;
            vector_forward_backward(&r, v, backend, recompute);
            double e = fabs(r.loss - number(v, "loss"));
            if (!(e <= tol)) fail_msg("%s, %s: loss %.12f, expected %.12f", name, backend, r.loss, number(v, "loss"));
            double el = vector_logits(&r, v, name, backend, rest),
                   eg = vector_gradients(&r, v, name, backend, own, rest);
            if (getenv("HOLA_VERBOSE"))
                print_message("%-22s %-10s loss %.2e logits %.2e gradients %.2e\n", name, backend, e, el, eg);
            vector_close(&r);
        }
        json_decref(v);
    }
}

/* A model with one wrong weight must fail. */
static void vectors_catch(double tol_loss) {
    json_t *v = vector_open("hola_betae_rms");
    struct vector_run r;
    if (!v) skip();
    json_object_set_new(json_object_get(v, "config"), "cache_evict", json_string("recency"));
    vector_forward_backward(&r, v, "cpu-ref", false);
    assert_true(fabs(r.loss - number(v, "loss")) > 1000 * tol_loss);
    vector_close(&r);
    json_decref(v);
}
