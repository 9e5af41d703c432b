/* fuzz_safetensors.c -- any bytes as a model file: refused with a message, or every tensor lies inside and
 * can be read. What passes is also loaded as the weights of a tiny model. */
#include "mutate.h"
#include "model/config.h"
#include "model/params.h"
#include "model/safetensors.h"

static void tiny_params(struct hl_params *p) {
    hola_config c;
    hl_config_defaults(&c, HOLA_TYPE_HOLA);
    c.hidden_size = c.intermediate_size = 2;
    c.num_hidden_layers = c.num_heads = c.num_v_heads = 1;
    c.head_dim = c.head_v_dim = 2;
    c.vocab_size = 3;
    c.conv_size = 0;
    MUST(hl_params_new(p, &c) == HOLA_OK);
}

/* A whole file of the tiny model: length, header, data. */
static struct seed tiny_file(void) {
    static char file[8192];
    static size_t size;
    struct hl_params p;
    uint64_t head = 0, data = 0;
    if (size > 0) return (struct seed){file, size};
    tiny_params(&p);
    for (int64_t i = 0; i < p.n; i++) {
        const struct hl_tensor *t = &p.tensor[i];
        int type = (int)(i % HOLA_DTYPE_COUNT);
        uint64_t bytes = (uint64_t)t->count * (type == HOLA_F32 ? 4 : 2);
        char shape[64];
        head += (uint64_t)snprintf(file + 8 + head, sizeof file - 8 - head,
                                   "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}",
                                   i ? "," : "{", t->name, hola_dtype_name((hola_dtype)type),
                                   hl_st_shape(shape, sizeof shape, t->ndim, t->dim), (int)data,
                                   (int)(data + bytes));
        data += bytes;
    }
    file[8 + head++] = '}';
    memcpy(file, &head, 8);
    size = 8 + head + data; /* the weights are zeros */
    MUST(size <= sizeof file);
    hl_params_free(&p);
    return (struct seed){file, size};
}

static struct seed seed_at(size_t i) {
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    static const char two[] =
        "\206\0\0\0\0\0\0\0{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"F32\",\"shape\":[1,1],"
        "\"data_offsets\":[0,4]},\"u\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[4,5]}}  1234";
    if (i == 0) return (struct seed){empty, sizeof empty - 1};
    if (i == 1) return (struct seed){two, sizeof two - 1 + 1};
    return i == 2 ? tiny_file() : (struct seed){NULL, 0};
}

static void read_all(const struct hl_stfile *f, const uint8_t *data, size_t size) {
    for (int64_t i = 0; i < hl_st_count(f); i++) {
        const struct hl_st_tensor *t = hl_st_at(f, i);
        const uint8_t *begin = t->data;
        MUST(begin >= data && t->bytes >= 0 && (size_t)t->bytes <= size - (size_t)(begin - data));
        MUST(hl_st_find(f, t->name) == t);
        if (t->dtype == HOLA_DTYPE_COUNT) continue;
        MUST(t->count <= t->bytes);
        real *x = malloc((size_t)t->count * sizeof(real) + 1);
        MUST(x);
        MUST(hl_st_read(t, 0, t->count, x) == HOLA_OK);
        free(x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct hl_stfile *f = NULL;
    struct hl_params p;
    hola_status s = hl_st_parse(&f, (const char *)data, (int64_t)size, "f");
    if (s != HOLA_OK) {
        MUST(s == HOLA_EFORMAT && !f && strncmp(hola_last_error(), "f: ", 3) == 0);
        return 0;
    }
    read_all(f, data, size);
    tiny_params(&p);
    real *block = malloc((size_t)p.total * sizeof(real));
    MUST(block);
    s = hl_params_load(&p, f, "d", block);
    MUST(s == HOLA_OK || s == HOLA_EFORMAT || s == HOLA_ENUMERIC || s == HOLA_ENOTSUP);
    for (int64_t i = 0; i < p.total && s == HOLA_OK; i++) MUST(isfinite(block[i]));
    free(block);
    hl_params_free(&p);
    hl_st_close(f);
    return 0;
}
