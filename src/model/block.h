/* block.h -- one layer: norm, mixer, residual, norm, SwiGLU, residual. */
#ifndef HL_BLOCK_H
#define HL_BLOCK_H
#include "model/model.h"

/* Layer `index` as its mixer sees it. grads: a block laid out as the rows; NULL in a forward pass. */
struct hl_layer hl_layer_open(const hola_model *m, const struct hl_activations *acts,
                              const struct hl_rows *rows, int64_t index, real *grads);
/* x is in acts->layer[index].x; the result goes to `out` ([T][d], may be that x). */
void hl_block_forward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                      int64_t index, void *out);
/* Takes the gradient of the output in acts->grad.dx and leaves that of x there. */
void hl_block_backward(const hola_model *m, const struct hl_activations *acts, const struct hl_rows *rows,
                       int64_t index, real *grads);

#endif
