/* setup.c -- starting a run: data, run identity, directory, model and optimizer. */
#define _GNU_SOURCE
#include "chat/template.h"
#include "core/file.h"
#include "core/json.h"
#include "core/pool.h"
#include "model/config.h"
#include "model/model.h"
#include "train/run.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hola_status no_memory(void) { return hl_fail(HOLA_ENOMEM, "no memory for the run"); }

/* ---- data ---- */

static hola_status open_split(struct hl_run *r, const char *split, struct hl_dataset **out) {
    const struct hl_train *o = r->o;
    struct hl_pool *pool = NULL;
    int64_t seq = o->seq_len;
    hola_status s = hl_dataset_open(out, o->data, split, o->config.vocab_size);
    if (s != HOLA_OK) return s;
    /* a validation text shorter than a row becomes one short row */
    if (!strcmp(split, "val") && hl_dataset_info(*out)->tokens < seq) seq = hl_dataset_info(*out)->tokens;
    const bool packed = o->documents || hl_dataset_info(*out)->flagged;
    if (packed) s = hl_pool_new(&pool, o->model.threads); /* the model's pool does not exist yet */
    if (s == HOLA_OK) s = hl_dataset_rows(*out, packed ? HL_ROWS_PACKED : HL_ROWS_STREAM, seq, -1, pool);
    hl_pool_free(pool);
    return s;
}

/* Adds the file if it exists. */
static bool add_file(struct hl_run *r, const char *dir, const char *name) {
    char *path = hl_path_join(dir, name);
    int n = 0;
    while (r->files[n]) n++;
    const bool there = path && n < HL_RUN_FILES && access(path, R_OK) == 0;
    if (there) r->files[n] = path;
    else free(path);
    return there;
}

