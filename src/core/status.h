/* status.h -- errors inside the library: a code and one line, per thread. */
#ifndef HL_STATUS_H
#define HL_STATUS_H
#include "hola.h"
#include <stdarg.h>

#if defined(__GNUC__)
#define HL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define HL_PRINTF(fmt, args)
#endif

/* Formats into size bytes. Of a text that is too long, such as one with a path of 4,000 bytes, the middle is left out: the
 * cause comes last. */
void hl_message(char *out, int size, const char *fmt, va_list ap) HL_PRINTF(3, 0);

/* Stores the message for hola_last_error() and returns the code, so that callers write
 * `return hl_fail(HOLA_EIO, "%s: %s", path, strerror(errno));` */
hola_status hl_fail(hola_status code, const char *fmt, ...) HL_PRINTF(2, 3);

/* The first line of a public function, for arguments that must not be NULL. */
#define HL_NEED(x, what) \
    if (!(x)) return hl_fail(HOLA_EINVAL, "%s: %s is NULL", __func__, what)

/* Copies the caller's version of an options struct to *to, this library's version: fields that the caller does not know
 * are 0. from NULL: all are 0. first: the size of the struct in version 0.2, which a size of 0 means. */
hola_status hl_options_take(void *to, size_t known, const void *from, size_t first, const char *what);
/* The size of a struct whose last field in version 0.2 was this one. */
#define HL_SIZE_UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* For internal errors (shape mismatches); also enabled in release builds. */
void hl_assert_fail(const char *what, const char *file, int line) __attribute__((noreturn));
#define HL_ASSERT(x) ((x) ? (void)0 : hl_assert_fail(#x, __FILE__, __LINE__))

#endif
