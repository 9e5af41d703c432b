/* unroll.h -- loops over registers: functions inlined and loops unrolled completely, because an array of vectors indexed
 * by a loop variable would be in memory. Without checks of the undefined-behaviour sanitizer: a branch for each would
 * take compilers minutes. */
#ifndef HL_UNROLL_H
#define HL_UNROLL_H
#define INLINE static inline __attribute__((always_inline, no_sanitize("undefined")))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif
