/* prepare.c -- see prepare.h. One batch of documents is encoded while the next is read; documents are written in input
 * order. */
#define _GNU_SOURCE
#include "data/prepare.h"
#include "core/clock.h"
#include "core/pool.h"
#include "data/prepare_out.h"
#include "tokenizer/gguf_keys.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    BATCH_BYTES = 8 << 20,
    BATCH_DOCS = 4096,
    LARGE = 4 << 20, /* a larger document is encoded by all threads together */
    NAMES = 1000     /* source files listed in dataset.json */
};

/* An error on another thread: its message is passed to the calling thread. */
struct failure {
    hola_status status;
    char text[512];
};
static void keep(struct failure *f, hola_status s) {
    f->status = s;
    if (s != HOLA_OK) snprintf(f->text, sizeof f->text, "%s", hola_last_error());
}
static hola_status tell(const struct failure *f) {
    return f->status == HOLA_OK ? HOLA_OK : hl_fail(f->status, "%s", f->text);
}

struct item {
    struct hl_record record;
    struct hl_document document;
    int64_t answers;
    bool bad;
    struct failure failure;
};
struct batch {
    struct item *item;
    int64_t n;
    struct failure failure; /* of reading the next batch */
};

struct job {
    const struct hl_prepare_opts *o;
    struct hl_source *source;
    hola_tokenizer *tokenizer;
    struct hl_pool *pool;
    struct hl_template *look;
    struct hl_chat chat;
    struct batch batch[2], *now, *next;
};

/* ---- the two kinds of tasks ---- */

static void read_batch(struct job *j, struct batch *b) {
    int64_t bytes = 0;
    b->n = 0;
    b->failure.status = HOLA_OK;
    while (b->n < BATCH_DOCS && bytes < BATCH_BYTES) {
        struct item *it = &b->item[b->n];
        hola_status s;
        it->document = (struct hl_document){0};
        it->bad = false;
        it->answers = 0;
        it->failure.status = HOLA_OK;
        s = hl_source_next(j->source, &it->record);
        keep(&b->failure, s);
        if (s != HOLA_OK || !it->record.text) break;
        bytes += it->record.len;
        b->n++;
    }
}

static hola_status encode_text(const struct job *j, struct item *it, int threads) {
    hola_status s = hl_record_decode(&it->record, j->o->field);
    if (s == HOLA_OK && it->record.len > 0)
        s = hola_tokenizer_encode(j->tokenizer, it->record.text, it->record.len, threads, &it->document.ids,
                                  &it->document.n);
    it->document.bytes = it->record.len;
    return s;
}

static hola_status encode_chat(const struct job *j, struct item *it) {
    struct hl_lesson l;
    hola_status s = hl_chat_decode(&j->chat, &it->record, &l, &it->document.bytes);
    it->answers = l.answers;
    if (s == HOLA_OK && l.answers > 0) { /* takes ownership of the lesson's arrays */
        l.trained[0] |= HL_TOKEN_BEGINS;
        it->document.ids = l.ids.data, it->document.flags = l.trained, it->document.n = l.ids.n;
        return s;
    }
    hl_lesson_free(&l);
    return s;
}

static void encode(const struct job *j, struct item *it, int threads) {
    const hola_status s = j->o->chat ? encode_chat(j, it) : encode_text(j, it, threads);
    it->bad = s == HOLA_EFORMAT;
    keep(&it->failure, s);
    free(it->record.text);
    it->record.text = NULL;
}

static void run_task(void *ctx, int64_t i, int worker) {
    struct job *j = ctx;
    (void)worker;
    if (i == 0) read_batch(j, j->next);
    else if (j->now->item[i - 1].record.len < LARGE) encode(j, &j->now->item[i - 1], 1);
}

/* ---- the path of a batch ---- */

static hola_status write_batch(struct job *j, struct hl_out *out) {
    struct hl_prepare_result *r = out->result;
    for (int64_t i = 0; i < j->now->n; i++) {
        struct item *it = &j->now->item[i];
        hola_status s = HOLA_OK;
        if (it->record.text) encode(j, it, hl_pool_threads(j->pool));
        if (it->bad && j->o->skip_bad) r->bad++;
        else if (it->failure.status != HOLA_OK) s = tell(&it->failure);
        else if (it->document.n == 0 && j->o->chat) r->unanswered++;
        else if (it->document.n == 0) r->empty++;
        else r->answers += it->answers, s = hl_out_add(out, &it->document);
        free(it->document.ids);
        free(it->document.flags);
        it->document.ids = NULL, it->document.flags = NULL;
        if (s != HOLA_OK) return s;
    }
    return HOLA_OK;
}

