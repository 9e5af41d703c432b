/* feed_text.c -- feeds a text to a session: the start of a text is encoded differently from a continuation. */
#include "tokenizer/tokenizer.h"
#include <stdlib.h>

hola_status hola_session_feed_text(hola_session *s, const hola_tokenizer *t, const char *text, int64_t len,
                                   int64_t *n) {
    int32_t *ids = NULL;
    int64_t count = 0;
    if (n) *n = 0;
    HL_NEED(s, "the session");
    HL_NEED(t, "the tokenizer");
    HL_NEED(text, "text");
    const bool first = hola_session_position(s) == 0;
    hola_tokenizer *more = first ? NULL : hl_tokenizer_continuing(t);
    if (!first && !more) return hl_fail(HOLA_ENOMEM, "tokenizer: no memory");
    hola_status status =
        hola_tokenizer_encode(first ? t : more, text, len < 0 ? (int64_t)strlen(text) : len, 0, &ids, &count);
    free(more);
    if (status == HOLA_OK && first && hola_tokenizer_bos(t) >= 0) {
        int32_t *with_bos = realloc(ids, (size_t)(count + 1) * sizeof *ids);
        if (with_bos) {
            ids = with_bos;
            memmove(ids + 1, ids, (size_t)count++ * sizeof *ids);
            ids[0] = hola_tokenizer_bos(t);
        } else status = hl_fail(HOLA_ENOMEM, "tokenizer: %lld ids", (long long)count);
    }
    if (status == HOLA_OK && count == 0 && first) status = hl_fail(HOLA_EINVAL, "feed: an empty text, and no BOS");
    if (status == HOLA_OK && count > 0) status = hola_session_feed(s, ids, count, NULL);
    if (status == HOLA_OK && n) *n = count;
    free(ids);
    return status;
}
