/* quant_file.h -- tensors stored as codes (ops/linear/quant.h): NAME holds them, NAME_scale the scales. */
#ifndef HL_QUANT_FILE_H
#define HL_QUANT_FILE_H
#include "model/params.h"
#include "model/safetensors.h"
#include "ops/linear/quant.h"

/* The large matrices: projections, SwiGLU, embeddings and head. What gates the state (a_proj, b_proj) and
 * everything that is no matrix stays as it is. */
bool hl_quant_file_takes(const struct hl_params *p, int64_t i);

/* Memory for the codes of a matrix; false: there is none. Free with hl_quant_file_free (empty ones too). */
bool hl_quant_file_new(struct hl_quant *c, hola_dtype dtype, int64_t rows, int64_t cols);
void hl_quant_file_free(struct hl_quant *c);

/* The type of codes that a file's tensor is stored as; HOLA_DTYPE_COUNT: none. */
hola_dtype hl_quant_file_type(const struct hl_st_tensor *t);
/* Tensor t of the model from a file that holds codes for it; shapes, sizes and scales are checked. *out is yours. */
hola_status hl_quant_file_load(struct hl_quant *out, const struct hl_tensor *t, const struct hl_stfile *f,
                               const char *dir);
/* The two entries that write it; name_scale: room for the second one's name. */
enum { HL_QUANT_FILE_NAME = 96 };
void hl_quant_file_entries(struct hl_st_entry e[2], const struct hl_quant *c, const char *name,
                           char name_scale[HL_QUANT_FILE_NAME]);

#endif
