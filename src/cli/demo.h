/* demo.h -- shared by the parts of hola demo: models, measurements, report. */
#ifndef HOLA_CLI_DEMO_H
#define HOLA_CLI_DEMO_H
#include "cli/cli.h"
#include "data/recall_curriculum.h"
#include "eval/recall.h"
#include "plot/recall_plot.h"

enum { DEMO_GDN, DEMO_HOLA, DEMO_RECENCY, DEMO_MODELS };
enum { DEMO_FACTS = 7, DEMO_LENGTHS = 5 };

struct demo {
    const char *out;
    int64_t samples;
    double lr;
    int64_t warmup;
    struct hl_recall_curriculum curriculum;
    hola_model *model[DEMO_MODELS];
    int64_t state_bytes[DEMO_MODELS];
    struct hl_recall_point by_facts[DEMO_FACTS], by_length[DEMO_LENGTHS];
    struct hl_mean ahead_facts[DEMO_FACTS], ahead_length[DEMO_LENGTHS]; /* HOLA vs. GDN, sample by sample */
};
extern const char *const demo_names[DEMO_MODELS];  /* in directory names and JSON fields */
extern const char *const demo_titles[DEMO_MODELS]; /* display names */

/* The task of a measurement: this many facts; the training length times `times`, with all the extra length between
 * facts and queries. */
struct hl_recall demo_task(const struct demo *d, int64_t facts, int64_t times);

/* demo_report.c: the tables and the listing on stdout, recall.json, recall.svg. */
enum { DEMO_LISTED_FACTS = 32 };
void demo_print_tables(const struct demo *d);
/* What one head kept of one sample, printed, and returned for the JSON file (NULL: failed). */
json_t *demo_print_kept(const struct demo *d);
hola_status demo_write_json(const struct demo *d, json_t *kept); /* takes ownership of kept */
hola_status demo_write_figure(const struct demo *d);

#endif
