/* dataset.c -- the shards of a split as one sequence of tokens, and rows cut from it. */
#define _GNU_SOURCE
#include "data/dataset.h"
#include "core/json.h"
#include "core/rng.h"
#include "data/pack.h"
#include "data/shard.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hl_dataset {
    char *dir, *split, *tokenizer;
    struct hl_shard *shard;
    int64_t *offset; /* [shards + 1]: position of each shard's first token */
    int64_t vocab;   /* ids must be below it; 0: not checked */
    int64_t seq;
    enum hl_row_mode mode;
    struct hl_pack pack;
    struct hl_dataset_info info;
};

static int64_t count_trained(const struct hl_dataset *d, int64_t at, int64_t n);

/* ---- the files ---- */

/* train_X.bin, Y_train_X.bin, Y_train.bin, train.bin */
static bool is_shard_of(const char *name, const char *split) {
    size_t n = strlen(name), k = strlen(split);
    if (name[0] == '.' || n < 4 || strcmp(name + n - 4, ".bin") != 0) return false;
    for (const char *p = strstr(name, split); p; p = strstr(p + 1, split)) {
        bool begins = p == name || p[-1] == '_', ends = p[k] == '_' || !strcmp(p + k, ".bin");
        if (begins && ends) return true;
    }
    return false;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void free_names(char **names, int64_t n) {
    for (int64_t i = 0; i < n; i++) free(names[i]);
    free(names);
}

/* Sorted names of the split's shards; the caller frees *names, even on failure. */
static hola_status list_shards(const char *dir, const char *split, char ***names, int64_t *n) {
    DIR *d = opendir(dir);
    int64_t room = 0;
    *names = NULL, *n = 0;
    if (!d) return hl_fail(HOLA_EIO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char **grown = *names;
        if (!is_shard_of(e->d_name, split)) continue;
        if (*n == room) grown = realloc(*names, (size_t)(room = 2 * room + 16) * sizeof **names);
        if (grown) *names = grown;
        if (!grown || !(grown[*n] = strdup(e->d_name))) {
            closedir(d);
            return hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
        }
        ++*n;
    }
    closedir(d);
    if (*n > 0) qsort(*names, (size_t)*n, sizeof **names, by_name);
    return HOLA_OK;
}

bool hl_dataset_has(const char *dir, const char *split) {
    char **names;
    int64_t n;
    list_shards(dir, split, &names, &n);
    free_names(names, n);
    return n > 0;
}

static hola_status open_shards(struct hl_dataset *d, char **names, int64_t n) {
    d->shard = calloc((size_t)n, sizeof *d->shard);
    d->offset = calloc((size_t)n + 1, sizeof *d->offset);
    if (!d->shard || !d->offset) return hl_fail(HOLA_ENOMEM, "%s: no memory", d->dir);
    for (int64_t i = 0; i < n; i++) {
        char *path = hl_path_join(d->dir, names[i]);
        hola_status s = path ? hl_shard_open(&d->shard[i], path) : hl_fail(HOLA_ENOMEM, "no memory");
        free(path);
        if (s != HOLA_OK) return s;
        d->info.shards = i + 1;
        d->offset[i + 1] = d->offset[i] + d->shard[i].n;
        if (d->shard[i].width != d->shard[0].width)
            return hl_fail(HOLA_EFORMAT, "%s: tokens of %d bits, but of %d bits in %s", d->shard[i].path,
                           8 * d->shard[i].width, 8 * d->shard[0].width, names[0]);
        if (!d->shard[i].trained != !d->shard[0].trained)
            return hl_fail(HOLA_EFORMAT, "%s: one of %s and %s holds conversations, the other text", d->dir, names[0],
                           names[i]);
    }
    d->info.flagged = d->shard[0].trained != NULL;
    d->info.tokens = d->offset[n];
    if (d->info.tokens == 0) return hl_fail(HOLA_EFORMAT, "%s: no tokens in its %s shards", d->dir, d->split);
    return HOLA_OK;
}

/* ---- dataset.json ---- */

static hola_status read_fields(struct hl_dataset *d, json_t *root, const char *path) {
    json_t *bos = json_object_get(root, "bos_token_id"), *vocab = json_object_get(root, "vocab_size");
    json_t *split = json_object_get(json_object_get(root, "splits"), d->split);
    json_t *tokens = json_object_get(split, "tokens");
    const char *tokenizer = json_string_value(json_object_get(root, "tokenizer"));
    if (json_is_false(json_object_get(root, "complete")))
        return hl_fail(HOLA_EFORMAT, "%s: was not prepared to the end; prepare it again", d->dir);
    if (vocab && json_integer_value(vocab) <= 0) return hl_fail(HOLA_EFORMAT, "%s: bad vocab_size", path);
    d->info.vocab = json_integer_value(vocab);
    if (json_is_integer(bos)) {
        json_int_t id = json_integer_value(bos);
        if (id < 0 || id > INT32_MAX) return hl_fail(HOLA_EFORMAT, "%s: bad bos_token_id", path);
        d->info.bos = (int32_t)id;
    }
    if (tokens && json_integer_value(tokens) != d->info.tokens)
        return hl_fail(HOLA_EFORMAT, "%s: %" PRId64 " %s tokens in the shards, dataset.json says %" PRId64, d->dir,
                       d->info.tokens, d->split, (int64_t)json_integer_value(tokens));
    if (tokenizer) {
        /* only our own names, so that a dataset.json cannot point elsewhere */
        if (!strcmp(tokenizer, "tokenizer.model") || !strcmp(tokenizer, "tokenizer.json"))
            d->tokenizer = hl_path_join(d->dir, tokenizer);
        else if (!strcmp(tokenizer, "byte")) d->tokenizer = strdup(tokenizer);
        else return hl_fail(HOLA_EFORMAT, "%s: unknown tokenizer \"%s\"", path, tokenizer);
        if (!d->tokenizer) return hl_fail(HOLA_ENOMEM, "%s: no memory", path);
        d->info.tokenizer = d->tokenizer;
    }
    return HOLA_OK;
}

/* Shards written by llm.c have none: then nothing is known. */
static hola_status read_info(struct hl_dataset *d) {
    char *path = hl_path_join(d->dir, "dataset.json");
    struct hl_map map = {0};
    json_t *root = NULL;
    hola_status s;
    if (!path) return hl_fail(HOLA_ENOMEM, "%s: no memory", d->dir);
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        free(path);
        return HOLA_OK;
    }
    s = hl_map_open(&map, path);
    if (s == HOLA_OK) s = hl_json_object(&root, map.data, map.size, 64 << 20, path);
    if (root) s = read_fields(d, root, path);
    json_decref(root);
    hl_map_close(&map);
    free(path);
    return s;
}

