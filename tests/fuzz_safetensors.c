/* fuzz_safetensors.c -- any bytes as a model file: refused with a message, or every tensor lies inside and
 * can be read. What passes is also loaded as the weights of a tiny model. */
#include "mutate.h"
#include "model/config.h"
#include "model/quant_file.h"

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

/* Appends a tensor to the header and its bytes, all of them `fill`, to the data. */
struct draft {
    char head[8192], data[2048];
    int head_size, data_size;
};
static void add(struct draft *d, const char *name, const char *dtype, int ndim, const int64_t *dim, int size,
                uint16_t fill) {
    char shape[64];
    int bytes = size;
    for (int i = 0; i < ndim; i++) bytes *= (int)dim[i];
    MUST(d->data_size + bytes <= (int)sizeof d->data);
    d->head_size +=
        snprintf(d->head + d->head_size, sizeof d->head - (size_t)d->head_size,
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}", d->head_size ? "," : "{", name,
                 dtype, hl_st_shape(shape, sizeof shape, ndim, dim), d->data_size, d->data_size + bytes);
    for (int i = 0; i < bytes; i++) d->data[d->data_size++] = (char)(fill >> i % 2 * 8);
}

/* A whole file of the tiny model: length, header, data. Weights of 0, as floats, or as codes with scales of 1. */
static struct seed tiny_file(bool codes) {
    static char files[2][sizeof(struct draft) + 8];
    static size_t sizes[2];
    static struct draft d;
    struct hl_params p;
    char *file = files[codes];
    if (sizes[codes] > 0) return (struct seed){file, sizes[codes]};
    memset(&d, 0, sizeof d);
    tiny_params(&p);
    for (int64_t i = 0; i < p.n; i++) {
        const struct hl_tensor *t = &p.tensor[i];
        const int type = (int)(i % 3);
        if (!codes || !hl_quant_file_takes(&p, i)) {
            add(&d, t->name, hola_dtype_name((hola_dtype)type), t->ndim, t->dim, type == HOLA_F32 ? 4 : 2, 0);
            continue;
        }
        const hola_dtype as = i % 2 ? HOLA_INT8 : HOLA_INT4;
        char name[HL_QUANT_FILE_NAME];
        snprintf(name, sizeof name, "%s_scale", t->name);
        add(&d, t->name, i % 2 ? "I8" : "U8", 2, (const int64_t[2]){t->dim[0], hl_quant_row(as, t->dim[1])}, 1, 0);
        add(&d, name, "BF16", 2, (const int64_t[2]){t->dim[0], hl_quant_groups(as, t->dim[1])}, 2, 0x3f80);
    }
    d.head[d.head_size++] = '}';
    MUST(d.head_size < (int)sizeof d.head);
    const uint64_t length = (uint64_t)d.head_size;
    memcpy(file, &length, 8);
    memcpy(file + 8, d.head, length);
    memcpy(file + 8 + length, d.data, (size_t)d.data_size);
    sizes[codes] = 8 + length + (size_t)d.data_size;
    hl_params_free(&p);
    return (struct seed){file, sizes[codes]};
}

static struct seed seed_at(size_t i) {
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    static const char two[] =
        "\206\0\0\0\0\0\0\0{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"F32\",\"shape\":[1,1],"
        "\"data_offsets\":[0,4]},\"u\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[4,5]}}  1234";
    if (i == 0) return (struct seed){empty, sizeof empty - 1};
    if (i == 1) return (struct seed){two, sizeof two - 1 + 1};
    return i < 4 ? tiny_file(i == 3) : (struct seed){NULL, 0};
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
    struct hl_quant *codes = calloc((size_t)p.n, sizeof *codes);
    MUST(codes);
    s = hl_params_load(&p, f, "d", block, codes);
    for (int64_t i = 0; i < p.n; i++) hl_quant_file_free(&codes[i]);
    free(codes);
    MUST(s == HOLA_OK || s == HOLA_EFORMAT || s == HOLA_ENUMERIC || s == HOLA_ENOTSUP);
    for (int64_t i = 0; i < p.total && s == HOLA_OK; i++) MUST(isfinite(block[i]));
    free(block);
    hl_params_free(&p);
    hl_st_close(f);
    return 0;
}
