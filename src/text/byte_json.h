/* byte_json.h -- the tokenizer "byte" as a tokenizer.json, so that a model trained on bytes carries its tokenizer
 * as any other does: a byte-level BPE without merges, ids 0 to 255 the bytes, 256 and 257 begin and end. */
#ifndef HL_BYTE_JSON_H
#define HL_BYTE_JSON_H
#include "core/status.h"
hola_status hl_byte_json_write(const char *path);
#endif
