/* ruler_case.h -- a small data directory for RULER, of our own words. */
#ifndef HL_RULER_CASE_H
#define HL_RULER_CASE_H
#include "temp.h"

struct page {
    char data[1 << 17];
    int64_t n;
};
static void page_add(struct page *p, const char *text) {
    int64_t n = (int64_t)strlen(text);
    assert_true(p->n + n < (int64_t)sizeof p->data);
    memcpy(p->data + p->n, text, (size_t)n);
    p->n += n;
}
static uint64_t page_draw(uint64_t *seed, int n) { return (uint64_t)check_uniform(seed, 0, n); }

/* Short pronounceable words, the same for the same number. */
static void page_word(struct page *p, uint64_t i) {
    static const char *const syllable[] = {"ba", "de", "ki", "lo", "mu", "ra", "se", "ti"};
    for (int k = 0; k < 3; k++, i /= 8) page_add(p, syllable[i % 8]);
}

static void case_lists(const char *dir) {
    static struct page p;
    static const char *const kind[] = {"noun", "adjective", "verb"};
    /* one begins with another and a dash, one pair comes twice, one line has a space behind it */
    static const char *const odd[] = {"eyed-cat\ncat\n", "blue\nblue-eyed\nwet \n", "run\ncat\n"};
    static const int count[] = {60, 20, 40};
    for (int k = 0; k < 3; k++) {
        char name[64];
        p.n = 0;
        page_add(&p, odd[k]);
        for (int i = 0; i < count[k]; i++) {
            page_word(&p, (uint64_t)(7 * i + 131 * k));
            page_add(&p, "\n");
        }
        snprintf(name, sizeof name, "wonderwords/master/%slist.txt", kind[k]);
        temp_write(dir, name, p.data, p.n);
    }
    p.n = 0;
    page_add(&p, "{");
    for (int i = 0; i < 6000; i++) {
        char text[48];
        snprintf(text, sizeof text, "%s\"%d\": \"w%d\"", i ? ", " : "", i, i * 7919 % 6000);
        page_add(&p, text);
    }
    page_add(&p, "}");
    temp_write(dir, "english_words.json", p.data, p.n);
}

/* Sentences with all that Punkt looks at: abbreviations, initials, numbers, ellipses, quotes. */
static void case_essays(const char *dir) {
    static struct page p;
    static const char *const end[] = {". ",     "? ",     "!\\n",    ".  ", " e.g. ", " (etc.) ", "... ", " 3. ",
                                      ". \\\"", ".\\\" ", " J. S. ", ".) ", "!? ",    ", ",       " -- ", ". . . "};
    uint64_t seed = 5;
    p.n = 0;
    page_add(&p, "{\"text\": \" ");
    for (int i = 0; i < 500; i++) {
        bool capital = page_draw(&seed, 4) != 0;
        for (uint64_t k = 2 + page_draw(&seed, 6); k > 0; k--, capital = false) {
            int64_t at = p.n;
            page_word(&p, page_draw(&seed, 40));
            if (capital) p.data[at] = (char)(p.data[at] - 32);
            if (k > 1) page_add(&p, " ");
        }
        page_add(&p, end[page_draw(&seed, 16)]);
    }
    page_add(&p, "\"}");
    temp_write(dir, "PaulGrahamEssays.json", p.data, p.n);
    const char *punkt = "nltk_data/tokenizers/punkt_tab/english";
    char *sub = hl_path_join(dir, punkt);
    CHECK_OK(hl_make_dirs(sub));
    const char *files[][2] = {{"abbrev_types.txt", "e.g\netc\nj\n"},
                              {"sent_starters.txt", "bababa\ndebaba\n"},
                              {"collocations.tab", "##number##\tkibaba\ns\tlobaba\n"},
                              {"ortho_context.tab", "mubaba\t32\nrababa\t36\nsebaba\t48\ntibaba\t14\nbadeba\t2\n"}};
    for (int i = 0; i < 4; i++) temp_write(sub, files[i][0], files[i][1], (int64_t)strlen(files[i][1]));
    free(sub);
}

/* Articles, paragraphs, questions; every third one without an answer. */
static void case_questions(const char *dir) {
    static struct page p, h;
    uint64_t seed = 9;
    char text[128];
    p.n = h.n = 0;
    page_add(&p, "{\"data\": [");
    page_add(&h, "[");
    for (int i = 0; i < 12; i++) {
        page_add(&p, i ? ", {\"paragraphs\": [" : "{\"paragraphs\": [");
        for (int j = 0; j < 4 + i % 3; j++) {
            page_add(&p, j ? ", {\"context\": \"" : "{\"context\": \"");
            for (int k = 0; k < 12; k++)
                page_word(&p, page_draw(&seed, 500)), page_add(&p, k < 11 ? " " : ".\", \"qas\": [");
            for (int k = 0; k < 3; k++) {
                snprintf(text, sizeof text, "%s{\"question\": \"Who is %d of %d.%d?\", ", k ? ", " : "", k, i, j);
                page_add(&p, text);
                page_add(&p, k == 1 ? "\"is_impossible\": true, \"answers\": []}"
                                    : "\"is_impossible\": false, \"answers\": [{\"text\": \"it's\"}, "
                                      "{\"text\": \"\\u00c9t\\u00e9\"}]}");
            }
            page_add(&p, "]}");
        }
        page_add(&p, "]}");
        snprintf(text, sizeof text, "%s{\"question\": \"Which %d?\", \"answer\": \"the %d\", \"context\": [",
                 i ? ", " : "", i, i);
        page_add(&h, text);
        for (int j = 0; j < 6; j++) {
            snprintf(text, sizeof text, "%s[\"title %d\", [\"One %d. \", \"Two ", j ? ", " : "", (i * 5 + j) % 40, j);
            page_add(&h, text);
            page_word(&h, (uint64_t)(i * 6 + j));
            page_add(&h, ".\"]]");
        }
        page_add(&h, "]}");
    }
    page_add(&p, "]}");
    page_add(&h, "]");
    temp_write(dir, "squad.json", p.data, p.n);
    temp_write(dir, "hotpotqa.json", h.data, h.n);
}

static char *case_new(void) {
    char *dir = temp_new(), *words = hl_path_join(dir, "wonderwords/master");
    CHECK_OK(hl_make_dirs(words));
    free(words);
    case_lists(dir);
    case_essays(dir);
    case_questions(dir);
    return dir;
}

#endif
