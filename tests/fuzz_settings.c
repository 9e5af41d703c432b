/* fuzz_settings.c -- any bytes as a file of settings, TOML and JSON: refused with the path and a line, or a list of
 * names, each once, with values of the kinds that options take, in lines that the file has. */
#include "mutate.h"
#include "core/settings.h"

static struct seed seed_at(size_t i) {
    static const char *const texts[] = {
        "# a run\ndata = \"data\"  # where\nout='runs/first'\n\nsteps = 1_000\nlr = 4e-4\nmin-lr = 0.1\nclip = "
        "-1.5E+3\n"
        "documents = true\nrestart=false\r\n",
        "a = \"\\u00e9 \\\\ \\\" \\n \\t\"\nb = 'C:\\x'\nc = +7\nd = 0\ne_f-g = -0.0\n9 = 9223372036854775807",
        "a = [1, 2]\n",
        "[section]\na = 1\n",
        "a = \"\"\"x\"\"\"\n",
        "a = 1979-05-27\nb = 0x10\nc = 1__0\nd = .5\ne = inf\n",
        "a = 1\na = 2\n",
        "{\"data\": \"x\",\n \"steps\": 3, \"lr\": 1e-3,\n \"documents\": true}",
        "{\"a\": {\"b\": 1}, \"c\": null, \"d\": [1]}",
    };
    return i < sizeof texts / sizeof *texts ? (struct seed){texts[i], strlen(texts[i])} : (struct seed){NULL, 0};
}

static void holds(const struct hl_settings *s, const uint8_t *data, size_t size) {
    int64_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    for (int64_t i = 0; i < s->n; i++) {
        const json_t *v = s->at[i].value;
        MUST(json_is_string(v) || json_is_integer(v) || json_is_real(v) || json_is_boolean(v));
        MUST(s->at[i].line >= 1 && s->at[i].line <= lines);
        for (int64_t k = 0; k < i; k++) MUST(strcmp(s->at[i].name, s->at[k].name) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct hl_settings s;
    if (hl_settings_toml(&s, (const char *)data, (int64_t)size, "f") == HOLA_OK) holds(&s, data, size);
    else MUST(s.n == 0 && strncmp(hola_last_error(), "f:", 2) == 0);
    hl_settings_free(&s);
    if (hl_settings_json(&s, (const char *)data, (int64_t)size, "f") == HOLA_OK) holds(&s, data, size);
    else MUST(s.n == 0 && strncmp(hola_last_error(), "f", 1) == 0);
    hl_settings_free(&s);
    return 0;
}

#ifndef HL_LIBFUZZER
/* What the mutations start from means what it should. */
static bool reads(const char *text, const char *name, const char *want) {
    struct hl_settings s;
    bool good = false;
    if (hl_settings_toml(&s, text, (int64_t)strlen(text), "f") != HOLA_OK) return want == NULL;
    for (int64_t i = 0; i < s.n; i++) {
        char *got = json_dumps(s.at[i].value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        good |= want && !strcmp(s.at[i].name, name) && got && !strcmp(got, want);
        free(got);
    }
    hl_settings_free(&s);
    return good;
}
__attribute__((constructor)) static void known_texts(void) {
    const char *first = seed_at(0).data, *second = seed_at(1).data;
    MUST(reads(first, "data", "\"data\"") && reads(first, "out", "\"runs/first\"") && reads(first, "steps", "1000"));
    MUST(reads(first, "lr", "0.0004") && reads(first, "clip", "-1500.0") && reads(first, "restart", "false"));
    MUST(reads(second, "a", "\"\xc3\xa9 \\\\ \\\" \\n \\t\"") && reads(second, "b", "\"C:\\\\x\""));
    MUST(reads(second, "c", "7") && reads(second, "9", "9223372036854775807"));
    for (size_t i = 2; i < 7; i++) MUST(reads(seed_at(i).data, "", NULL));
    static const char *const bad[] = {"a = 1 2",
                                      "a 1",
                                      "= 1",
                                      "a = tru",
                                      "a = 1e",
                                      "a = 1.",
                                      "a = 01",
                                      "a = 1_",
                                      "a = -",
                                      "a = 9223372036854775808",
                                      "a = 1e999",
                                      "a = \"\\q\"",
                                      "a = \"\\ud800\"",
                                      "a = 1-2",
                                      "a = 1e5.5",
                                      "a = \"\x01\"",
                                      "a.b = 1",
                                      "\"a\" = 1",
                                      "a = \"\xff\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!reads(bad[i], "", NULL)) fprintf(stderr, "taken: %s\n", bad[i]), abort();
}
#endif
