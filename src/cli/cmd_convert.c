/* cmd_convert.c -- hola convert: the same model with its weights stored in another type. */
#define _POSIX_C_SOURCE 200809L
#include "chat/template.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct convert_opts {
    const char *model, *out;
    int64_t threads;
    int dtype;
    bool force, json;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", "int8", "int4", NULL}; /* in the order of hola_dtype */

#define OPTS struct convert_opts
static const struct arg options[] = {
    OPT_MODEL,
    OPT_NEEDED('o', "out", out, "DIR", "directory to write"),
    OPT_CHOICE(0, "dtype", dtype, dtypes, "type of the stored weights; int8 and int4: of the large matrices"),
    OPT_FLAG(0, "force", force, "overwrite an existing model"),
    OPT_THREADS,
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {"convert", "[-m DIR] -o DIR --dtype TYPE [options]",
                                            "Writes a copy of a model with weights of another type. int8 "
                                            "takes half the space of bf16, int4 a quarter.",
                                            options};

/* What a model directory may hold beside the weights and config.json. */
static const char *const companions[] = {"tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "generation_config.json",
                                         HL_TEMPLATE_FILE,
                                         NULL};

/* Copies a file that is there; one line where it cannot be read or written. *made: there was none of this name. */
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

/* config.json comes last: a directory with one is complete. */
static hola_status convert(const struct convert_opts *o, hola_model **m) {
    const hola_options opt = {.threads = (int)o->threads, .backend = "cpu"};
    const bool existed = cli_exists(o->out);
    bool made[sizeof companions / sizeof *companions] = {false};
    hola_status s = hola_model_load(m, o->model, &opt);
    if (s == HOLA_OK) s = hl_make_dirs(o->out);
    for (int i = 0; s == HOLA_OK && companions[i]; i++) s = copy_file(o->model, o->out, companions[i], &made[i]);
    if (s == HOLA_OK) s = hola_model_save(*m, o->out, (hola_dtype)o->dtype);
    if (s == HOLA_OK) return s;
    for (int i = 0; companions[i]; i++) { /* nothing is left of it */
        char *path = made[i] ? hl_path_join(o->out, companions[i]) : NULL;
        if (path) unlink(path);
        free(path);
    }
    cli_take_back_dir(o->out, existed);
    return s;
}

static int64_t weights_size(const char *dir) {
    char *path = hl_path_join(dir, "model.safetensors");
    struct stat st;
    const int64_t size = path && stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
    free(path);
    return size;
}

static bool same_directory(const char *a, const char *b) {
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
    if (o.dtype < 0) return cli_usage("convert", "--dtype TYPE is required");
    if (same_directory(o.model, o.out)) return cli_fail("%s: cannot be converted onto itself", o.out);
    if (!o.force && cli_holds_model(o.out, &file))
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