/* The tokenizer that the shards were made with; the initial model's if that is unknown. */
static void find_tokenizer(struct hl_run *r) {
    const char *path = hl_dataset_info(r->train)->tokenizer, *dir = r->o->data;
    if (!path) dir = r->o->from;
    if (!dir) return;
    if (path && !strcmp(path, "byte")) add_file(r, dir, "tokenizer.json"); /* written by hola prepare */
    else if (path) add_file(r, dir, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    else add_file(r, dir, "tokenizer.model"), add_file(r, dir, "tokenizer.json");
    if (!r->files[0]) return;
    static const char *const more[] = {"tokenizer_config.json", "special_tokens_map.json", HL_TEMPLATE_FILE};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (!add_file(r, dir, more[i]) && r->o->from) add_file(r, r->o->from, more[i]);
}

/* The initial weights are only valid for their own tokenizer. */
static hola_status check_tokenizer(struct hl_run *r) {
    const char *here = hl_dataset_info(r->train)->tokenizer, *from = r->o->from;
    hola_tokenizer *a = NULL, *b = NULL;
    hola_status s = HOLA_OK;
    if (!here || !from || hola_tokenizer_load(&b, from) != HOLA_OK) return s; /* a model without a tokenizer */
    s = hola_tokenizer_load(&a, here);
    const int64_t n = s == HOLA_OK ? hola_tokenizer_size(a) : 0;
    for (int64_t i = 0; i < n && s == HOLA_OK; i++) {
        char *x = NULL, *y = NULL;
        int64_t nx = 0, ny = -1;
        s = hola_tokenizer_piece(a, (int32_t)i, &x, &nx);
        if (s == HOLA_OK && i < hola_tokenizer_size(b)) s = hola_tokenizer_piece(b, (int32_t)i, &y, &ny);
        if (s == HOLA_OK && (nx != ny || memcmp(x, y, (size_t)nx) != 0))
            s = hl_fail(HOLA_EINVAL,
                        "%s: its tokenizer is not that of %s: token %" PRId64
                        " is another one; prepare the data with --tokenizer %s",
                        r->o->data, from, i, from);
        free(x);
        free(y);
    }
    hola_tokenizer_free(a);
    hola_tokenizer_free(b);
    return s;
}

/* Slices of a run that neither was given --micro-tokens nor chooses, as of those before hola chose. */
enum { UNCHOSEN_TOKENS = HL_SLICE_TOKENS / 4 };
static int64_t slice_rows(const struct hl_train *o, int64_t tokens) {
    return tokens < o->seq_len ? 1 : tokens / o->seq_len;
}

static hola_status setup_data(struct hl_run *r) {
    const struct hl_train *o = r->o;
    hola_status s;
    if (o->seq_len < 2)
        return hl_fail(HOLA_EINVAL, "--seq-len %" PRId64 " is too short: there is nothing to predict", o->seq_len);
    if (o->batch_tokens % o->seq_len != 0 || o->batch_tokens < o->seq_len)
        return hl_fail(HOLA_EINVAL, "--batch-tokens %" PRId64 " must be a multiple of --seq-len %" PRId64,
                       o->batch_tokens, o->seq_len);
    r->rows_per_step = o->batch_tokens / o->seq_len;
    if (r->rows_per_step < r->dist->size)
        return hl_fail(HOLA_EINVAL, "a batch of %" PRId64 " rows cannot be split evenly among %d ranks",
                       r->rows_per_step, r->dist->size);
    r->chooses = o->micro_tokens == 0 && r->dist->size == 1; /* ranks need the same slices */
    r->rows_per_micro = slice_rows(o, r->chooses             ? HL_SLICE_TOKENS
                                      : o->micro_tokens == 0 ? UNCHOSEN_TOKENS
                                                             : o->micro_tokens);
    if (r->rows_per_micro > r->rows_per_step) r->rows_per_micro = r->rows_per_step;
    s = open_split(r, "train", &r->train);
    if (s == HOLA_OK && hl_dataset_has(o->data, "val")) s = open_split(r, "val", &r->val);
    if (s == HOLA_OK) s = hl_batch_new(&r->batch, r->rows_per_step, o->seq_len);
    if (s != HOLA_OK) return s;
    s = check_tokenizer(r);
    if (s != HOLA_OK) return s;
    find_tokenizer(r);
    r->eval_every = o->eval_every > 0 ? o->eval_every : 250;
    if (r->val) {
        int64_t tokens = o->eval_tokens;
        if (tokens <= 0) tokens = o->batch_tokens < 32768 ? 16 * o->batch_tokens : 524288;
        r->eval_rows = (tokens + o->seq_len - 1) / o->seq_len;
        if (r->eval_rows > hl_dataset_info(r->val)->rows) r->eval_rows = hl_dataset_info(r->val)->rows;
    }
    return HOLA_OK;
}

/* Fills in numbers that the options leave open. */
static hola_status setup_schedule(struct hl_run *r) {
    struct hl_schedule *c = &r->schedule;
    *c = r->o->schedule;
    c->steps = r->o->steps;
    const int64_t rows = hl_dataset_info(r->train)->rows;
    if (c->steps == 0 && r->o->epochs > 0) {
        const double steps = r->o->epochs * (double)rows / (double)r->rows_per_step;
        if (steps > INT32_MAX) return hl_fail(HOLA_EINVAL, "--epochs %g: %.3g steps", r->o->epochs, steps);
        c->steps = llround(steps);
    }
    if (c->steps == 0) c->steps = rows / r->rows_per_step;
    if (c->steps < 1) c->steps = 1;
    if (c->warmup < 0) c->warmup = c->steps / 10 < 1000 ? c->steps / 10 : 1000;
    if (c->kind != HL_WSD) c->decay = 0;
    if (c->decay < 0) c->decay = c->steps / 5;
    if (c->warmup > c->steps)
        return hl_fail(HOLA_EINVAL, "--warmup %" PRId64 " is longer than the run of %" PRId64 " steps", c->warmup,
                       c->steps);
    if (c->kind == HL_WSD && c->warmup + c->decay > c->steps)
        return hl_fail(HOLA_EINVAL, "warmup and decay, %" PRId64 " steps, are longer than the run of %" PRId64,
                       c->warmup + c->decay, c->steps);
    return HOLA_OK;
}

/* ---- run identity ---- */

/* A hash of the first and last row: detects different data of the same size. */
static hola_status fingerprint(struct hl_run *r, char out[24]) {
    uint64_t h = 0xcbf29ce484222325u;
    const int64_t rows[] = {0, hl_dataset_info(r->train)->rows - 1};
    for (int i = 0; i < 2; i++) {
        hola_status s = hl_batch_load(&r->batch, r->train, NULL, rows[i], 1);
        if (s != HOLA_OK) return s;
        for (int64_t k = 0; k < r->batch.tokens; k++) h = (h ^ (uint64_t)(uint32_t)r->batch.ids[k]) * 0x100000001b3u;
        for (int64_t k = 0; k < r->batch.tokens && r->batch.flagged; k++)
            h = (h ^ (uint64_t)r->batch.trained[k]) * 0x100000001b3u;
    }
    snprintf(out, 24, "%016" PRIx64, h);
    return HOLA_OK;
}

static hola_status config_object(const hola_config *cfg, json_t **out) {
    char *text = NULL;
    hola_status s = hl_config_text(cfg, NULL, HOLA_F32, &text);
    if (s == HOLA_OK) s = hl_json_object(out, text, (int64_t)strlen(text), HL_MAX_CONFIG_TEXT, "config.json");
    free(text);
    return s;
}

/* Only non-default values, so that runs of earlier versions can be resumed. */
static bool add_memory_options(json_t *root, const struct hl_train_memory *m) {
    bool good = true;
    if (m->only) good = json_object_set_new(root, "train_only", json_string("memory")) == 0;
    if (m->rate > 0) good = good && json_object_set_new(root, "memory_lr", json_real(m->rate)) == 0;
    if (m->own_decay) good = good && json_object_set_new(root, "memory_decay", json_real(m->decay)) == 0;
    if (m->layers) good = good && json_object_set_new(root, "memory_layers", json_string(m->layers)) == 0;
    return good;
}

static hola_status setup_identity(struct hl_run *r) {
    const struct hl_train *o = r->o;
    const struct hl_dataset_info *train = hl_dataset_info(r->train);
    json_t *config = NULL, *data, *root;
    char print[24], *from = o->from ? realpath(o->from, NULL) : NULL;
    hola_status s = fingerprint(r, print);
    if (s == HOLA_OK) s = config_object(&o->config, &config);
    if (s != HOLA_OK) return free(from), s;
    data = json_pack("{s:I, s:I, s:s}", "train_tokens", (json_int_t)train->tokens, "val_tokens",
                     (json_int_t)(r->val ? hl_dataset_info(r->val)->tokens : 0), "fingerprint", print);
    root = json_pack("{s:I, s:I, s:I, s:b, s:I, s:f, s:s, s:I, s:f, s:I}", "seed", (json_int_t)o->seed, "seq_len",
                     (json_int_t)o->seq_len, "batch_tokens", (json_int_t)o->batch_tokens, "documents",
                     o->documents || train->flagged, "steps", (json_int_t)r->schedule.steps, "lr", r->schedule.peak,
                     "schedule", hl_schedule_names[r->schedule.kind], "warmup", (json_int_t)r->schedule.warmup,
                     "min_lr", r->schedule.floor, "decay", (json_int_t)r->schedule.decay);
    json_t *adamw = json_pack("{s:f, s:f, s:f, s:f, s:f}", "beta1", o->adamw.beta1, "beta2", o->adamw.beta2, "eps",
                              o->adamw.eps, "weight_decay", o->adamw.weight_decay, "clip", o->adamw.clip);
    json_t *start = from || o->from ? json_string(from ? from : o->from) : json_null();
    bool good = root && data && adamw && start && add_memory_options(root, &o->memory);
    if (o->adamw.precision) /* as above */
        good =
            good && json_object_set_new(root, "precision", json_string(hl_train_precisions[o->adamw.precision])) == 0;
    good = good && json_object_update(root, adamw) == 0 && json_object_set(root, "from", start) == 0 &&
           json_object_set(root, "data", data) == 0 && json_object_set(root, "config", config) == 0;
    json_decref(adamw), json_decref(start), json_decref(data), json_decref(config);
    free(from);
    r->identity = root;
    return good ? HOLA_OK : no_memory();
}

/* Options that are not part of the identity; kept in run.json for information. */
static json_t *other_options(const struct hl_run *r) {
    const struct hl_train *o = r->o;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:s, s:b, s:i}", "data", o->data, "out", o->out,
                     "micro_tokens", (json_int_t)o->micro_tokens, "eval_every", (json_int_t)r->eval_every, "eval_rows",
                     (json_int_t)r->eval_rows, "save_every", (json_int_t)o->save_every, "keep", (json_int_t)o->keep,
                     "threads", o->model.threads, "backend", o->model.backend ? o->model.backend : "cpu", "recompute",
                     o->adamw.recompute, "ranks", r->dist->size);
}