hola_status hl_dataset_open(struct hl_dataset **out, const char *dir, const char *split, int64_t vocab) {
    struct hl_dataset *d = calloc(1, sizeof *d);
    char **names = NULL;
    int64_t n = 0;
    hola_status s;
    *out = NULL;
    if (!d || !(d->dir = strdup(dir)) || !(d->split = strdup(split))) {
        hl_dataset_free(d);
        return hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    }
    d->info.bos = -1;
    d->vocab = vocab;
    s = list_shards(dir, split, &names, &n);
    if (s == HOLA_OK && n == 0) s = hl_fail(HOLA_EIO, "%s: no %s shards (%s_*.bin)", dir, split, split);
    if (s == HOLA_OK) s = open_shards(d, names, n);
    if (s == HOLA_OK) s = read_info(d);
    if (s == HOLA_OK && vocab > 0 && d->info.vocab > vocab)
        s = hl_fail(HOLA_EINVAL, "%s: its tokenizer has %" PRId64 " tokens, the model's vocabulary only %" PRId64, dir,
                    d->info.vocab, vocab);
    free_names(names, n);
    if (s == HOLA_OK && d->info.flagged) d->info.trained = count_trained(d, 0, d->info.tokens);
    if (s == HOLA_OK) *out = d;
    else hl_dataset_free(d);
    return s;
}

