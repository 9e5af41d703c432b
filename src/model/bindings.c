/* bindings.c -- parts of hola.h for language bindings: sizes of its structs and those of hola_ops.h, build features, a
 * config from text, inspection of the exact memory. */
#include "hola_ops.h"
#include "model/cache_view.h"
#include "model/config.h"
#include "model/session.h"
#include <string.h>

size_t hola_sizeof(const char *struct_name) {
#define SIZE(type) \
    { #type, sizeof(type) }
    static const struct {
        const char *name;
        size_t size;
    } structs[] = {SIZE(hola_config),       SIZE(hola_options),       SIZE(hola_tensor_info), SIZE(hola_sampling),
                   SIZE(hola_history_opts), SIZE(hola_generate_opts), SIZE(hola_train_opts),  SIZE(hola_where),
                   SIZE(hola_rows),         SIZE(hola_gdn_args),      SIZE(hola_cache_args),  SIZE(hola_kda_args),
                   SIZE(hola_gla_args),     SIZE(hola_attention_args)};
#undef SIZE
    if (!struct_name) return 0;
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++)
        if (strcmp(structs[i].name, struct_name) == 0) return structs[i].size;
    return 0;
}

int hola_cuda_devices(void) { return hl_backend_cuda_devices(); }
const char *hola_cuda_version(void) { return hl_backend_cuda_version(); }
const char *hola_cuda_arch(void) { return hl_backend_cuda_arch(); }

hola_status hola_config_parse(hola_config *out, const char *text, int64_t len) {
    HL_NEED(out, "out");
    HL_NEED(text, "the text");
    return len < 0 ? hl_fail(HOLA_EINVAL, "config: %lld bytes", (long long)len)
                   : hl_config_parse(out, text, len, "config");
}

hola_status hola_session_kept(const hola_session *s, int64_t layer, int64_t head, int64_t *pos, float *score,
                              int64_t *count) {
    HL_NEED(s, "the session");
    HL_NEED(pos, "pos");
    HL_NEED(count, "count");
    pthread_mutex_lock(&s->model->lock); /* other sessions may use the device */
    const hola_status status = hl_session_kept(s, layer, head, pos, score, count);
    pthread_mutex_unlock(&s->model->lock);
    return status;
}
