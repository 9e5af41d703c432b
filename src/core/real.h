/* real.h -- the number type of the engine. The library is built with float; the tests also build the same sources with
 * -DHL_DOUBLE, to separate wrong formulas from rounding. */
#ifndef HL_REAL_H
#define HL_REAL_H
#include <math.h>
#include <stdint.h>

#ifdef HL_DOUBLE
typedef double real;
#define R_EXP exp
#define R_LOG log
#define R_LOG1P log1p
#define R_EXPM1 expm1
#define R_SQRT sqrt
#define R_FABS fabs
#define R_COS cos
#define R_SIN sin
#else
typedef float real;
#define R_EXP expf
#define R_LOG logf
#define R_LOG1P log1pf
#define R_EXPM1 expm1f
#define R_SQRT sqrtf
#define R_FABS fabsf
#define R_COS cosf
#define R_SIN sinf
#endif

static inline real hl_sigmoid(real x) { return 1 / (1 + R_EXP(-x)); }
static inline real hl_softplus(real x) { return x > 20 ? x : R_LOG1P(R_EXP(x)); }
static inline real hl_logsigmoid(real x) { return (x < 0 ? x : 0) - R_LOG1P(R_EXP(-R_FABS(x))); }

#endif