/* ---- model ---- */

static hola_status check_config(struct hl_run *r, const char *dir) {
    json_t *there = NULL, *given = json_object_get(r->identity, "config");
    hola_status s = config_object(hola_model_config(r->model), &there);
    if (s == HOLA_OK) s = hl_json_same(dir, there, given, ": a checkpoint of another model");
    json_decref(there);
    return s;
}

/* Parses "1,3,5" into has[layers]. */
static hola_status read_layers(const char *list, int64_t layers, bool *has) {
    for (const char *p = list; *p;) {
        char *end;
        const long long i = strtoll(p, &end, 10);
        if (end == p || (*end && (*end != ',' || !end[1])) || i < 0 || i >= layers)
            return hl_fail(HOLA_EINVAL, "--memory-layers %s: not a list of layers from 0 to %" PRId64, list,
                           layers - 1);
        has[i] = true;
        p = end + (*end == ',');
    }
    return HOLA_OK;
}

/* Decides what is trained. fresh: close the gates of layers without a memory; a checkpoint already has them closed. */
static hola_status setup_memory(struct hl_run *r, bool fresh) {
    const struct hl_train_memory *o = &r->o->memory;
    struct hl_params *p = &r->model->params;
    const int64_t layers = p->cfg.num_hidden_layers;
    bool *has = calloc((size_t)layers, sizeof *has), any = false;
    hola_status s = has ? HOLA_OK : no_memory();
    for (int64_t i = 0; i < p->n; i++) any |= p->tensor[i].memory && p->tensor[i].trained;
    if (s == HOLA_OK && !any && (o->only || o->layers || o->rate > 0 || o->own_decay))
        s = hl_fail(HOLA_EINVAL, "this model has no exact memory that could be trained");
    if (s == HOLA_OK && o->layers) s = read_layers(o->layers, layers, has);
    for (int64_t i = 0; s == HOLA_OK && i < p->n; i++) {
        struct hl_tensor *t = &p->tensor[i];
        const bool without = o->layers && t->memory && !has[t->layer];
        if (!t->trained || !(without || (o->only && !t->memory))) continue;
        t->trained = false;
        p->trained -= t->count;
        const real closed = p->cfg.cache_gate_linear || strstr(t->name, "cache_gate_proj") ? 0 : -10000;
        if (without && fresh && strstr(t->name, "cache_gate")) /* sigma(-1e4) is 0 in floats */
            for (int64_t k = 0; k < t->count; k++) r->model->rows[t->offset + k] = closed;
    }
    free(has);
    return s;
}

