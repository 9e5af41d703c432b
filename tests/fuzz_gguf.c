/* fuzz_gguf.c -- any bytes as a GGUF file: refused with a message, or every value and tensor lies inside and can be
 * read. What passes is also taken as a model and as a tokenizer. */
#define _POSIX_C_SOURCE 200809L
#define MUTATE_RUNS 3000 /* each reads a tokenizer */
#include "mutate.h"
#include "model/config.h"
#include "model/gguf_model.h"
#include "model/quant_file.h"
#include "tokenizer/gguf_keys.h"
#include "tokenizer/tokenizer_json.h"
#include <unistd.h>

enum { VOCAB = 262 };

static void put_tokens(struct hl_gguf_keys *k, bool spm) {
    const char *model = spm ? "llama" : "gpt2";
    float score = 0;
    char text[16];
    hl_gguf_put_string(k, "tokenizer.ggml.model", model, (int64_t)strlen(model));
    hl_gguf_put_string(k, "tokenizer.ggml.pre", "gpt-2", 5);
    hl_gguf_put_array(k, "tokenizer.ggml.tokens", HL_GGUF_STRING, VOCAB);
    for (int i = 0; i < VOCAB; i++) {
        const uint32_t c = hl_char_of_byte((unsigned char)i);
        int n = snprintf(text, sizeof text, i == 256 ? "<s>" : i == 257 ? "</s>" : i == 258 ? "<unk>" : "[PAD%d]", i);
        if (i < 256 && spm) n = snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        else if (i < 256 && c < 128) text[0] = (char)c, n = 1;
        else if (i < 256) text[0] = (char)(0xc0 | c >> 6), text[1] = (char)(0x80 | (c & 63)), n = 2;
        if (i == 259) n = snprintf(text, sizeof text, "ab");
        hl_gguf_put_item_string(k, text, n);
    }
    hl_gguf_put_array(k, "tokenizer.ggml.token_type", HL_GGUF_I32, VOCAB);
    for (int32_t i = 0; i < VOCAB; i++) {
        const int32_t type = i < 256 ? (spm ? 6 : 1) : i < 258 ? 3 : i == 258 ? 2 : i == 259 ? 1 : 5;
        hl_gguf_put_item(k, &type, 4);
    }
    hl_gguf_put_array(k, "tokenizer.ggml.scores", HL_GGUF_F32, VOCAB);
    for (int i = 0; i < VOCAB; i++, score -= 1) hl_gguf_put_item(k, &score, 4);
    hl_gguf_put_array(k, "tokenizer.ggml.merges", HL_GGUF_STRING, 1);
    hl_gguf_put_item_string(k, "a b", 3);
    hl_gguf_put_int(k, "tokenizer.ggml.bos_token_id", 256);
    hl_gguf_put_int(k, "tokenizer.ggml.eos_token_id", 257);
    hl_gguf_put_bool(k, "tokenizer.ggml.add_space_prefix", true);
    hl_gguf_put_string(k, "tokenizer.chat_template", "{{x}}", 5);
}

/* A file of a model of 32 channels: its type, and the type of its weights. */
static struct seed whole_file(hola_model_type type, hola_dtype dtype, bool spm) {
    const struct hola_options opt = {.threads = 1};
    struct hl_gguf_keys keys = {0};
    struct hl_map map = {0};
    hola_config c;
    hola_model *m;
    char path[] = "/tmp/hola-fuzz-XXXXXX";
    const int fd = mkstemp(path);
    MUST(fd >= 0);
    close(fd);
    hl_config_defaults(&c, type);
    c.hidden_size = c.intermediate_size = 32;
    c.num_hidden_layers = 1;
    c.num_heads = c.num_v_heads = 2, c.num_kv_heads = 1;
    c.head_dim = c.head_v_dim = 4;
    c.vocab_size = VOCAB;
    c.conv_size = 0;
    c.qkv_bias = true;
    put_tokens(&keys, spm);
    MUST(hola_model_new(&m, &c, 1, &opt) == HOLA_OK);
    MUST(hl_gguf_model_save(m, path, dtype, &keys) == HOLA_OK);
    MUST(hl_map_open(&map, path) == HOLA_OK); /* until the program ends */
    remove(path);
    hola_model_free(m);
    hl_text_free(&keys.text);
    return (struct seed){map.data, (size_t)map.size};
}

