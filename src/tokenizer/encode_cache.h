/* encode_cache.h -- memory that encoding keeps from one text to the next, one part per thread. */
#ifndef HL_TOKENIZER_WORK_H
#define HL_TOKENIZER_WORK_H
#include "tokenizer/tokenizer.h"

hola_status hl_caches_new(struct hl_caches **out);
void hl_caches_free(struct hl_caches *c);

#endif