static struct hl_slice_shape slice_shape(const struct hl_run *r) {
    const struct hl_train *o = r->o;
    const struct hl_dataset_info *d = hl_dataset_info(r->train);
    const int64_t documents =
        (o->documents || d->flagged) && d->rows > 0 ? d->documents / d->rows + 1 : 1; /* per row */
    return (struct hl_slice_shape){.tokens = r->rows_per_micro * o->seq_len,
                                   .pieces = r->rows_per_micro * documents,
                                   .recompute = o->adamw.recompute,
                                   .fp8 = o->adamw.precision == HOLA_PRECISION_FP8};
}
static hola_status predict_memory(struct hl_run *r) {
    const struct hl_train *o = r->o;
    const struct hl_slice_shape shape = slice_shape(r);
    hola_status s = hl_memory_predict(&r->memory, r->model, &shape, r->dist->size, o->batch_tokens);
    if (o->benchmark && !r->memory.device) /* the weights in the form for inference, in addition to the rows */
        r->memory.fixed += r->model->params.total * (int64_t)sizeof(real);
    return s == HOLA_OK ? hl_memory_check(&r->memory, r->model, &shape, o->seq_len, o->max_memory) : s;
}

/* A tenth is left for what is not predicted. */
static bool fills_memory(const struct hl_memory *m) {
    return m->left > 0 && (double)hl_memory_total(m) > 0.9 * (double)(m->held + m->left);
}
/* Predicts the memory of the run, and refuses before allocating if it does not fit. Slices that the run chooses are
 * halved until they fit; a run that goes on has those of before. */
