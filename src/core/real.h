/* real.h -- the number type of the engine. The library is built with float; the tests build the same
 * sources once more with -DHL_DOUBLE, so that formulas can be told apart from rounding. */
#ifndef HL_REAL_H
#define HL_REAL_H
#include <math.h>
#include <stdint.h>

#ifdef HL_DOUBLE
typedef double real;
#define R_EXP exp
#define R_LOG log
#define R_LOG1P log1p
#define R_SQRT sqrt
#define R_FABS fabs
#else
typedef float real;
#define R_EXP expf
#define R_LOG logf
#define R_LOG1P log1pf
#define R_SQRT sqrtf
#define R_FABS fabsf
#endif

static inline real hl_sigmoid(real x) { return 1 / (1 + R_EXP(-x)); }

#endif
