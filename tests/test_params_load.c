/* test_params_load.c -- weights from files: exact, wrong, poisoned, old, and by another program. */
#define _GNU_SOURCE
#include "model/safetensors.h"
#include "mixers/gdn/gdn_layer.h"
#include "params_case.h"
#include "temp.h"

/* A model's tensors as entries of a file, to be changed by the tests. */
struct file {
    struct hl_params p;
    real *x;
    struct hl_st_entry e[64];
    int64_t n;
    char *dir, *path;
};

static void file_new(struct file *f, const hola_config *c, hola_dtype dtype) {
    CHECK_OK(hl_params_new(&f->p, c));
    f->x = block_new(&f->p);
    struct hl_pool *pool = check_pool(1, 64);
    hl_params_init(&f->p, pool, f->x, 3);
    hl_pool_free(pool);
    f->n = f->p.n;
    assert_true(f->n < 60);
    for (int64_t i = 0; i < f->n; i++) {
        const struct hl_tensor *t = &f->p.tensor[i];
        f->e[i] =
            (struct hl_st_entry){t->name, dtype, t->ndim, {t->dim[0], t->dim[1], t->dim[2]}, f->x + t->offset, NULL};
    }
    f->dir = temp_new();
    f->path = hl_path_join(f->dir, "model.safetensors");
}
static void file_free(struct file *f) {
    check_free(f->x, f->p.total);
    hl_params_free(&f->p);
    free(f->path);
    temp_remove(f->dir);
}
static struct hl_st_entry *entry(struct file *f, const char *name) {
    for (int64_t i = 0; i < f->n; i++)
        if (strcmp(f->e[i].name, name) == 0) return &f->e[i];
    fail_msg("%s: none", name);
    return NULL;
}
static void drop(struct file *f, const char *name) {
    *entry(f, name) = f->e[f->n - 1];
    f->n--;
}

/* Writes the file and loads it as config c into out, which starts as NaN. */
static hola_status load(struct file *f, const hola_config *c, struct hl_params *p, real **out) {
    struct hl_stfile *st = NULL;
    CHECK_OK(hl_params_new(p, c));
    *out = block_new(p);
    CHECK_OK(hl_st_write(f->path, f->e, f->n, NULL));
    CHECK_OK(hl_st_open(&st, f->dir));
    hola_status s = hl_params_load(p, st, f->dir, *out, NULL);
    hl_st_close(st);
    return s;
}
static void loaded_free(struct hl_params *p, real *x) {
    check_free(x, p->total);
    hl_params_free(p);
}

static void test_load_exact(void **state) {
    (void)state;
    for (int type = 0; type < HOLA_TYPE_COUNT; type++)
        for (int dtype = 0; dtype <= HOLA_F16; dtype++) {
            hola_config c = small((hola_model_type)type);
            struct file f;
            struct hl_params p;
            real *x;
            c.tie_word_embeddings = type != 1;
            c.vocab_size = 3; /* padding matters */
            file_new(&f, &c, (hola_dtype)dtype);
            CHECK_OK(load(&f, &c, &p, &x));
            if (dtype == HOLA_F32) assert_memory_equal(x, f.x, (size_t)p.total * sizeof(real));
            else CHECK_NEAR(x, f.x, p.total, 1, dtype == HOLA_BF16 ? 0x1p-8 : 0x1p-10, "type %d", type);
            if (dtype != HOLA_F32) CHECK_FAR(x, f.x, p.total, 1, 1e-6);
            loaded_free(&p, x);
            file_free(&f);
        }
}

