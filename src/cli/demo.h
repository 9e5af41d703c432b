/* demo.h -- what the parts of hola demo share: the models, the measurements, the report. */
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
    struct hl_mean ahead_facts[DEMO_FACTS], ahead_length[DEMO_LENGTHS]; /* HOLA over GDN, sample by sample */
};
extern const char *const demo_names[DEMO_MODELS];  /* of directories and JSON fields */
extern const char *const demo_titles[DEMO_MODELS]; /* for people */

/* The task of a measurement: so many facts; the training length times `times`, all that is more between the
 * facts and the questions. */
struct hl_recall demo_task(const struct demo *d, int64_t facts, int64_t times);

/* demo_report.c: the tables and the listing on stdout, recall.json, recall.svg. */
enum { DEMO_LISTED_FACTS = 32 };
void demo_print_tables(const struct demo *d);
/* What one head kept of one sample: the listing, and the same for the JSON file (NULL: failed). */
json_t *demo_print_kept(const struct demo *d);
hola_status demo_write_json(const struct demo *d, json_t *kept); /* takes kept over */
hola_status demo_write_figure(const struct demo *d);

#endif
