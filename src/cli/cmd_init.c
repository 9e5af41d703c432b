/* cmd_init.c -- hola init: a fresh model directory, the same for the same seed. */
#include "cli/args.h"
#include "cli/cli.h"
#include <inttypes.h>
#include <stdio.h>

struct init_opts {
    const char *out, *preset, *config;
    int64_t seed;
    int model_type, dtype;
    bool force, json;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL}; /* in the order of hola_dtype */

#define OPTS struct init_opts
static const struct arg options[] = {
    OPT_NEEDED('o', "out", out, "DIR", "directory to write"),
    OPT_STRING(0, "preset", preset, "NAME", "46m, 170m or 340m, also with -gate or -nogate"),
    OPT_STRING(0, "config", config, "FILE", "config.json of the model"),
    OPT_CHOICE(0, "model-type", model_type, cli_model_types, "type of model (default: hola, or the config's)"),
    OPT_INT('s', "seed", seed, 0, INT64_MAX, "N", "seed of the random weights (default 0)"),
    OPT_CHOICE(0, "dtype", dtype, dtypes, "type of the stored weights (default f32)"),
    OPT_FLAG(0, "force", force, "overwrite an existing model"),
    OPT_JSON,
    OPT_END,
};
static const struct args_command command = {
    "init", "-o DIR (--preset NAME | --config FILE) [options]",
    "Writes a new model with random weights: config.json and model.safetensors.", options};

int cmd_init(int argc, char **argv) {
    struct init_opts o = {.model_type = -1};
    hola_config cfg;
    hola_model *m = NULL;
    const char *type, *dtype, *file;
    char count[CLI_GROUPED];
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (!o.preset == !o.config) return cli_usage("init", "either --preset NAME or --config FILE is required");
    if (!o.force && cli_holds_model(o.out, &file))
        return cli_fail("%s: already holds a %s; --force overwrites it", o.out, file);

    if (cli_config(&cfg, o.preset, o.config, o.model_type) != HOLA_OK) return cli_fail_library();
    if (hola_model_new(&m, &cfg, (uint64_t)o.seed, NULL) != HOLA_OK ||
        hola_model_save(m, o.out, (hola_dtype)o.dtype) != HOLA_OK) {
        hola_model_free(m);
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
    return CLI_OK;
}