static struct seed seed_at(size_t i) {
    static const char empty[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    static struct seed files[4];
    if (i == 0) return (struct seed){empty, 24};
    if (i > 4) return (struct seed){NULL, 0};
    if (!files[i - 1].size)
        files[i - 1] = whole_file(i % 2 ? HOLA_TYPE_TRANSFORMER : HOLA_TYPE_HOLA,
                                  i == 1   ? HOLA_INT8
                                  : i == 2 ? HOLA_BF16
                                           : HOLA_INT4,
                                  i < 3);
    return files[i - 1];
}

static void read_all(const struct hl_gguf *g, const char *data, size_t size) {
    for (int64_t i = 0; i < g->n_values; i++) {
        const struct hl_gguf_value *v = &g->value[i];
        MUST(v->data >= data && v->bytes >= 0 && v->bytes <= data + size - v->data);
        MUST(hl_gguf_find(g, v->key) == v);
        const char *at = v->data;
        int64_t len, last = 0;
        for (int64_t j = 0; j < v->n && v->type == HL_GGUF_STRING; j++) {
            const char *text = hl_gguf_next_string(&at, &len);
            MUST(text >= data && len >= 0 && len <= data + size - text);
            if (len > 0) last += text[len - 1];
        }
        double x;
        bool b;
        hl_gguf_int(g, v->key, 0, 10 + (last & 1), &len);
        hl_gguf_real(g, v->key, &x);
        hl_gguf_bool(g, v->key, &b);
    }
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const struct hl_gguf_tensor *t = &g->tensor[i];
        MUST(t->data >= data && t->bytes >= 0 && t->bytes <= data + size - t->data);
        MUST(i == 0 || t->data >= t[-1].data + t[-1].bytes);
    }
}

static void as_tokenizer(const struct hl_gguf *g) {
    struct hl_text file = {0};
    const char *name;
    char *config = NULL;
    hola_tokenizer t = {.bos = -1, .eos = -1, .bpe.unknown = -1};
    memset(t.bpe.byte, 0xff, sizeof t.bpe.byte);
    if (hl_gguf_tokenizer(g, &file, &name) == HOLA_OK && file.n > 0) {
        const bool json = hl_is_tokenizer_json(file.data, file.n);
        const hola_status s = (json ? hl_tokenizer_json_read : hl_spm_read)(&t, file.data, file.n, "f");
        MUST(s == HOLA_OK || strncmp(hola_last_error(), "f: ", 3) == 0);
    }
    hl_gguf_tokenizer_config(g, &config);
    free(config);
    hl_text_free(&file);
    hl_bpe_free(&t.bpe);
    hl_normaliser_free(&t.normaliser);
    hl_added_free(&t.raw), hl_added_free(&t.normalised);
    free(t.unknown_text), free(t.added_store);
}

static void as_model(struct hl_gguf *g) {
    struct hl_stfile *f;
    struct hl_params p;
    hola_config cfg;
    char *text;
    if (hl_gguf_model(&f, &cfg, &text, g) != HOLA_OK) return;
    MUST(hl_params_new(&p, &cfg) == HOLA_OK);
    if (p.total < 1 << 20) {
        real *block = malloc((size_t)p.total * sizeof(real));
        struct hl_quant *codes = calloc((size_t)p.n, sizeof *codes);
        MUST(block && codes);
        const hola_status s = hl_params_load(&p, f, "d", block, codes);
        for (int64_t i = 0; i < p.total && s == HOLA_OK; i++) MUST(isfinite(block[i]));
        for (int64_t i = 0; i < p.n; i++) hl_quant_file_free(&codes[i]);
        free(codes), free(block);
    }
    hl_params_free(&p);
    hl_st_close(f);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct hl_gguf *g = NULL;
    const hola_status s = hl_gguf_parse(&g, (const char *)data, (int64_t)size, "f");
    if (s != HOLA_OK) {
        MUST((s == HOLA_EFORMAT || s == HOLA_ENOTSUP) && !g && strncmp(hola_last_error(), "f: ", 3) == 0);
        return 0;
    }
    read_all(g, (const char *)data, size);
    as_tokenizer(g);
    as_model(g);
    return 0;
}
