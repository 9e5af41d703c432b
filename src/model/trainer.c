/* trainer.c -- gradients and AdamW. */
#include "model/trainer.h"
#include "model/model.h"
#include <math.h>
#include <stdlib.h>

struct hola_trainer {
    hola_model *model;
    hola_train_opts opt;
    struct hl_activations acts;
    real *grads;  /* laid out like the model's rows */
    int64_t part; /* of `ranks` equal parts of that block, this trainer updates [first, first + n) */
    int64_t first, n, ranks;
    real *m, *v;                        /* [n] */
    real *host_grads, *host_m, *host_v; /* host copies if the backend's arrays are not in host memory */
    int32_t *target;
    struct hl_seg *seg;
    int64_t seg_room, step;
    double memory_rate, memory_decay; /* hl_trainer_set_memory() */
    bool linked;
    bool some; /* most tensors are frozen: the norm covers only the trained ones */
};

static hola_status check_opts(const hola_train_opts *o) {
    if (o->max_tokens < 1 || o->max_tokens > (1 << 24))
        return hl_fail(HOLA_EINVAL, "max_tokens: %lld is not between 1 and %d", (long long)o->max_tokens, 1 << 24);
    if (!(o->beta1 >= 0 && o->beta1 < 1)) return hl_fail(HOLA_EINVAL, "beta1: %g is not in [0, 1)", o->beta1);
    if (!(o->beta2 >= 0 && o->beta2 < 1)) return hl_fail(HOLA_EINVAL, "beta2: %g is not in [0, 1)", o->beta2);
    if (!(o->eps > 0 && isfinite(o->eps))) return hl_fail(HOLA_EINVAL, "eps: %g is not above 0", o->eps);
    if (!isfinite(o->weight_decay)) return hl_fail(HOLA_EINVAL, "weight_decay: %g", o->weight_decay);
    if (!isfinite(o->clip)) return hl_fail(HOLA_EINVAL, "clip: %g", o->clip);
    return HOLA_OK;
}

static hola_train_opts defaults(hola_train_opts o) {
    if (o.max_tokens == 0) o.max_tokens = 4096;
    if (o.beta1 == 0) o.beta1 = 0.9;
    if (o.beta2 == 0) o.beta2 = 0.95;
    if (o.eps == 0) o.eps = 1e-8;
    if (o.weight_decay == 0) o.weight_decay = 0.01;
    if (o.clip == 0) o.clip = 1.0;
    return o;
}

static real *zeros(hola_model *m, int64_t n) {
    real *p = hl_alloc(m->backend, (n + 16) * (int64_t)sizeof(real)); /* n may be 0 */
    if (p) hl_zero(m->backend, p, (n + 16) * (int64_t)sizeof(real));
    return p;
}

hola_status hola_trainer_new(hola_trainer **out, hola_model *model, const hola_train_opts *opt) {
    HL_NEED(out, "out");
    *out = NULL;
    HL_NEED(model, "the model");
    return hl_trainer_new_part(out, model, opt, 0, 1);
}

/* ---- precision ---- */

const char *const hl_train_precisions[] = {"auto", "bf16", "fp8", NULL};