void hl_dataset_free(struct hl_dataset *d) {
    if (!d) return;
    for (int64_t i = 0; d->shard && i < d->info.shards; i++) hl_shard_close(&d->shard[i]);
    hl_pack_free(&d->pack);
    free(d->shard);
    free(d->offset);
    free(d->tokenizer);
    free(d->split);
    free(d->dir);
    free(d);
}

const struct hl_dataset_info *hl_dataset_info(const struct hl_dataset *d) { return &d->info; }

/* ---- tokens ---- */

/* The last shard that begins at or before `at`. */
static int64_t shard_at(const struct hl_dataset *d, int64_t at) {
    int64_t lo = 0, hi = d->info.shards - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (d->offset[mid] <= at) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

/* Tokens [at, at + n) of all shards concatenated. */
static hola_status read_tokens(const struct hl_dataset *d, int64_t at, int64_t n, int32_t *ids) {
    int64_t lo = shard_at(d, at);
    hola_status s = HOLA_OK;
    for (; n > 0 && s == HOLA_OK; lo++) {
        int64_t from = at - d->offset[lo], left = d->shard[lo].n - from, take = n < left ? n : left;
        s = hl_shard_read(&d->shard[lo], from, take, d->vocab, ids);
        at += take, ids += take, n -= take;
    }
    return s;
}

static void read_flags(const struct hl_dataset *d, int64_t at, int64_t n, uint8_t *out) {
    int64_t i = shard_at(d, at);
    for (; n > 0; i++) {
        const int64_t from = at - d->offset[i], left = d->shard[i].n - from, take = n < left ? n : left;
        hl_shard_flags(&d->shard[i], from, take, out);
        at += take, out += take, n -= take;
    }
}

/* Counts trained tokens in [at, at + n). */
static int64_t count_trained(const struct hl_dataset *d, int64_t at, int64_t n) {
    uint8_t flags[512];
    int64_t sum = 0;
    for (int64_t take; n > 0; at += take, n -= take) {
        take = n < 512 ? n : 512;
        read_flags(d, at, take, flags);
        for (int64_t i = 0; i < take; i++) sum += flags[i] & HL_TOKEN_TRAINED;
    }
    return sum;
}

/* ---- documents ---- */

enum { BLOCK = 1 << 20, STEP = 4096 };

struct scan {
    const struct hl_dataset *d;
    int32_t bos;
    int64_t *count; /* [blocks]: documents that begin in it; -1: unreadable */
    int64_t *doc;   /* NULL: only count. Else receives the documents' positions, from count[block] on */
};

static hola_status scan_block(const struct scan *c, int64_t block, int64_t *begins) {
    int32_t ids[STEP];
    uint8_t flags[STEP];
    const bool flagged = c->d->info.flagged;
    int64_t at = block * BLOCK, total = c->d->info.tokens, end = at + BLOCK < total ? at + BLOCK : total;
    int64_t *doc = c->doc ? c->doc + c->count[block] : NULL, n = 0;
    for (; at < end; at += STEP) {
        int64_t take = end - at < STEP ? end - at : STEP;
        hola_status s = read_tokens(c->d, at, take, ids);
        if (s != HOLA_OK) return s;
        if (flagged) read_flags(c->d, at, take, flags);
        for (int64_t i = 0; i < take; i++) {
            const bool first = flagged ? flags[i] & HL_TOKEN_BEGINS : ids[i] == c->bos;
            if (!first && at + i > 0) continue; /* the very first token begins a document anyway */
            if (doc) doc[n] = at + i;
            n++;
        }
    }
    *begins = n;
    return HOLA_OK;
}

static void scan_task(void *ctx, int64_t block, int worker) {
    struct scan *c = ctx;
    int64_t n = -1;
    (void)worker;
    (void)scan_block(c, block, &n); /* errors are per thread: the caller scans such a block again to get the message */
    if (!c->doc) c->count[block] = n;
}

static void run(struct hl_pool *pool, int64_t n, hl_task task, void *ctx) {
    if (pool) hl_pool_run(pool, n, task, ctx);
    else
        for (int64_t i = 0; i < n; i++) task(ctx, i, 0);
}

/* Counts BOS per block; an unreadable block ends the count with its error. */
static hola_status count_documents(struct scan *c, int64_t blocks, struct hl_pool *pool) {
    int64_t n;
    run(pool, blocks, scan_task, c);
    for (int64_t b = 0; b < blocks; b++)
        if (c->count[b] < 0) {
            hola_status s = scan_block(c, b, &n);
            return s == HOLA_OK ? hl_fail(HOLA_EIO, "%s: changed while it was read", c->d->dir) : s;
        }
    return HOLA_OK;
}

/* Conversations truncated to a row, and statistics of what that leaves out. */
static hola_status pack_conversations(struct hl_dataset *d, const int64_t *doc, int64_t n) {
    struct hl_pack_piece *piece = malloc((size_t)(n + 1) * sizeof *piece);
    int64_t pieces = 0;
    if (!piece) return hl_fail(HOLA_ENOMEM, "%s: no memory for %" PRId64 " conversations", d->dir, n);
    d->info.trained = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t all = doc[i + 1] - doc[i], len = all < d->seq ? all : d->seq;
        const int64_t trained = count_trained(d, doc[i] + 1, len - 1); /* the first token is never a target */
        if (all > d->info.talk.longest) d->info.talk.longest = all;
        if (all > len) d->info.talk.cut++, d->info.talk.lost += count_trained(d, doc[i] + len, all - len);
        if (trained == 0) d->info.talk.idle++;
        else piece[pieces++] = (struct hl_pack_piece){doc[i], (int32_t)len};
        d->info.trained += trained;
    }
    hola_status s = hl_pack_pieces(&d->pack, piece, pieces, d->seq);
    if (s == HOLA_OK && pieces == 0)
        s = hl_fail(HOLA_EINVAL,
                    "%s: no %s conversation has a token to learn in a row of %" PRId64 " tokens; --seq-len %" PRId64
                    " holds the longest",
                    d->dir, d->split, d->seq, d->info.talk.longest);
    free(piece);
    return s;
}