static void test_load_bad(void **state) {
    static const char *const q = "model.layers.1.attn.q_proj.weight";
    static const struct {
        const char *name;
        int ndim;
        int64_t dim[3];
        const char *message; /* ndim -1: left out */
    } cases[] = {
        {q, -1, {0}, "model.layers.1.attn.q_proj.weight: missing"},
        {"model.embeddings.weight", -1, {0}, "model.embeddings.weight: missing"},
        {"model.norm.weight", -1, {0}, "model.norm.weight: missing"},
        {"model.layers.0.attn.cache_gate", -1, {0}, "cache_gate: missing"},
        {"model.layers.0.mlp.gate_proj.weight", -1, {0}, "gate_proj.weight: missing"},
        {"model.layers.0.mlp.up_proj.weight", -1, {0}, "up_proj.weight: missing"},
        {q, 2, {16, 64}, "model.layers.1.attn.q_proj.weight: shape [16,64], expected [32,32]"},
        {q, 1, {1024}, "shape [1024], expected [32,32]"},
        {q, 3, {32, 32, 1}, "shape [32,32,1], expected [32,32]"},
        {q, 2, {31, 32}, "shape [31,32], expected [32,32]"},
        {"model.layers.0.attn.q_conv1d.weight", 2, {32, 4}, "shape [32,4], expected [32,1,4]"},
        {"model.layers.0.attn.cache_tau", 1, {1}, "shape [1], expected [2]"},
        {"model.norm.weight", 0, {0}, "model.norm.weight: shape [], expected [32]"},
    };
    hola_config c = small(HOLA_TYPE_HOLA);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file f;
        struct hl_params p;
        char message[300];
        real *x;
        file_new(&f, &c, HOLA_F32);
        if (cases[i].ndim < 0) drop(&f, cases[i].name);
        else {
            struct hl_st_entry *e = entry(&f, cases[i].name);
            e->ndim = cases[i].ndim;
            memcpy(e->dim, cases[i].dim, sizeof cases[i].dim);
        }
        snprintf(message, sizeof message, "%s", cases[i].message);
        CHECK_FAILS(load(&f, &c, &p, &x), HOLA_EFORMAT, message);
        assert_memory_equal(hola_last_error(), f.dir, strlen(f.dir));
        loaded_free(&p, x);
        file_free(&f);
    }
}

/* Infinities and NaN in a file, and a type that we do not read: the bytes are changed behind the writer's back. */
static void test_load_poisoned(void **state) {
    static const float poison[] = {NAN, INFINITY, -INFINITY};
    hola_config c = small(HOLA_TYPE_GATED_DELTANET);
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct file f;
        struct hl_params p;
        struct hl_stfile *st;
        real *x;
        int64_t size;
        file_new(&f, &c, HOLA_F32);
        CHECK_OK(load(&f, &c, &p, &x));
        char *bytes = temp_read(f.dir, "model.safetensors", &size);
        CHECK_OK(hl_st_open(&st, f.dir));
        const struct hl_st_tensor *first = hl_st_find(st, "model.embeddings.weight"),
                                  *t = hl_st_find(st, "model.layers.0.attn.A_log");
        int64_t data = 8 + *(const int64_t *)(const void *)bytes + ((const char *)t->data - (const char *)first->data);
        hl_st_close(st);
        if (i < 3) {
            memcpy(bytes + data + 4, &poison[i], 4);
        } else {
            char *at = strstr(bytes + 8, "A_log\":{\"dtype\":\"F32\"");
            assert_non_null(at);
            memcpy(at + 17, "I32", 3);
        }
        CHECK_OK(hl_st_parse(&st, bytes, size, "file"));
        if (i < 3)
            CHECK_FAILS(hl_params_load(&p, st, "DIR", x, NULL), HOLA_ENUMERIC,
                        "DIR: model.layers.0.attn.A_log: holds values");
        else
            CHECK_FAILS(hl_params_load(&p, st, "DIR", x, NULL), HOLA_ENOTSUP,
                        "file: model.layers.0.attn.A_log: stored as I32");
        hl_st_close(st);
        free(bytes);
        loaded_free(&p, x);
        file_free(&f);
    }
}