static bool in_fp8(const hola_model *m) { return m->training_precision == HOLA_PRECISION_FP8; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
struct hl_fp8_sizes hl_trainer_fp8_sizes(const hola_model *m, int64_t tokens) {
    struct hl_fp8_sizes s = {.tokens = tokens};
    int64_t last = -2, row = 0; /* rows of adjacent weights, which a device may multiply as one */
    for (int64_t i = 0; i < m->params.n; i++) {
        const struct hl_tensor *t = &m->params.tensor[i];
        if (!hl_model_takes(&m->params, i, HOLA_PRECISION_FP8)) continue;
        if (!hl_fp8_fits(HL_FP8_ALIGN, t->dim[0], t->dim[1])) {
            s.left_over++;
            continue;
        }
        row = last == i - 1 && t->dim[1] == m->params.tensor[last].dim[1] ? row + t->dim[0] : t->dim[0];
        last = i;
        s.taken++;
        s.weights += t->count;
        s.weight = larger(s.weight, row * t->dim[1]);
        s.wide = larger(s.wide, larger(row, t->dim[1]));
    }
    return s;
}
int64_t hl_trainer_fp8_refused(const hola_trainer *t) {
    return in_fp8(t->model) ? t->model->backend->fp8->refused(t->model->backend) : 0;
}
static hola_status open_precision(hola_trainer *t) {
    hola_model *m = t->model;
    const struct hl_fp8_sizes sizes = hl_trainer_fp8_sizes(m, t->opt.max_tokens);
    hola_status s = hl_model_precision(m->backend, t->opt.precision, true);
    if (s == HOLA_OK && t->opt.precision == HOLA_PRECISION_FP8) s = m->backend->fp8->open(m->backend, &sizes);
    if (s == HOLA_OK) m->training_precision = t->opt.precision;
    return s;
}
static void weights_changed(const hola_trainer *t) {
    if (in_fp8(t->model)) t->model->backend->fp8->stale(t->model->backend);
}

hola_status hl_trainer_new_part(hola_trainer **out, hola_model *model, const hola_train_opts *opt, int rank,
                                int ranks) {
    const int64_t total = model->params.total;
    hola_train_opts o;
    *out = NULL;
    hola_status s = hl_options_take(&o, sizeof o, opt, HL_SIZE_UP_TO(hola_train_opts, recompute), "hola_train_opts");
    if (s != HOLA_OK) return s;
    o = defaults(o);
    s = check_opts(&o);
    if (s != HOLA_OK) return s;
    if (model->training) return hl_fail(HOLA_EINVAL, "this model has a trainer already");
    pthread_mutex_lock(&model->lock);
    s = hl_model_need_master(model);
    pthread_mutex_unlock(&model->lock);
    if (s != HOLA_OK) return s;
    hola_trainer *t = calloc(1, sizeof *t);
    if (!t) return hl_fail(HOLA_ENOMEM, "trainer: %zu bytes", sizeof *t);
    t->model = model;
    t->opt = o;
    t->memory_rate = 1, t->memory_decay = -1;
    for (int64_t i = 0; i < model->params.n; i++)
        t->some |= !model->params.tensor[i].trained && !model->params.tensor[i].memory;
    t->acts = (struct hl_activations){.pass = HL_TRAIN, .backend = model->backend, .recompute = o.recompute};
    t->ranks = ranks;
    t->part = ((total + ranks - 1) / ranks + 15) / 16 * 16; /* parts are 64-byte aligned */
    t->first = rank * t->part < total ? rank * t->part : total;
    t->n = total - t->first < t->part ? total - t->first : t->part;
    t->grads = zeros(model, t->part * ranks);
    t->m = zeros(model, t->n);
    t->v = zeros(model, t->n);
    t->target = calloc((size_t)o.max_tokens, sizeof *t->target);
    if (!t->grads || !t->m || !t->v || !t->target) {
        hola_trainer_free(t);
        return hl_fail(HOLA_ENOMEM, "trainer: three times %lld numbers do not fit in %s memory", (long long)total,
                       model->backend->host ? "the" : "the device's");
    }
    s = open_precision(t);
    if (s != HOLA_OK) {
        hola_trainer_free(t);
        return s;
    }
    model->training = true;
    *out = t;
    return HOLA_OK;
}

void hola_trainer_free(hola_trainer *t) {
    if (!t) return;
    hola_model *m = t->model;
    hl_activations_free(&t->acts);
    hl_release(m->backend, t->grads);
    hl_release(m->backend, t->m);
    hl_release(m->backend, t->v);
    if (in_fp8(m)) m->backend->fp8->close(m->backend);
    m->training_precision = HOLA_PRECISION_AUTO;
    if (m->ahead) hl_model_need_rows(m); /* the trained weights outlive the trainer */
    hl_model_drop_master(m);
    m->training = false;
    free(t->host_grads);
    free(t->host_m);
    free(t->host_v);
    free(t->target);
    free(t->seg);
    free(t);
}

/* Longest first, then in order. */
static int by_length(const void *a, const void *b) {
    const struct hl_seg *x = a, *y = b;
    return x->len != y->len ? (x->len < y->len) - (x->len > y->len) : (x->row > y->row) - (x->row < y->row);
}

/* Converts documents to segments and targets; counts the targets. mask: only these tokens are targets. */
static hola_status lay_out(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts, int64_t n_starts,
                           const uint8_t *mask, struct hl_rows *rows, int64_t *targets) {
    const int64_t zero = 0;
    if (!starts) starts = &zero, n_starts = 1;
    if (n < 1 || n > t->opt.max_tokens)
        return hl_fail(HOLA_EINVAL, "%lld tokens: not between 1 and %lld", (long long)n, (long long)t->opt.max_tokens);
    if (n_starts < 1 || starts[0] != 0) return hl_fail(HOLA_EINVAL, "the first document does not start at 0");
    if (n_starts > t->seg_room) {
        struct hl_seg *seg = realloc(t->seg, (size_t)n_starts * sizeof *seg);
        if (!seg) return hl_fail(HOLA_ENOMEM, "%lld documents", (long long)n_starts);
        t->seg = seg;
        t->seg_room = n_starts;
    }
    *targets = 0;
    for (int64_t i = 0; i < n_starts; i++) {
        const int64_t end = i + 1 < n_starts ? starts[i + 1] : n;
        if (end <= starts[i] || end > n)
            return hl_fail(HOLA_EINVAL, "document %lld starts at %lld and ends at %lld of %lld", (long long)i,
                           (long long)starts[i], (long long)end, (long long)n);
        t->seg[i] = (struct hl_seg){.row = starts[i], .len = end - starts[i]};
        for (int64_t j = starts[i]; j < end; j++) {
            const bool wanted = j + 1 < end && (!mask || mask[j + 1]);
            t->target[j] = wanted ? ids[j + 1] : -1;
            *targets += wanted;
        }
    }
    /* A device walks a document in one thread block, and starts them in order: a long one that starts last would run
     * alone. */
    if (!t->model->backend->host) qsort(t->seg, (size_t)n_starts, sizeof *t->seg, by_length);
    *rows = (struct hl_rows){.T = n, .n = n_starts, .seg = t->seg};
    return HOLA_OK;
}

enum { LANES = 8 }; /* parallel partial sums, to break the dependency chain of additions */
static hola_status run(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts, int64_t n_starts,
                       const uint8_t *mask, double weight, bool backward, double *loss_sum, int64_t *targets) {
    hola_model *m = t->model;
    struct hl_rows rows;
    int64_t count = 0;
    double sum = 0, lane[LANES] = {0};
    hola_status s = lay_out(t, ids, n, starts, n_starts, mask, &rows, &count);
    if (s == HOLA_OK) s = hl_model_check_ids(m, ids, n);
    if (s == HOLA_OK) s = hl_activations_reserve(&t->acts, &m->cfg, &rows, n);
    if (s != HOLA_OK) return s;
    ids = hl_activations_put(&t->acts, t->acts.ids, ids, n);
    const int32_t *target = hl_activations_put(&t->acts, t->acts.target, t->target, n);
    hl_model_forward(m, &t->acts, &rows, ids);
    hl_model_loss(m, &t->acts, n, target, weight, backward ? t->grads : NULL);
    if (backward) hl_model_backward(m, &t->acts, &rows, ids, t->grads);
    const double *nll = hl_activations_nll(&t->acts, n);
    s = hl_finish(m->backend);
    if (s != HOLA_OK) return s;
    for (int64_t i = 0; i < n; i++) lane[i % LANES] += nll[i]; /* the device is idle meanwhile */
    for (int i = 0; i < LANES; i++) sum += lane[i];
    if (loss_sum) *loss_sum = sum;
    if (targets) *targets = count;
    return HOLA_OK;
}

hola_status hola_trainer_accumulate_masked(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                           int64_t n_starts, const uint8_t *trained, double weight, double *loss_sum,
                                           int64_t *targets) {
    HL_NEED(t, "the trainer");
    HL_NEED(ids, "ids");
    return run(t, ids, n, starts, n_starts, trained, weight, true, loss_sum, targets);
}

hola_status hola_trainer_accumulate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                    int64_t n_starts, double weight, double *loss_sum, int64_t *targets) {
    return hola_trainer_accumulate_masked(t, ids, n, starts, n_starts, NULL, weight, loss_sum, targets);
}

