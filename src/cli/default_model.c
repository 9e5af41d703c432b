/* default_model.c -- the model used without -m: $HOLA_MODEL, else the one shipped with hola, in the source tree or next
 * to the installed program. An empty HOLA_MODEL: none. */
#define _XOPEN_SOURCE 700
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool holds_config(const char *dir) {
    char *path = hl_path_join(dir, "config.json");
    const bool there = path && access(path, F_OK) == 0;
    free(path);
    return there;
}

/* The program's directory: build/cc/hola of the source tree, or PREFIX/bin/hola. The empty string: unknown. */
static void program_directory(char *dir, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", dir, size - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
}

const char *cli_default_model(void) {
    static const char *const beside[] = {"/../../models/", "/models/", "/../share/hola/models/"};
    static const char *const installed[] = {"/usr/local/share/hola/models/", "/usr/share/hola/models/"};
    static char path[4200];
    char dir[4096];
    const char *named = getenv("HOLA_MODEL");
    if (named) return *named ? named : NULL;
    program_directory(dir, sizeof dir);
    for (size_t i = 0; *dir && i < sizeof beside / sizeof *beside; i++) {
        snprintf(path, sizeof path, "%s%s%s", dir, beside[i], CLI_MODEL);
        if (!holds_config(path)) continue;
        char *plain = realpath(path, NULL); /* resolves ".." for readability */
        if (plain) snprintf(path, sizeof path, "%s", plain);
        free(plain);
        return path;
    }
    for (size_t i = 0; i < sizeof installed / sizeof *installed; i++) {
        snprintf(path, sizeof path, "%s%s", installed[i], CLI_MODEL);
        if (holds_config(path)) return path;
    }
    return NULL;
}

int cli_no_model(const char *command) {
    return cli_usage(command,
                     "--model DIR is required: no model '%s' came with this hola; HOLA_MODEL can name one, "
                     "'hola train' makes one",
                     CLI_MODEL);
}

int cli_models_or_default(const char *command, struct arg_list *models) {
    if (models->n > 0) return ARGS_RUN;
    models->item[0] = cli_default_model();
    if (!models->item[0]) return cli_no_model(command);
    models->n = 1;
    return ARGS_RUN;
}