static void test_load_lenient(void **state) {
    hola_config c = small(HOLA_TYPE_HOLA), g = small(HOLA_TYPE_GATED_DELTANET);
    struct file f;
    struct hl_params p;
    real *x, extra[61 * 32] = {1};
    (void)state;
    file_new(&f, &c, HOLA_F32);
    /* tied, but a head is stored; old files' unused D; a tensor nobody knows */
    f.e[f.n++] = (struct hl_st_entry){"lm_head.weight", HOLA_F32, 2, {61, 32}, extra, NULL};
    f.e[f.n++] = (struct hl_st_entry){"model.layers.0.attn.D", HOLA_F32, 1, {2}, extra, NULL};
    f.e[f.n++] = (struct hl_st_entry){"zzz", HOLA_F16, 1, {5}, extra, NULL};
    CHECK_OK(load(&f, &c, &p, &x));
    assert_memory_equal(x, f.x, (size_t)p.total * sizeof(real));
    loaded_free(&p, x);
    CHECK_OK(load(&f, &g, &p, &x)); /* hola read as gated_deltanet */
    assert_memory_equal(x + p.tensor[p.layer[1].down_proj].offset, f.x + f.p.tensor[f.p.layer[1].down_proj].offset,
                        64 * 32 * sizeof(real));
    loaded_free(&p, x);
    drop(&f, "model.layers.0.attn.cache_tau"); /* from the config then */
    c.cache_tau_init = 3;
    CHECK_OK(load(&f, &c, &p, &x));
    const real *tau = x + p.tensor[p.layer[0].mixer[MEMORY + HL_MEMORY_TAU]].offset;
    assert_true(tau[0] == 3 && tau[1] == 3 && tau[2] == 0 &&
                x[p.tensor[p.layer[1].mixer[MEMORY + HL_MEMORY_TAU]].offset] == 1);
    loaded_free(&p, x);
    file_free(&f);
}

/* gate rows, then up rows in one gate_proj [2I][d] */
static void test_load_old_mlp(void **state) {
    hola_config c = small(HOLA_TYPE_GATED_DELTANET);
    struct file f;
    struct hl_params p;
    real *x, *both = check_new(2 * 64 * 32);
    (void)state;
    file_new(&f, &c, HOLA_F32);
    const struct hl_layer_params *l = &f.p.layer[1];
    memcpy(both, f.x + f.p.tensor[l->gate_proj].offset, 64 * 32 * sizeof(real));
    memcpy(both + 64 * 32, f.x + f.p.tensor[l->up_proj].offset, 64 * 32 * sizeof(real));
    struct hl_st_entry *e = entry(&f, "model.layers.1.mlp.gate_proj.weight");
    e->src = both;
    e->dim[0] = 128;
    CHECK_FAILS(load(&f, &c, &p, &x), HOLA_EFORMAT,
                "gate_proj.weight: shape [128,32], expected [64,32]"); /* up_proj is there too */
    loaded_free(&p, x);
    drop(&f, "model.layers.1.mlp.up_proj.weight");
    CHECK_OK(load(&f, &c, &p, &x));
    assert_memory_equal(x, f.x, (size_t)p.total * sizeof(real));
    loaded_free(&p, x);
    entry(&f, "model.layers.1.mlp.gate_proj.weight")->dim[0] = 127;
    CHECK_FAILS(load(&f, &c, &p, &x), HOLA_EFORMAT, "gate_proj.weight: shape [127,32], expected [64,32]");
    loaded_free(&p, x);
    check_free(both, 2 * 64 * 32);
    file_free(&f);
}

/* Directories written by another program. */
static void test_fixtures(void **state) {
    static const char *const dirs[] = {"tests/data/fla_gdn", "tests/data/fla_gdn_sharded", "tests/data/fla_delta_net",
                                       "tests/data/hola_tiny"};
    real *first = NULL;
    (void)state;
    for (int i = 0; i < 4; i++) {
        hola_config c;
        struct hl_params p;
        struct hl_stfile *f;
        CHECK_OK(hola_config_read(&c, dirs[i]));
        CHECK_OK(hl_params_new(&p, &c));
        CHECK_OK(hl_st_open(&f, dirs[i]));
        real *x = block_new(&p);
        CHECK_OK(hl_params_load(&p, f, dirs[i], x, NULL));
        for (int64_t j = 0; j < p.total; j++) assert_true(isfinite(x[j]));
        if (i == 1) CHECK_NEAR(x, first, p.total, 1, 0x1p-8, "the same weights in two shards of BF16");
        if (i == 0) {
            first = x;
        } else {
            if (i == 1) check_free(first, p.total);
            check_free(x, p.total);
        }
        hl_st_close(f);
        hl_params_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_exact),   cmocka_unit_test(test_load_bad),     cmocka_unit_test(test_load_poisoned),
        cmocka_unit_test(test_load_lenient), cmocka_unit_test(test_load_old_mlp), cmocka_unit_test(test_fixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
