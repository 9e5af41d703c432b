/* eval_model.c -- see eval_model.h. */
#define _POSIX_C_SOURCE 200809L
#include "cli/eval_model.h"
#include "core/json.h"
#include "core/sha256.h"
#include "tokenizer/gguf_keys.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int is_weights(const struct dirent *e) {
    const size_t n = strlen(e->d_name);
    return e->d_name[0] != '.' && n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0;
}

/* cat config.json *.safetensors | sha256sum; for a GGUF file: its sha256sum */
static hola_status model_hash(const char *dir, char hex[65]) {
    struct hl_sha256 sha;
    struct dirent **entry = NULL;
    hl_sha256_begin(&sha);
    if (hl_is_gguf(dir)) {
        const hola_status s = hl_sha256_file(&sha, dir);
        if (s == HOLA_OK) hl_sha256_end(&sha, hex);
        return s;
    }
    char *path = hl_path_join(dir, "config.json");
    const int n = scandir(dir, &entry, is_weights, alphasort);
    hola_status st = path && n >= 0 ? HOLA_OK : hl_fail(HOLA_EIO, "%s: cannot be read", dir);
    if (st == HOLA_OK) st = hl_sha256_file(&sha, path);
    for (int i = 0; i < n; i++) {
        free(path);
        path = hl_path_join(dir, entry[i]->d_name);
        if (st == HOLA_OK) st = path ? hl_sha256_file(&sha, path) : hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
        free(entry[i]);
    }
    if (st == HOLA_OK) hl_sha256_end(&sha, hex);
    free(path);
    free(entry);
    return st;
}

hola_status eval_adds_bos(const char *dir, bool *out) {
    struct hl_map map = {0};
    struct stat st;
    json_t *root = NULL;
    char *path = hl_path_join(dir, "tokenizer_config.json"), *text = NULL;
    hola_status s = path ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", dir);
    *out = true;
    if (s == HOLA_OK && hl_is_gguf(dir)) {
        s = hl_gguf_tokenizer_config_read(dir, &text);
        if (text) s = hl_json_object(&root, text, (int64_t)strlen(text), 1 << 26, dir);
        *out = !json_is_false(json_object_get(root, "add_bos_token"));
    } else if (s == HOLA_OK && stat(path, &st) == 0) {
        s = hl_map_open(&map, path);
        if (s == HOLA_OK) s = hl_json_object(&root, map.data, map.size, 1 << 26, path);
        if (s == HOLA_OK) *out = !json_is_false(json_object_get(root, "add_bos_token"));
    }
    json_decref(root);
    hl_map_close(&map);
    free(path), free(text);
    return s;
}

static struct hl_eval_opts how(const struct eval_opts *o, const hola_config *cfg, const hola_tokenizer *t, bool bos) {
    const enum hl_profile p = (enum hl_profile)o->profile;
    return (struct hl_eval_opts){.data = o->data,
                                 .text = o->text,
                                 .limit = o->limit,
                                 .profile = p,
                                 .bos = hl_eval_bos((enum hl_bos)o->bos, p, bos),
                                 .retrieval = hl_eval_retrieval((enum hl_retrieval)o->retrieval, p),
                                 .precision = (enum hl_precision)o->precision,
                                 .max_length = o->max_length ? o->max_length : cfg->max_position_embeddings,
                                 .prompts = o->prompts,
                                 .nvidia = o->ruler == 1,
                                 .seed = o->seed,
                                 .truncate = o->truncate,
                                 .threads = (int)o->threads,
                                 .tokenizer = t};
}

hola_status eval_model_open(struct eval_loaded *l, const struct eval_opts *o, struct eval_model *m) {
    const char *tokenizer = o->tokenizer ? o->tokenizer : m->dir;
    const hola_options opt = {
        .threads = (int)o->threads, .backend = cli_backend(o->backend), .precision = (hola_precision)o->products};
    hola_tensor_info first;
    bool bos = true;
    *l = (struct eval_loaded){0};
    hola_status st = hola_model_load(&l->model, m->dir, &opt);
    if (st == HOLA_OK) st = hola_tokenizer_load(&l->tokenizer, tokenizer);
    if (st == HOLA_OK) st = eval_adds_bos(tokenizer, &bos);
    if (st == HOLA_OK) st = model_hash(m->dir, m->sha256);
    if (st == HOLA_OK) st = hola_model_tensor(l->model, 0, &first);
    if (st != HOLA_OK) return st;
    const hola_config *cfg = hola_model_config(l->model);
    if (hola_tokenizer_size(l->tokenizer) > cfg->vocab_size)
        return hl_fail(HOLA_EINVAL, "%s: %lld tokens, more than the model's %lld", tokenizer,
                       (long long)hola_tokenizer_size(l->tokenizer), (long long)cfg->vocab_size);
    m->how = how(o, cfg, l->tokenizer, bos);
    m->dtype = first.dtype;
    m->parameters = hola_config_parameters(cfg);
    if (m->how.max_length < 2) m->how.max_length = 2048;
    return HOLA_OK;
}

void eval_model_close(struct eval_loaded *l) {
    hola_tokenizer_free(l->tokenizer);
    hola_model_free(l->model);
    *l = (struct eval_loaded){0};
}