hola_status hola_trainer_evaluate_masked(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                         int64_t n_starts, const uint8_t *trained, double *loss_sum, int64_t *targets) {
    HL_NEED(t, "the trainer");
    HL_NEED(ids, "ids");
    return run(t, ids, n, starts, n_starts, trained, 0, false, loss_sum, targets);
}

hola_status hola_trainer_evaluate(hola_trainer *t, const int32_t *ids, int64_t n, const int64_t *starts,
                                  int64_t n_starts, double *loss_sum, int64_t *targets) {
    return hola_trainer_evaluate_masked(t, ids, n, starts, n_starts, NULL, loss_sum, targets);
}

/* ---- the update ---- */

static hola_status host_copy(real **p, int64_t n) {
    if (!*p) *p = calloc((size_t)n + 1, sizeof **p);
    return *p ? HOLA_OK : hl_fail(HOLA_ENOMEM, "trainer: no memory for a copy of %lld numbers", (long long)n);
}

hola_status hl_trainer_fetch(hola_trainer *t, enum hl_trainer_part what) {
    hola_model *m = t->model;
    const int64_t size = (int64_t)sizeof(real), all = t->part * t->ranks;
    hola_status s = HOLA_OK;
    if (m->backend->host) return s;
    if (what & HL_PARAMS) s = hl_model_need_rows(m);
    if (s == HOLA_OK && what & HL_GRADS) {
        s = host_copy(&t->host_grads, all);
        if (s == HOLA_OK) hl_get(m->backend, t->host_grads, t->grads, all * size);
    }
    if (s == HOLA_OK && what & HL_MOMENTS) {
        s = host_copy(&t->host_m, t->n);
        if (s == HOLA_OK) s = host_copy(&t->host_v, t->n);
        if (s == HOLA_OK) {
            hl_get(m->backend, t->host_m, t->m, t->n * size);
            hl_get(m->backend, t->host_v, t->v, t->n * size);
        }
    }
    return s == HOLA_OK ? hl_finish(m->backend) : s;
}

