/* cli.c -- messages, exit statuses and output shared by the commands. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"
#include "cli/cli.h"
#include "backend/backend.h"
#include "core/status.h"
#include "model/config.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const cli_backends[] = {"auto",     "cpu",      "cuda",       "cuda-f32", "cpu-ref",
                                    "cpu-base", "cpu-avx2", "cpu-avx512", "cpu-neon", NULL};
const char *const cli_products[] = {"auto", "bf16", NULL};
const char *cli_backend(int choice) { return choice ? cli_backends[choice] : hl_backend_best(); }
#define TYPE_NAME(type, name) [HOLA_TYPE_##type] = #name,
const char *const cli_model_types[HOLA_TYPE_COUNT + 1] = {HL_MIXERS_LIST(TYPE_NAME)};

/* Messages may contain file names and file contents: control characters are replaced so that a message stays one
 * line. */
static void print_line(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f) *p = '?';
    cli_flush();
    fprintf(stderr, "hola: %s\n", text);
}

int cli_fail(const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    hl_message(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(text);
    return CLI_FAILED;
}

int cli_fail_library(void) { return cli_fail("%s", hola_last_error()); }

int cli_usage(const char *command, const char *fmt, ...) {
    char what[768], text[1024];
    va_list ap;
    va_start(ap, fmt);
    hl_message(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s: %s; see 'hola %s --help'", command, what, command);
    print_line(text);
    return CLI_USAGE;
}

static int flush_error;
void cli_flush(void) {
    errno = 0;
    if (fflush(stdout) != 0 && !flush_error) flush_error = errno;
}
int cli_flush_error(void) { return flush_error; }

int cli_print_json(json_t *root) {
    int rc;
    if (!root) return cli_fail("out of memory for the result");
    rc = json_dumpf(root, stdout, JSON_REAL_PRECISION(15));
    json_decref(root);
    putchar('\n');
    /* main reports errors of stdout itself */
    return rc && !ferror(stdout) ? cli_fail("out of memory for the result") : CLI_OK;
}

json_t *cli_json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

char *cli_grouped(char buf[CLI_GROUPED], int64_t x) {
    char digits[CLI_GROUPED];
    int n = snprintf(digits, sizeof digits, "%" PRId64, x), k = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-') buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = 0;
    return buf;
}

bool cli_holds_model(const char *dir, const char **which) {
    static const char *const files[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[4096];
        struct stat st;
        *which = files[i];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (lstat(path, &st) == 0) return true;
    }
    return false;
}

static bool is_utf16(const char *path) {
    unsigned char head[2];
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false; /* a pipe can be read only once */
    FILE *f = fopen(path, "rb");
    const bool got = f && fread(head, 1, 2, f) == 2;
    if (f) fclose(f);
    return got && ((head[0] == 0xff && head[1] == 0xfe) || (head[0] == 0xfe && head[1] == 0xff));
}
int cli_check_inputs(const char *command, const char *const *inputs, int n) {
    if (n == 0) return cli_usage(command, "no INPUT given; - reads standard input");
    for (int i = 0; i < n; i++)
        if (!*inputs[i]) return cli_usage(command, "an INPUT is ''");
    for (int i = 0; i < n; i++)
        if (is_utf16(inputs[i]))
            fprintf(stderr,
                    "hola: warning: %s: looks like UTF-16 and is read as bytes; texts should be UTF-8 "
                    "(iconv -f UTF-16 -t UTF-8)\n",
                    inputs[i]);
    return ARGS_RUN;
}

bool cli_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}
void cli_take_back_dir(const char *dir, bool existed) {
    if (!existed) rmdir(dir); /* fails, as it should, if it is not empty */
}

const char *const cli_presets[] = {"46m",         "170m",        "340m",        "46m-gate",    "170m-gate",
                                   "340m-gate",   "46m-nogate",  "170m-nogate", "340m-nogate", "46m-memory",
                                   "170m-memory", "340m-memory", NULL};
bool cli_preset_known(const char *name) {
    hola_config cfg;
    for (int type = 0; type < HOLA_TYPE_COUNT; type++)
        if (hola_config_preset(&cfg, name, (hola_model_type)type) == HOLA_OK) return true;
    return false;
}

hola_status cli_config(hola_config *cfg, const char *preset, const char *path, int model_type) {
    if (preset) return hola_config_preset(cfg, preset, (hola_model_type)(model_type < 0 ? 0 : model_type));
    const hola_status s = hola_config_read(cfg, path);
    if (s != HOLA_OK || model_type < 0) return s;
    hl_config_change_type(cfg, (hola_model_type)model_type);
    return hola_config_check(cfg);
}
