/* errors.h -- request errors: one list of codes, with their HTTP status and error type. */
#ifndef HL_SERVE_ERRORS_H
#define HL_SERVE_ERRORS_H

#define HL_ERROR_LIST(X)                                                            \
    X(HL_NO_ERROR, 200, "", "")                                                     \
    X(HL_BAD_REQUEST, 400, "invalid_request_error", "bad_request")                  \
    X(HL_INVALID_JSON, 400, "invalid_request_error", "invalid_json")                \
    X(HL_INVALID_VALUE, 400, "invalid_request_error", "invalid_value")              \
    X(HL_MISSING_FIELD, 400, "invalid_request_error", "missing_field")              \
    X(HL_UNKNOWN_FIELD, 400, "invalid_request_error", "unknown_field")              \
    X(HL_UNSUPPORTED, 400, "invalid_request_error", "unsupported")                  \
    X(HL_INVALID_API_KEY, 401, "authentication_error", "invalid_api_key")           \
    X(HL_HOST_NOT_ALLOWED, 403, "permission_error", "host_not_allowed")             \
    X(HL_ORIGIN_NOT_ALLOWED, 403, "permission_error", "origin_not_allowed")         \
    X(HL_NOT_FOUND, 404, "not_found_error", "not_found")                            \
    X(HL_MODEL_NOT_FOUND, 404, "not_found_error", "model_not_found")                \
    X(HL_SESSION_NOT_FOUND, 404, "not_found_error", "session_not_found")            \
    X(HL_NO_MEMORY, 404, "not_found_error", "no_memory")                            \
    X(HL_METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed")    \
    X(HL_TIMEOUT, 408, "invalid_request_error", "timeout")                          \
    X(HL_SESSION_BUSY, 409, "conflict_error", "session_busy")                       \
    X(HL_SESSION_EXISTS, 409, "conflict_error", "session_exists")                   \
    X(HL_TOO_LARGE, 413, "invalid_request_error", "too_large")                      \
    X(HL_URI_TOO_LONG, 414, "invalid_request_error", "uri_too_long")                \
    X(HL_UNSUPPORTED_MEDIA, 415, "invalid_request_error", "unsupported_media_type") \
    X(HL_EXPECTATION_FAILED, 417, "invalid_request_error", "unsupported")           \
    X(HL_HEADER_TOO_LARGE, 431, "invalid_request_error", "header_too_large")        \
    X(HL_INTERNAL, 500, "server_error", "internal")                                 \
    X(HL_NOT_FINITE, 500, "server_error", "not_finite")                             \
    X(HL_SESSION_DAMAGED, 500, "server_error", "session_damaged")                   \
    X(HL_NOT_IMPLEMENTED, 501, "invalid_request_error", "unsupported")              \
    X(HL_OVERLOADED, 503, "unavailable_error", "overloaded")                        \
    X(HL_LOADING, 503, "unavailable_error", "loading")                              \
    X(HL_SHUTTING_DOWN, 503, "unavailable_error", "shutting_down")                  \
    X(HL_BAD_VERSION, 505, "invalid_request_error", "unsupported")                  \
    X(HL_DISK_FULL, 507, "storage_error", "disk_full")                              \
    X(HL_TOO_MANY_SESSIONS, 507, "storage_error", "too_many_sessions")
#define HL_ERROR_ENUM(name, status, type, code) name,
enum hl_error { HL_ERROR_LIST(HL_ERROR_ENUM) HL_ERROR_COUNT };
#undef HL_ERROR_ENUM

#endif