static hola_status run_batches(struct job *j, struct hl_out *out) {
    hola_status s = HOLA_OK;
    read_batch(j, j->next);
    while (s == HOLA_OK) {
        struct batch *b = j->next;
        j->next = j->now, j->now = b;
        if (b->n > 0) hl_pool_run(j->pool, b->n + 1, run_task, j);
        s = write_batch(j, out);
        if (s == HOLA_OK) s = tell(&b->failure);
        hl_source_progress(j->source, &out->result->all.done, &out->result->all.all);
        if (s == HOLA_OK && j->o->progress) j->o->progress(j->o->ctx, &out->result->all);
        if (b->n == 0) break;
    }
    return s;
}

/* ---- from text ---- */

/* Which file to copy, and its name in a dataset. */
static hola_status name_tokenizer(const struct hl_prepare_opts *o, struct hl_out *out) {
    static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
    struct stat st;
    size_t n = strlen(o->tokenizer);
    if (!strcmp(o->tokenizer, "byte")) {
        out->called = "byte";
        return HOLA_OK;
    }
    if (hl_gguf_refuse_copy(o->tokenizer) != HOLA_OK) return HOLA_ENOTSUP;
    if (stat(o->tokenizer, &st) == 0 && S_ISDIR(st.st_mode)) {
        for (int i = 0; i < 2; i++) { /* same order as hola_tokenizer_load */
            free(out->tokenizer);
            out->called = names[i];
            out->tokenizer = hl_path_join(o->tokenizer, names[i]);
            if (!out->tokenizer || stat(out->tokenizer, &st) == 0) break;
        }
    } else {
        out->called = names[n >= 5 && !strcmp(o->tokenizer + n - 5, ".json")];
        out->tokenizer = strdup(o->tokenizer);
    }
    return out->tokenizer ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", o->tokenizer);
}

/* A name as JSON: non-ASCII bytes may not be valid UTF-8 and are then dropped. */
static json_t *name_of(const char *path) {
    json_t *name = json_string(path);
    char *ascii = name ? NULL : strdup(path);
    for (char *p = ascii; p && *p; p++)
        if (*p & 0x80) *p = '?';
    if (ascii) name = json_string(ascii);
    free(ascii);
    return name;
}

static json_t *describe_source(const struct hl_source *s) {
    json_t *names = json_array();
    for (int64_t i = 0; i < hl_source_files(s) && i < NAMES; i++)
        json_array_append_new(names, name_of(hl_source_path(s, i)));
    return json_pack("{s:I, s:o}", "source_files", (json_int_t)hl_source_files(s), "sources", names);
}

/* Opens the template named by the options or by the tokenizer's files. */
static hola_status open_look(struct job *j, struct hl_out *out) {
    const struct hl_prepare_opts *o = j->o;
    struct hl_prepare_result *r = out->result;
    struct stat st;
    const char *slash = strrchr(o->tokenizer, '/');
    char dir[4096] = ".";
    if (o->look && !strcmp(o->look, "none")) return snprintf(r->look, sizeof r->look, "none"), HOLA_OK;
    if (stat(o->tokenizer, &st) == 0 && S_ISDIR(st.st_mode)) snprintf(dir, sizeof dir, "%s", o->tokenizer);
    else if (slash) snprintf(dir, sizeof dir, "%.*s", (int)(slash - o->tokenizer + 1), o->tokenizer);
    hola_status s = hl_template_open(&j->look, o->look, dir, j->tokenizer, &r->guessed);
    if (s == HOLA_OK) s = hl_template_teaches(j->look);
    if (s == HOLA_OK) snprintf(r->look, sizeof r->look, "%s", hl_template_name(j->look));
    out->look = j->look;
    return s;
}