static hola_status pack_documents(struct hl_dataset *d, int32_t bos, struct hl_pool *pool) {
    int64_t blocks = (d->info.tokens + BLOCK - 1) / BLOCK, n = 0;
    struct scan c = {.d = d, .bos = bos, .count = malloc((size_t)blocks * sizeof(int64_t))};
    int64_t *doc = NULL;
    hola_status s = c.count ? count_documents(&c, blocks, pool) : HOLA_ENOMEM;
    if (s == HOLA_OK) {
        for (int64_t b = 0; b < blocks; b++) {
            int64_t here = c.count[b];
            c.count[b] = n;
            n += here;
        }
        doc = malloc((size_t)(n + 1) * sizeof *doc);
        s = doc ? HOLA_OK : HOLA_ENOMEM;
    }
    if (s == HOLA_OK) {
        c.doc = doc;
        run(pool, blocks, scan_task, &c);
        doc[n] = d->info.tokens;
        d->info.documents = n;
        s = d->info.flagged ? pack_conversations(d, doc, n) : hl_pack_build(&d->pack, doc, n, d->seq);
    } else if (s == HOLA_ENOMEM) {
        hl_fail(s, "%s: no memory for %" PRId64 " documents", d->dir, n);
    }
    free(doc);
    free(c.count);
    return s;
}

