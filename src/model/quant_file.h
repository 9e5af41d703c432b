/* quant_file.h -- tensors stored as codes (ops/linear/quant.h): NAME holds them, NAME_scale the scales. */
#ifndef HL_QUANT_FILE_H
#define HL_QUANT_FILE_H
#include "model/params.h"
#include "model/safetensors.h"
#include "ops/linear/quant.h"

/* The large matrices: projections, SwiGLU, embeddings and head. The projections that gate the state (a_proj, b_proj)
 * and everything that is not a matrix stay unquantised. */
bool hl_quant_file_takes(const struct hl_params *p, int64_t i);

/* Allocates the codes of a matrix; false: out of memory. Free with hl_quant_file_free (which accepts empty ones). */
bool hl_quant_file_new(struct hl_quant *c, hola_dtype dtype, int64_t rows, int64_t cols);
void hl_quant_file_free(struct hl_quant *c);

/* The code type of a stored tensor; HOLA_DTYPE_COUNT: not quantised. */
hola_dtype hl_quant_file_type(const struct hl_st_tensor *t);
/* Loads tensor t from a file that stores it as codes; checks shapes, sizes and scales. The caller owns *out. */
hola_status hl_quant_file_load(struct hl_quant *out, const struct hl_tensor *t, const struct hl_stfile *f,
                               const char *dir);
/* The two file entries of a tensor; name_scale: buffer for the name of the second. */
enum { HL_QUANT_FILE_NAME = 96 };
void hl_quant_file_entries(struct hl_st_entry e[2], const struct hl_quant *c, const char *name,
                           char name_scale[HL_QUANT_FILE_NAME]);

#endif
