/* cmd_convert.c -- hola convert: stores a model's weights in another type or file format. */
#define _POSIX_C_SOURCE 200809L
#include "chat/template.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include "model/gguf_model.h"
#include "tokenizer/gguf_keys.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct convert_opts {
    const char *model, *out, *tokenizer;
    int64_t threads;
    int dtype;
    bool force, json;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", "int8", "int4", NULL}; /* in the order of hola_dtype */

#define OPTS struct convert_opts
static const struct arg options[] = {
    OPT_MODEL,
    OPT_NEEDED('o', "out", out, "PATH", "directory to write, or a file: NAME.gguf"),
    OPT_CHOICE(
        0, "dtype", dtype, dtypes,
        "type of the stored weights; int8 and int4: of the large matrices (to or from GGUF, default: as they are)"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH",
               "tokenizer to put into a GGUF file (default: the model's; none: none)"),
    OPT_FLAG(0, "force", force, "overwrite an existing model"),
    OPT_THREADS,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "convert", "[-m PATH] -o PATH [--dtype TYPE] [options]",
    "Writes a copy of a model with weights of another type. int8 takes half the space of bf16, int4 a quarter. Between "
    "a model directory and a GGUF file, the tokenizer goes along; a transformer is written as llama.cpp reads it.",
    options};

/* Other files that a model directory may contain. */
static const char *const companions[] = {"tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "generation_config.json",
                                         HL_TEMPLATE_FILE,
                                         NULL};

/* Copies a file if it exists; prints an error if it cannot be read or written. *made: the target did not exist
 * before. */
static hola_status copy_file(const char *from, const char *to, const char *name, bool *made) {
    char *src = hl_path_join(from, name), *dst = hl_path_join(to, name);
    struct hl_map map = {0};
    struct stat st;
    hola_status s = src && dst ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: not enough memory to copy it", name);
    if (s == HOLA_OK && stat(src, &st) == 0 && st.st_size > 0) {
        *made = !cli_exists(dst);
        s = hl_map_open(&map, src);
        if (s == HOLA_OK) s = hl_write_file(dst, map.data, map.size);
    }
    hl_map_close(&map);
    free(src);
    free(dst);
    return s;
}

/* ---- directories ---- */

/* Copies the other files of a directory. */
static hola_status copy_companions(const struct convert_opts *o, bool made[]) {
    hola_status s = HOLA_OK;
    for (int i = 0; s == HOLA_OK && companions[i]; i++) s = copy_file(o->model, o->out, companions[i], &made[i]);
    return s;
}

static hola_status write_companion(const struct convert_opts *o, const char *name, const char *data, int64_t size,
                                   bool made[]) {
    char *path = hl_path_join(o->out, name);
    if (!path) return hl_fail(HOLA_ENOMEM, "%s: no memory for its name", name);
    for (int i = 0; companions[i]; i++)
        if (strcmp(companions[i], name) == 0) made[i] = !cli_exists(path);
    const hola_status s = hl_write_file(path, data, size);
    free(path);
    return s;
}

/* The same for a GGUF file: its tokenizer. */
static hola_status extract_tokenizer(const struct convert_opts *o, bool made[]) {
    struct hl_gguf *g;
    struct hl_text text = {0};
    const char *name;
    char *config = NULL;
    hola_status s = hl_gguf_open(&g, o->model);
    if (s == HOLA_OK && hl_gguf_has_tokenizer(g)) {
        s = hl_gguf_tokenizer(g, &text, &name);
        if (s == HOLA_OK) s = hl_gguf_tokenizer_config(g, &config);
        if (s == HOLA_OK) s = write_companion(o, name, text.data, text.n, made);
        if (s == HOLA_OK && config)
            s = write_companion(o, "tokenizer_config.json", config, (int64_t)strlen(config), made);
    }
    hl_gguf_close(g);
    hl_text_free(&text);
    free(config);
    return s;
}