hola_status hl_trainer_store(hola_trainer *t, enum hl_trainer_part what) {
    hola_model *m = t->model;
    const int64_t size = (int64_t)sizeof(real);
    hola_status s = HOLA_OK;
    if (m->backend->host) return s;
    if (what & HL_PARAMS) s = hl_model_need_master(m);
    if (what & HL_PARAMS) weights_changed(t);
    if (what & HL_GRADS) hl_put(m->backend, t->grads, t->host_grads, t->part * t->ranks * size);
    if (what & HL_MOMENTS) {
        hl_put(m->backend, t->m, t->host_m, t->n * size);
        hl_put(m->backend, t->v, t->host_v, t->n * size);
    }
    return s == HOLA_OK ? hl_finish(m->backend) : s;
}

struct hl_trainer_view hl_trainer_view(const hola_trainer *t) {
    const bool host = t->model->backend->host;
    return (struct hl_trainer_view){.total = t->model->params.total,
                                    .part = t->part,
                                    .first = t->first,
                                    .n = t->n,
                                    .params = t->model->rows,
                                    .grads = host ? t->grads : t->host_grads,
                                    .m = host ? t->m : t->host_m,
                                    .v = host ? t->v : t->host_v,
                                    .updates = t->step};
}

void hl_trainer_set_updates(hola_trainer *t, int64_t updates) { t->step = updates; }

/* ---- ranks whose devices communicate directly ---- */

hola_status hl_trainer_link(hola_trainer *t, int rank, void (*broadcast)(void *, int64_t bytes)) {
    if (!t->model->backend->collectives) return hl_fail(HOLA_ENOTSUP, "this backend has no link between ranks");
    if (t->part * t->ranks > t->model->params.total + HL_MASTER_SLACK)
        return hl_fail(HOLA_ENOTSUP, "%lld ranks are too many", (long long)t->ranks);
    hola_status s = t->model->backend->collectives->link(t->model->backend, rank, (int)t->ranks, broadcast);
    t->linked = s == HOLA_OK;
    return s;
}
bool hl_trainer_linked(const hola_trainer *t) { return t->linked; }

static void reduce_ready(void *ctx, int64_t first, int64_t n) {
    hola_trainer *t = ctx;
    t->model->backend->collectives->reduce(t->model->backend, t->grads, first, n, t->part);
}
void hl_trainer_announce(hola_trainer *t) {
    t->acts.ready = t->linked ? reduce_ready : NULL;
    t->acts.ready_ctx = t;
}
void hl_trainer_reduce(hola_trainer *t) {
    t->acts.ready = NULL;
    t->model->backend->collectives->reduced(t->model->backend);
}
void hl_trainer_share(hola_trainer *t) {
    t->model->backend->collectives->share(t->model->backend, t->model->master, t->part * (int64_t)sizeof(real));
    t->model->backend->collectives->share(t->model->backend, t->model->half, t->part * t->model->backend->act_size);
    weights_changed(t);
}

