/* cmd_init.c -- hola init: creates a new model directory, deterministic for a seed. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include "tokenizer/byte_json.h"
#include "tokenizer/gguf_keys.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct init_opts {
    const char *out, *preset, *config, *tokenizer;
    int64_t seed;
    int model_type, dtype;
    bool force, json;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL}; /* in the order of hola_dtype */

#define OPTS struct init_opts
static const struct arg options[] = {
    OPT_NEEDED('o', "out", out, "DIR", "directory to write"),
    OPT_PRESET,
    OPT_STRING(0, "config", config, "FILE", "config.json of the model"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH",
               "tokenizer of the model: a directory, a file or \"byte\"; a preset takes its vocabulary"),
    OPT_CHOICE(0, "model-type", model_type, cli_model_types, "type of model (default: hola, or the config's)"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "seed of the random weights (default 0)"),
    OPT_CHOICE(0, "dtype", dtype, dtypes, "type of the stored weights (default f32)"),
    OPT_FLAG(0, "force", force, "overwrite an existing model"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "init", "-o DIR (--preset NAME | --config FILE) [options]",
    "Writes a new model with random weights: config.json and model.safetensors. With --tokenizer also a copy of\n"
    "that, so that hola generate and hola serve take the model as it is.",
    options};

/* ---- the tokenizer ---- */

/* A preset takes the tokenizer's size and special tokens; a user's config must have room for them. */
static hola_status adopt(hola_config *cfg, const struct init_opts *o) {
    hola_tokenizer *t = NULL;
    hola_status s = hl_gguf_refuse_copy(o->tokenizer);
    if (s == HOLA_OK) s = hola_tokenizer_load(&t, o->tokenizer);
    if (s != HOLA_OK) return s;
    const int64_t size = hola_tokenizer_size(t);
    if (o->preset) {
        cfg->vocab_size = size;
        cfg->bos_token_id = hola_tokenizer_bos(t), cfg->eos_token_id = hola_tokenizer_eos(t);
    } else if (size > cfg->vocab_size)
        s = hl_fail(HOLA_EINVAL, "%s: %" PRId64 " tokens, more than the vocabulary of %" PRId64 " in %s", o->tokenizer,
                    size, cfg->vocab_size, o->config);
    hola_tokenizer_free(t);
    return s;
}

/* Copies NAME of the directory `from`, or the file `from` itself, to the model's directory. */
static hola_status copy_file(const char *from, const char *name, const char *out, bool *found) {
    struct hl_map m = {0};
    struct stat st;
    const size_t n = strlen(from);
    const char *own = n > 6 && !strcmp(from + n - 6, ".model") ? "tokenizer.model" : "tokenizer.json";
    char *path = name ? hl_path_join(from, name) : strdup(from), *to = hl_path_join(out, name ? name : own);
    hola_status s = path && to ? HOLA_OK : hl_fail(HOLA_ENOMEM, "%s: no memory", out);
    if (s == HOLA_OK && stat(path, &st) == 0) {
        s = hl_map_open(&m, path);
        if (s == HOLA_OK) s = hl_write_file(to, m.data, m.size);
        hl_map_close(&m);
        *found = true;
    }
    free(path);
    free(to);
    return s;
}

static hola_status copy_tokenizer(const struct init_opts *o) {
    static const char *const names[] = {"tokenizer.model", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    struct stat st;
    bool found = false;
    hola_status s = HOLA_OK;
    if (!strcmp(o->tokenizer, "byte")) {
        char *path = hl_path_join(o->out, "tokenizer.json");
        s = path ? hl_byte_json_write(path) : hl_fail(HOLA_ENOMEM, "%s: no memory", o->out);
        free(path);
        return s;
    }
    if (stat(o->tokenizer, &st) == 0 && S_ISDIR(st.st_mode))
        for (int i = 0; s == HOLA_OK && i < 4; i++) s = copy_file(o->tokenizer, names[i], o->out, &found);
    else s = copy_file(o->tokenizer, NULL, o->out, &found);
    return s;
}

/* ---- the command ---- */

int cmd_init(int argc, char **argv) {
    struct init_opts o = {.model_type = -1};
    hola_config cfg;
    hola_model *m = NULL;
    const char *type, *dtype, *file;
    char count[CLI_GROUPED];
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (!o.preset == !o.config) return cli_usage("init", "either --preset NAME or --config FILE is required");
    if (o.preset && cli_config(&cfg, o.preset, NULL, o.model_type) != HOLA_OK)
        return cli_usage("init", "%s", hola_last_error());
    if (!o.force && cli_holds_model(o.out, &file))
        return cli_fail("%s: already holds a %s; --force overwrites it", o.out, file);

    if (cli_config(&cfg, o.preset, o.config, o.model_type) != HOLA_OK) return cli_fail_library();
    if (o.tokenizer && adopt(&cfg, &o) != HOLA_OK) return cli_fail_library();
    const bool existed = cli_exists(o.out);
    if (hola_model_new(&m, &cfg, (uint64_t)o.seed, NULL) != HOLA_OK ||
        hola_model_save(m, o.out, (hola_dtype)o.dtype) != HOLA_OK || (o.tokenizer && copy_tokenizer(&o) != HOLA_OK)) {
        hola_model_free(m);
        cli_take_back_dir(o.out, existed);
        return cli_fail_library();
    }
    hola_model_free(m);
    type = hola_model_type_name(cfg.model_type), dtype = dtypes[o.dtype];
    if (o.json)
        return cli_print_json(json_pack("{s:s, s:I, s:s, s:I}", "model_type", type, "parameters",
                                        (json_int_t)hola_config_parameters(&cfg), "dtype", dtype, "seed",
                                        (json_int_t)o.seed));
    printf("%s: %s, %s parameters, %s, seed %" PRId64 "\n", o.out, type,
           cli_grouped(count, hola_config_parameters(&cfg)), dtype, o.seed);
    if (o.preset && o.tokenizer) printf("vocabulary: %s tokens, the tokenizer's\n", cli_grouped(count, cfg.vocab_size));
    else if (o.preset)
        printf("no tokenizer: with --tokenizer PATH it would have that vocabulary, and text to generate\n");
    return CLI_OK;
}
