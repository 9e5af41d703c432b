/* test_pattern.c -- word patterns: what they match, against a matcher that goes back and tries again; what is refused. */
#define _GNU_SOURCE
#include "check.h"
#include "tokenizer/pretoken.h"
#include "tokenizer/unicode.h"

static struct hl_pattern *compiled(const char *regex) {
    struct hl_pattern *p;
    CHECK_OK(hl_pattern_new(&p, HL_PATTERN_REGEX, regex, (int64_t)strlen(regex), false, "t"));
    return p;
}

/* ---- words of known patterns ---- */

#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASELESS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LLAMA3 CASELESS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST
#define QWEN2 CASELESS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST

static void check_words(const char *regex, const char *text, const char *want) {
    struct hl_pattern *p = compiled(regex);
    char got[256] = "";
    int64_t len = (int64_t)strlen(text), n = 0, seen;
    for (int64_t at = 0, end; at < len; at = end) {
        end = hl_pattern_match(p, text, len, at, &seen);
        assert_true(end > at && end <= len);
        if (at > 0) got[n++] = '|';
        memcpy(got + n, text + at, (size_t)(end - at)), n += end - at;
    }
    got[n] = 0;
    if (strcmp(got, want) != 0) fail_msg("\"%s\": %s, not %s", text, got, want);
    hl_pattern_free(p);
}

static void words(void **state) {
    (void)state;
    check_words(HL_GPT2_PATTERN, "Hello  world, it's 1234 o'clock!!\n\n x ",
                "Hello| | world|,| it|'s| 1234| o|'|clock|!!|\n\n| x| ");
    check_words(LLAMA3, "Hello  world, IT'S 1234 (o'clock)!!\n\n x ",
                "Hello| | world|,| IT|'S| |123|4| (|o|'clock|)!!\n\n| x| ");
    check_words(QWEN2, "a 12\t b\r\n \nc", "a| |1|2|\t| b|\r\n \n|c");
    check_words(HL_GPT2_PATTERN, "\xe4\xbd\xa0\xe5\xa5\xbd\xe3\x80\x82\xff\xc2\xa0z",
                "\xe4\xbd\xa0\xe5\xa5\xbd|\xe3\x80\x82\xff|\xc2\xa0|z");
}

/* ---- a matcher that goes back ---- */

/* Patterns over a and b, written twice: as a regex, and as a function that returns all ends of matches in order of
 * preference. Only greedy, lazy and possessive runs, and what follows: where automata and going back could differ. */
typedef int64_t (*matcher)(const char *t, int64_t n, int64_t at);

static int64_t run(const char *t, int64_t n, int64_t at, char c) {
    while (at < n && t[at] == c) at++;
    return at;
}
static int64_t greedy_then_a(const char *t, int64_t n, int64_t at) { /* [ab]*a */
    int64_t end = at;
    while (end < n && t[end] != 'c') end++;
    for (; end >= at; end--)
        if (end < n && t[end] == 'a') return end + 1;
    return -1;
}
static int64_t lazy_then_b(const char *t, int64_t n, int64_t at) { /* [ab]+?b */
    for (int64_t end = at + 1; end <= n && t[end - 1] != 'c'; end++)
        if (end < n && t[end] == 'b') return end + 1;
    return -1;
}
static int64_t first_of_two(const char *t, int64_t n, int64_t at) { /* a|ab|b+ */
    if (at < n && t[at] == 'a') return at + 1;
    int64_t end = run(t, n, at, 'b');
    return end > at ? end : -1;
}
static int64_t looks_ahead(const char *t, int64_t n, int64_t at) { /* a+(?!b) */
    int64_t end = run(t, n, at, 'a');
    if (end > at && end < n && t[end] == 'b') end--;
    return end > at ? end : -1;
}
static int64_t possessive(const char *t, int64_t n, int64_t at) { /* a++ab|a?+b */
    int64_t end = at < n && t[at] == 'a' ? at + 1 : at;
    return end < n && t[end] == 'b' ? end + 1 : -1;
}
static int64_t counted(const char *t, int64_t n, int64_t at) { /* (?:a{1,2}b){2}|a{2,3} */
    for (int first = 2; first > 0; first--)
        for (int second = 2; second > 0; second--) {
            int64_t i = at;
            int a = 0;
            for (; a < first && i < n && t[i] == 'a'; a++) i++;
            if (a < first || i >= n || t[i++] != 'b') continue;
            for (a = 0; a < second && i < n && t[i] == 'a'; a++) i++;
            if (a == second && i < n && t[i] == 'b') return i + 1;
        }
    int64_t end = run(t, n, at, 'a');
    return end - at >= 2 ? (end - at > 3 ? at + 3 : end) : -1;
}
static int64_t line_end(const char *t, int64_t n, int64_t at) { /* [a\n]+$ : the longest that ends before \n or there */
    int64_t end = at;
    while (end < n && (t[end] == 'a' || t[end] == '\n')) end++;
    for (; end > at; end--)
        if (end == n || t[end] == '\n') return end;
    return -1;
}