/* config.json is written last: a directory that has one is complete. */
static hola_status write_directory(const struct convert_opts *o, const hola_model *m) {
    const bool existed = cli_exists(o->out);
    bool made[sizeof companions / sizeof *companions] = {false};
    hola_status s = hl_make_dirs(o->out);
    if (s == HOLA_OK) s = (hl_is_gguf(o->model) ? extract_tokenizer : copy_companions)(o, made);
    if (s == HOLA_OK) s = hola_model_save(m, o->out, (hola_dtype)o->dtype);
    if (s == HOLA_OK) return s;
    for (int i = 0; companions[i]; i++) { /* removes everything that was written */
        char *path = made[i] ? hl_path_join(o->out, companions[i]) : NULL;
        if (path) unlink(path);
        free(path);
    }
    cli_take_back_dir(o->out, existed);
    return s;
}

/* ---- GGUF files ---- */

static bool names_gguf(const char *path) {
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

static hola_status write_gguf(const struct convert_opts *o, const hola_model *m) {
    const hola_config *c = hola_model_config(m);
    struct hl_gguf_keys keys = {0};
    hola_status s = HOLA_OK;
    if (!o->tokenizer || strcmp(o->tokenizer, "none") != 0)
        s = hl_gguf_put_tokenizer(&keys, o->tokenizer ? o->tokenizer : o->model, c->vocab_size,
                                  c->model_type == HOLA_TYPE_TRANSFORMER);
    if (s == HOLA_OK) s = hl_gguf_model_save(m, o->out, (hola_dtype)o->dtype, &keys);
    hl_text_free(&keys.text);
    return s;
}

/* The type of the largest matrix. */
static int own_dtype(const hola_model *m) {
    hola_tensor_info largest = {.count = 0}, t;
    for (int64_t i = 0; i < hola_model_tensor_count(m); i++)
        if (hola_model_tensor(m, i, &t) == HOLA_OK && t.count > largest.count) largest = t;
    return (int)largest.dtype;
}

static hola_status convert(struct convert_opts *o, hola_model **m) {
    const hola_options opt = {.threads = (int)o->threads, .backend = "cpu"};
    hola_status s = hola_model_load(m, o->model, &opt);
    if (s != HOLA_OK) return s;
    if (o->dtype < 0) o->dtype = own_dtype(*m);
    return names_gguf(o->out) ? write_gguf(o, *m) : write_directory(o, *m);
}

static int64_t weights_size(const char *out) {
    char *path = names_gguf(out) ? strdup(out) : hl_path_join(out, "model.safetensors");
    struct stat st;
    const int64_t size = path && stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
    free(path);
    return size;
}

static bool same_path(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int cmd_convert(int argc, char **argv) {
    struct convert_opts o = {.dtype = -1};
    hola_model *m = NULL;
    const char *file;
    char count[CLI_GROUPED], size[CLI_GROUPED];
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    const bool gguf = names_gguf(o.out);
    if (o.dtype < 0 && !gguf && !hl_is_gguf(o.model)) return cli_usage("convert", "--dtype TYPE is required");
    if (o.tokenizer && !gguf) return cli_usage("convert", "--tokenizer is for GGUF files alone (-o NAME.gguf)");
    if (same_path(o.model, o.out)) return cli_fail("%s: cannot be converted onto itself", o.out);
    if (gguf && !o.force && cli_exists(o.out)) return cli_fail("%s: is there already; --force overwrites it", o.out);
    if (!gguf && !o.force && cli_holds_model(o.out, &file))
        return cli_fail("%s: already holds a %s; --force overwrites it", o.out, file);
    if (convert(&o, &m) != HOLA_OK) {
        hola_model_free(m);
        return cli_fail_library();
    }
    const int64_t parameters = hola_config_parameters(hola_model_config(m)), bytes = weights_size(o.out);
    hola_model_free(m);
    if (o.json)
        return cli_print_json(json_pack("{s:s, s:I, s:I}", "dtype", dtypes[o.dtype], "parameters",
                                        (json_int_t)parameters, "bytes", (json_int_t)bytes));
    printf("%s: %s parameters, %s, %s bytes\n", o.out, cli_grouped(count, parameters), dtypes[o.dtype],
           cli_grouped(size, bytes));
    return CLI_OK;
}