static hola_status from_text(const struct hl_prepare_opts *o, struct hl_out *out) {
    struct job j = {.o = o, .now = &j.batch[0], .next = &j.batch[1]};
    struct hl_prepare_result *r = out->result;
    struct hl_source_opts source = o->source;
    hola_status s = hola_tokenizer_load(&j.tokenizer, o->tokenizer);
    if (o->chat) source.format = HL_FORMAT_JSONL;
    if (s == HOLA_OK && o->chat) s = open_look(&j, out);
    if (s == HOLA_OK) s = name_tokenizer(o, out);
    if (s == HOLA_OK) s = hl_source_open(&j.source, o->inputs, o->n_inputs, &source);
    if (s == HOLA_OK) s = hl_pool_new(&j.pool, o->threads);
    for (int i = 0; i < 2 && s == HOLA_OK; i++)
        if (!(j.batch[i].item = calloc(BATCH_DOCS, sizeof *j.batch[i].item))) s = hl_fail(HOLA_ENOMEM, "no memory");
    if (s == HOLA_OK) {
        r->vocab = hola_tokenizer_size(j.tokenizer);
        r->bos = o->no_bos ? -1 : hola_tokenizer_bos(j.tokenizer);
        out->front = o->chat ? -1 : r->bos; /* conversations contain their own BOS */
        out->flagged = o->chat;
        j.chat = (struct hl_chat){.tokenizer = j.tokenizer, .look = j.look, .bos = r->bos >= 0, .all = o->loss_on_all};
        s = run_batches(&j, out);
    }
    if (s == HOLA_OK && r->all.documents == 0)
        s = hl_fail(HOLA_EINVAL, "%s%s: no %s in it", o->inputs[0], o->n_inputs > 1 ? " and so on" : "",
                    o->chat ? "conversation with an answer" : "text");
    if (s == HOLA_OK) {
        json_t *about = describe_source(j.source);
        if (about && o->chat) {
            json_object_set_new(about, "chat_template", name_of(r->look));
            json_object_set_new(about, "loss_on", json_string(o->loss_on_all ? "all" : "answers"));
        }
        s = about ? hl_out_end(out, about) : hl_fail(HOLA_ENOMEM, "no memory");
        json_decref(about);
    }
    for (int b = 0; b < 2; b++) {
        for (int64_t i = 0; j.batch[b].item && i < BATCH_DOCS; i++) {
            free(j.batch[b].item[i].record.text);
            free(j.batch[b].item[i].document.ids);
            free(j.batch[b].item[i].document.flags);
        }
        free(j.batch[b].item);
    }
    hl_pool_free(j.pool);
    hl_source_free(j.source);
    hl_template_free(j.look);
    hola_tokenizer_free(j.tokenizer);
    return s;
}

/* ---- generated ---- */

static hola_status from_generator(const struct hl_prepare_opts *o, struct hl_out *out) {
    struct hl_prepare_result *r = out->result;
    bool recall = o->generate == HL_GENERATE_RECALL;
    int64_t length = recall ? o->recall.length : o->mqar.length;
    hola_status s = recall ? hl_recall_check(&o->recall) : hl_mqar_check(&o->mqar);
    r->vocab = recall ? hl_recall_vocab(&o->recall) : o->mqar.vocab;
    r->bos = recall ? HL_RECALL_BEGIN : -1; /* the sequences contain their own first token */
    r->all.all = o->samples;
    for (int64_t i = 0; i < o->samples && s == HOLA_OK; i++) {
        struct hl_document d = {.ids = malloc((size_t)length * sizeof *d.ids), .n = length};
        if (!d.ids) return hl_fail(HOLA_ENOMEM, "a sequence of %" PRId64 " tokens", length);
        s = recall ? hl_recall_make(&o->recall, o->seed, i, d.ids, NULL)
                   : hl_mqar_make(&o->mqar, o->seed, i, d.ids, NULL);
        if (s == HOLA_OK) s = hl_out_add(out, &d);
        free(d.ids);
        r->all.done = i + 1;
        if (s == HOLA_OK && o->progress && i % 256 == 255) o->progress(o->ctx, &r->all);
    }
    if (s == HOLA_OK) {
        json_t *about =
            json_pack("{s:s, s:I}", "generated", recall ? "recall" : "mqar", "sequence_length", (json_int_t)length);
        s = about ? hl_out_end(out, about) : hl_fail(HOLA_ENOMEM, "no memory");
        json_decref(about);
    }
    return s;
}

hola_status hl_prepare(const struct hl_prepare_opts *o, struct hl_prepare_result *r) {
    const double begun = hl_clock();
    struct hl_out out = {.opts = o, .result = r, .front = -1, .lock = -1};
    hola_status s;
    *r = (struct hl_prepare_result){.bos = -1};
    s = hl_out_check(o);
    if (s == HOLA_OK) s = o->generate ? from_generator(o, &out) : from_text(o, &out);
    hl_out_free(&out);
    r->seconds = hl_clock() - begun;
    return s;
}
