/* status.h -- errors inside the library: a code and one line, kept per thread. */
#ifndef HL_STATUS_H
#define HL_STATUS_H
#include "hola.h"

#if defined(__GNUC__)
#define HL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define HL_PRINTF(fmt, args)
#endif

/* Keeps the message for hola_last_error() and returns the code, so that callers write
 * `return hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));` */
hola_status hl_fail(hola_status code, const char *fmt, ...) HL_PRINTF(2, 3);

/* Our own mistakes (shapes that disagree): on in release builds too. */
void hl_assert_fail(const char *what, const char *file, int line) __attribute__((noreturn));
#define HL_ASSERT(x) ((x) ? (void)0 : hl_assert_fail(#x, __FILE__, __LINE__))

#endif