static hola_status setup_memory_use(struct hl_run *r, int64_t before) {
    const struct hl_fp8_sizes fp8 = hl_trainer_fp8_sizes(r->model, r->rows_per_micro * r->o->seq_len);
    if (r->o->adamw.precision == HOLA_PRECISION_FP8 && fp8.left_over > 0)
        hl_run_note(r, "%" PRId64 " of %" PRId64 " large matrices are not in FP8: their sizes are not multiples of %d",
                    fp8.left_over, fp8.left_over + fp8.taken, (int)HL_FP8_ALIGN);
    if (r->chooses && before > 0) r->rows_per_micro = before < r->rows_per_step ? before : r->rows_per_step;
    hola_status s = predict_memory(r);
    while (r->chooses && before == 0 && r->rows_per_micro > 1 &&
           (s == HOLA_ENOMEM || (s == HOLA_OK && fills_memory(&r->memory)))) {
        r->rows_per_micro = (r->rows_per_micro + 1) / 2;
        s = predict_memory(r);
    }
    return s;
}

static hola_status setup_model(struct hl_run *r, int64_t step) {
    const struct hl_train *o = r->o;
    hola_train_opts opt = o->adamw;
    hola_options model = o->model;
    char backend[32];
    char *dir = step >= 0 ? hl_rundir_step(&r->dir, step) : NULL;
    hola_status s;
    if (step >= 0 && !dir) return no_memory();
    struct hl_train_state state = {0};
    opt.size = sizeof opt;
    if (opt.weight_decay == 0) opt.weight_decay = -1; /* there, zero means default */
    if (opt.clip == 0) opt.clip = -1;
    if (r->dist->size > 1 && model.backend && !strncmp(model.backend, "cuda", 4) && !strchr(model.backend, ':')) {
        snprintf(backend, sizeof backend, "%s:%d", model.backend, r->dist->local); /* one device per rank */
        model.backend = backend;
    }
    if (dir) s = hola_model_load(&r->model, dir, &model);
    else if (o->from) s = hl_model_load_as(&r->model, o->from, &o->config, &model);
    else s = hola_model_new(&r->model, &o->config, o->seed, &model);
    if (s == HOLA_OK) s = check_config(r, dir ? dir : o->from ? o->from : "the model");
    if (s == HOLA_OK) s = setup_memory(r, !dir);
    if (s == HOLA_OK && dir) s = hl_checkpoint_state(dir, &state);
    const int64_t before = state.slice_rows ? state.slice_rows : dir ? slice_rows(o, UNCHOSEN_TOKENS) : 0;
    if (s == HOLA_OK) s = setup_memory_use(r, before);
    opt.max_tokens = r->rows_per_micro * o->seq_len;
    if (s == HOLA_OK) s = hl_trainer_new_part(&r->trainer, r->model, &opt, r->dist->rank, r->dist->size);
    if (s == HOLA_OK)
        hl_trainer_set_memory(r->trainer, o->memory.rate > 0 ? o->memory.rate : 1,
                              o->memory.own_decay ? o->memory.decay : -1);
    if (s == HOLA_OK && !r->model->backend->host && r->dist->size > 1 &&
        hl_trainer_link(r->trainer, r->dist->rank, r->dist->broadcast) != HOLA_OK)
        hl_run_note(r, "the devices cannot communicate directly, so the host copies: %s", hola_last_error());
    if (s == HOLA_OK && dir) {
        s = hl_trainer_fetch(r->trainer, HL_MOMENTS); /* allocates them */
        struct hl_trainer_view view = hl_trainer_view(r->trainer);
        if (s == HOLA_OK && state.step != step)
            s = hl_fail(HOLA_EFORMAT, "%s: training.json says step %" PRId64, dir, state.step);
        r->state = state;
        if (s == HOLA_OK) s = hl_checkpoint_moments(dir, r->model, &view);
        if (s == HOLA_OK) s = hl_trainer_store(r->trainer, HL_MOMENTS);
        if (s == HOLA_OK) hl_trainer_set_updates(r->trainer, r->state.updates);
    } else {
        r->state = (struct hl_train_state){.seed = o->seed, .val_loss = (double)NAN, .best_val = (double)NAN};
    }
    r->state.slice_rows = r->chooses ? r->rows_per_micro : 0;
    free(dir);
    return s;
}

/* ---- all of it ---- */

/* Rank 0 owns the directory; the others only know its names. */
static hola_status open_directory(struct hl_run *r, int64_t *step) {
    json_t *options = other_options(r);
    hola_status s = options ? hl_rundir_open(&r->dir, r->o->out) : no_memory();
    if (s == HOLA_OK) s = hl_rundir_begin(&r->dir, r->identity, options, r->o->restart, step);
    json_decref(options);
    if (s != HOLA_OK || !r->o->settings) return s;
    char *path = hl_path_join(r->o->out, "settings.json");
    s = path ? hl_write_file(path, r->o->settings, (int64_t)strlen(r->o->settings)) : no_memory();
    free(path);
    return s;
}

/* Restores the history of the run for divergence checks: the same on all ranks. */
static hola_status setup_logs(struct hl_run *r) {
    struct hl_metrics_history h = {0};
    char *path = hl_path_join(r->o->out, "metrics.jsonl");
    const int64_t last = r->state.step - r->state.pending;
    hl_watch_begin(&r->watch, r->o->diverge);
    if (!path) return no_memory();
    hola_status s = access(path, F_OK) == 0 ? hl_metrics_history_read(&h, path) : HOLA_OK;
    r->owed = (struct hl_metric){.step = r->state.step, .tokens = r->state.tokens, .val_loss = (double)NAN};
    for (int64_t i = 0; i < h.n; i++)
        if (h.at[i].step <= last) hl_watch_add(&r->watch, &h.at[i]);
        else if (h.at[i].step == r->state.step) r->owed = h.at[i];
    hl_metrics_history_free(&h);
    free(path);
    if (s == HOLA_OK && r->root) s = hl_metrics_open(&r->metrics, r->dir.metrics, r->state.step);
    const bool goes_on = r->state.step < r->schedule.steps || r->state.pending;
    if (s == HOLA_OK && r->root && r->o->tensorboard && goes_on) s = hl_tensorboard_open(&r->board, r->dir.out, last);
    return s;
}

hola_status hl_run_setup(struct hl_run *r, const struct hl_train *o) {
    int64_t step = -1;
    *r = (struct hl_run){
        .o = o, .dist = o->dist ? o->dist : &hl_dist_alone, .dir.lock = -1, .metrics.fd = -1, .latest = -1};
    r->root = r->dist->rank == 0;
    hola_status s = setup_data(r);
    if (s == HOLA_OK) s = setup_schedule(r);
    if (s == HOLA_OK) s = setup_identity(r);
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) return s;
    if (r->root) s = open_directory(r, &step);
    else if (!(r->dir.checkpoints = hl_path_join(o->out, "checkpoints"))) s = no_memory();
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) return s;
    r->dist->broadcast(&step, sizeof step);
    s = setup_model(r, step);
    r->latest = step;
    s = hl_dist_agree(r->dist, s, &r->speaks);
    if (s != HOLA_OK) {
        hl_rundir_undo(&r->dir);
        return s;
    }
    return hl_dist_agree(r->dist, setup_logs(r), &r->speaks);
}

void hl_run_free(struct hl_run *r) {
    hola_trainer_free(r->trainer);
    hola_model_free(r->model);
    hl_metrics_close(&r->metrics);
    hl_tensorboard_close(&r->board);
    hl_rundir_close(&r->dir);
    hl_batch_free(&r->batch);
    hl_dataset_free(r->train);
    hl_dataset_free(r->val);
    for (int i = 0; i < HL_RUN_FILES; i++) free(r->files[i]);
    json_decref(r->identity);
}