void hl_trainer_set_memory(hola_trainer *t, double rate, double decay) {
    t->memory_rate = rate, t->memory_decay = decay;
}

/* Consecutive tensors with the same training settings, within our part; a frozen one (tau) separates two runs. */
struct run_of {
    int64_t from, n; /* in reals */
    bool memory;
};
/* The first non-empty run from tensor *i; moves *i past it. False: none left. */
static bool next_run(const hola_trainer *t, int64_t *i, struct run_of *out) {
    const struct hl_params *p = &t->model->params;
    const bool own = t->memory_rate != 1 || t->memory_decay >= 0;
    const int64_t end = t->first + t->n;
    while (*i < p->n) {
        const struct hl_tensor *a = &p->tensor[(*i)++], *b = a;
        if (!a->trained) continue;
        while (*i < p->n && p->tensor[*i].trained && (!own || p->tensor[*i].memory == a->memory))
            b = &p->tensor[(*i)++];
        const int64_t from = a->offset > t->first ? a->offset : t->first;
        const int64_t to = b->offset + b->count < end ? b->offset + b->count : end;
        *out = (struct run_of){.from = from, .n = to - from, .memory = own && a->memory};
        if (to > from) return true;
    }
    return false;
}

double hl_trainer_sumsq(const hola_trainer *t) {
    double sum = 0, all = 0;
    struct hl_sumsq q = {.n = t->n, .x = t->grads + t->first, .out = &sum};
    struct run_of run;
    if (!t->some && t->n > 0) t->model->backend->ops.sumsq(t->model->backend, &q);
    for (int64_t i = 0; t->some && next_run(t, &i, &run); all += sum) {
        q.n = run.n, q.x = t->grads + run.from;
        t->model->backend->ops.sumsq(t->model->backend, &q);
    }
    return t->some ? all : sum;
}

void hl_trainer_apply(hola_trainer *t, double lr, double norm) {
    const hola_train_opts *o = &t->opt;
    struct hl_adamw a = {.beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps};
    struct run_of run;
    t->step++;
    a.grad_scale = o->clip > 0 && norm > o->clip ? o->clip / norm : 1;
    a.bias1 = 1 - pow(o->beta1, (double)t->step);
    a.bias2 = 1 - pow(o->beta2, (double)t->step);
    for (int64_t i = 0; next_run(t, &i, &run);) {
        const double decay = run.memory && t->memory_decay >= 0 ? t->memory_decay : o->weight_decay;
        a.lr = run.memory ? lr * t->memory_rate : lr;
        a.weight_decay = decay > 0 ? decay : 0;
        a.n = run.n;
        a.p = t->model->master + run.from;
        a.half = t->model->half ? (char *)t->model->half + run.from * t->model->backend->act_size : NULL;
        a.m = t->m + (run.from - t->first);
        a.v = t->v + (run.from - t->first);
        a.grad = t->grads + run.from;
        t->model->backend->ops.adamw(t->model->backend, &a);
    }
    weights_changed(t);
    t->model->stale = true;
    t->model->ahead = !t->model->backend->host;
}

void hl_trainer_clear(hola_trainer *t) {
    hl_zero(t->model->backend, t->grads, t->part * t->ranks * (int64_t)sizeof(real));
}

hola_status hola_trainer_update(hola_trainer *t, double lr, double *grad_norm) {
    HL_NEED(t, "the trainer");
    hola_status s = HOLA_OK;
    if (!(lr >= 0 && isfinite(lr))) return hl_fail(HOLA_EINVAL, "learning rate: %g", lr);
    HL_ASSERT(t->ranks == 1);
    const double norm = sqrt(hl_trainer_sumsq(t));
    if (grad_norm) *grad_norm = norm;
    if (isfinite(norm)) hl_trainer_apply(t, lr, norm);
    else s = hl_fail(HOLA_ENUMERIC, "gradient norm: %g; the step is skipped", norm);
    hl_trainer_clear(t);
    return s;
}