hola_status hl_dataset_verify(const struct hl_dataset *d, struct hl_pool *pool) {
    int64_t blocks = (d->info.tokens + BLOCK - 1) / BLOCK;
    struct scan c = {.d = d, .bos = -1, .count = malloc((size_t)blocks * sizeof(int64_t))};
    hola_status s = c.count ? count_documents(&c, blocks, pool) : hl_fail(HOLA_ENOMEM, "%s: no memory", d->dir);
    free(c.count);
    return s;
}

/* ---- rows ---- */

hola_status hl_dataset_rows(struct hl_dataset *d, enum hl_row_mode mode, int64_t seq, int32_t bos,
                            struct hl_pool *pool) {
    hola_status s;
    HL_ASSERT(!d->seq);
    if (d->info.flagged) mode = HL_ROWS_PACKED;
    if (seq < 1 || seq > 1 << 30) return hl_fail(HOLA_EINVAL, "rows of %" PRId64 " tokens", seq);
    if (mode == HL_ROWS_STREAM && d->info.tokens < seq)
        return hl_fail(HOLA_EINVAL, "%s: %" PRId64 " %s tokens are less than one row of %" PRId64, d->dir,
                       d->info.tokens, d->split, seq);
    if (bos < 0) bos = d->info.bos;
    if (mode == HL_ROWS_PACKED && bos < 0 && !d->info.flagged)
        return hl_fail(HOLA_EINVAL, "%s: has no BOS token that would tell its documents apart", d->dir);
    d->seq = seq;
    d->mode = mode;
    s = mode == HL_ROWS_PACKED ? pack_documents(d, bos, pool) : HOLA_OK;
    d->info.rows = mode == HL_ROWS_PACKED ? d->pack.rows : d->info.tokens / seq;
    if (s != HOLA_OK) d->seq = 0;
    return s;
}

hola_status hl_dataset_row_at(const struct hl_dataset *d, int64_t i, struct hl_row *row) {
    hola_status s = HOLA_OK;
    HL_ASSERT(d->seq && i >= 0 && i < d->info.rows);
    row->n = row->n_starts = 0;
    if (d->mode == HL_ROWS_STREAM) {
        row->n = d->seq, row->n_starts = 1;
        if (row->starts) row->starts[0] = 0;
        return read_tokens(d, i * d->seq, d->seq, row->ids);
    }
    for (int64_t k = d->pack.first[i]; k < d->pack.first[i + 1] && s == HOLA_OK; k++) {
        const struct hl_pack_piece *p = &d->pack.piece[k];
        s = read_tokens(d, p->at, p->n, row->ids + row->n);
        if (row->trained && d->info.flagged) {
            uint8_t *trained = row->trained + row->n;
            read_flags(d, p->at, p->n, trained);
            for (int64_t j = 0; j < p->n; j++) trained[j] &= HL_TOKEN_TRAINED;
        }
        if (row->starts) row->starts[row->n_starts] = row->n;
        row->n_starts++;
        row->n += p->n;
    }
    return s;
}

hola_status hl_dataset_row(const struct hl_dataset *d, uint64_t seed, int64_t cursor, struct hl_row *row) {
    HL_ASSERT(d->seq && cursor >= 0);
    return hl_dataset_row_at(
        d, hl_permute(d->info.rows, seed, (uint64_t)(cursor / d->info.rows), cursor % d->info.rows), row);
}

/* A Feistel network on the smallest even number of bits that holds n; values outside [0, n) are mapped again until they
 * fall inside (at most 4 rounds of it on average). */
int64_t hl_permute(int64_t n, uint64_t seed, uint64_t epoch, int64_t i) {
    uint64_t x = (uint64_t)i, mask, stream = hl_fnv1a("rows") + epoch;
    int half = 1;
    HL_ASSERT(i >= 0 && i < n);
    while (half < 31 && (int64_t)1 << 2 * half < n) half++;
    mask = ((uint64_t)1 << half) - 1;
    HL_ASSERT(n <= (int64_t)1 << 62);
    do {
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t left = x >> half, right = x & mask;
            x = right << half | ((left ^ hl_rng_bits(seed, stream, round << 32 | right)) & mask);
        }
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