static void against_going_back(void **state) {
    static const struct {
        const char *regex;
        matcher plain;
    } all[] = {{"[ab]*a", greedy_then_a}, {"[ab]+?b", lazy_then_b},   {"a|ab|b+", first_of_two},
               {"a+(?!b)", looks_ahead},  {"a++ab|a?+b", possessive}, {"(?:a{1,2}b){2}|a{2,3}", counted},
               {"[a\\n]+$", line_end}};
    (void)state;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        struct hl_pattern *p = compiled(all[k].regex);
        int64_t seen, matches = 0;
        for (uint64_t i = 0; i < 6561; i++) { /* all texts of 8 letters */
            char t[9];
            uint64_t x = i;
            for (int j = 0; j < 8; j++, x /= 3) t[j] = "ab\n"[x % 3];
            if (k != 6)
                for (int j = 0; j < 8; j++)
                    if (t[j] == '\n') t[j] = 'c';
            for (int64_t at = 0; at < 8; at++) {
                int64_t got = hl_pattern_match(p, t, 8, at, &seen), want = all[k].plain(t, 8, at);
                if (got != want)
                    fail_msg("%s: %.8s from %d: %d, not %d", all[k].regex, t, (int)at, (int)got, (int)want);
                matches += got > 0;
            }
        }
        assert_true(matches > 1000);
        hl_pattern_free(p);
    }
}

static void refused(void **state) {
    static const char *const bad[] = {"a*",       "",
                                      "(?<=a)b",  "\\bx",
                                      "^a",       "(a",
                                      "a)",       "[a",
                                      "[]",       "[b-a]",
                                      "\\p{Han}", "\\pL",
                                      "a{2",      "a{3,2}",
                                      "a{0}",     "a{9999}",
                                      "(ab)++",   "(a?)*",
                                      "a**",      "(?=ab)c",
                                      "(?!a|bc)", "[[:alpha:]]",
                                      "[a&&b]",   "(?i:\\p{L})",
                                      "(?i:ss)",  "(?i:\xc3\xa9)",
                                      "\\1",      "(?x:a)",
                                      "a|",       "\\"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hl_pattern *p;
        if (hl_pattern_new(&p, HL_PATTERN_REGEX, bad[i], (int64_t)strlen(bad[i]), false, "f.json: here") == HOLA_OK)
            fail_msg("%s: accepted", bad[i]);
        assert_null(p);
        if (strncmp(hola_last_error(), "f.json: here: ", 14) != 0) fail_msg("%s: %s", bad[i], hola_last_error());
    }
}

/* ---- several patterns, and what becomes of matches ---- */

static void check_cut(struct hl_level level, const char *regex, const char *text, const char *want) {
    struct hl_cuts *cuts = calloc(1, sizeof *cuts);
    struct hl_cutter c;
    struct hl_piece piece;
    char got[256] = "";
    assert_non_null(cuts);
    level.pattern = compiled(regex);
    cuts->level[cuts->n++] = level;
    hl_cuts_finish(cuts);
    hl_cutter_begin(&c, cuts, text, (int64_t)strlen(text));
    while (hl_cutter_next(&c, &piece)) strncat(strcat(got, "|"), text + piece.begin, (size_t)(piece.end - piece.begin));
    hl_cutter_end(&c);
    if (strcmp(got, want) != 0) fail_msg("%s, %d: %s, not %s", text, (int)level.behavior, got, want);
    hl_cuts_free(cuts);
}

static void behaviors(void **state) {
    (void)state;
    check_cut((struct hl_level){.behavior = HL_ISOLATED}, "-", "a-b--c", "|a|-|b|-|-|c");
    check_cut((struct hl_level){.behavior = HL_REMOVED}, "-", "a-b--c", "|a|b|c");
    check_cut((struct hl_level){.behavior = HL_REMOVED, .invert = true}, "-", "a-b--c", "|-|-|-");
    check_cut((struct hl_level){.behavior = HL_CONTIGUOUS}, "-", "a-b--c", "|a|-|b|--|c");
    check_cut((struct hl_level){.behavior = HL_MERGED_WITH_PREVIOUS}, "-", "a-b--c", "|a-|b-|-|c");
    check_cut((struct hl_level){.behavior = HL_MERGED_WITH_NEXT}, "-", "a-b--c-", "|a|-b|-|-c|-");
}

/* An attempt that reads far and fails, from every character of a long text: time in its length, not its square. */
static void long_failures(void **state) {
    enum { N = 2000000 };
    char *text = malloc(N);
    struct hl_cuts *cuts = calloc(1, sizeof *cuts);
    struct hl_cutter c;
    struct hl_piece piece;
    int64_t n = 0;
    (void)state;
    assert_non_null(text), assert_non_null(cuts);
    memset(text, ' ', N);
    text[N - 1] = 'x';
    cuts->level[0] = (struct hl_level){.pattern = compiled("\\s+$"), .behavior = HL_ISOLATED};
    cuts->n = 1;
    hl_cuts_finish(cuts);
    hl_cutter_begin(&c, cuts, text, N);
    for (; hl_cutter_next(&c, &piece); n++) assert_int_equal(piece.end, N);
    hl_cutter_end(&c);
    assert_int_equal(n, 1);
    text[N - 1] = ' ', text[N / 2] = 'x';
    hl_cutter_begin(&c, cuts, text, N);
    for (n = 0; hl_cutter_next(&c, &piece); n++) assert_int_equal(piece.end, n ? N : N / 2 + 1);
    hl_cutter_end(&c);
    assert_int_equal(n, 2);
    hl_cuts_free(cuts);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),     cmocka_unit_test(against_going_back), cmocka_unit_test(refused),
        cmocka_unit_test(behaviors), cmocka_unit_test(long_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
