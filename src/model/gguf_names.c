/* gguf_names.c -- see gguf_names.h. */
#include "model/gguf_names.h"
#include <stdio.h>
#include <string.h>

enum turned { NO, BY_HEADS, BY_KV_HEADS }; /* whether its rows are permuted, and by which number of heads */
struct name {
    const char *ours, *llama;
    enum turned turned;
};
static const struct name whole[] = {
    {"model.embeddings.weight", "token_embd.weight", NO},
    {"model.norm.weight", "output_norm.weight", NO},
    {"lm_head.weight", "output.weight", NO},
    {NULL, NULL, NO},
};
static const struct name of_layer[] = {
    {"attn_norm.weight", "attn_norm.weight", NO},
    {"attn.q_proj.weight", "attn_q.weight", BY_HEADS},
    {"attn.k_proj.weight", "attn_k.weight", BY_KV_HEADS},
    {"attn.v_proj.weight", "attn_v.weight", NO},
    {"attn.q_proj.bias", "attn_q.bias", BY_HEADS},
    {"attn.k_proj.bias", "attn_k.bias", BY_KV_HEADS},
    {"attn.v_proj.bias", "attn_v.bias", NO},
    {"attn.o_proj.weight", "attn_output.weight", NO},
    {"mlp_norm.weight", "ffn_norm.weight", NO},
    {"mlp.gate_proj.weight", "ffn_gate.weight", NO},
    {"mlp.up_proj.weight", "ffn_up.weight", NO},
    {"mlp.down_proj.weight", "ffn_down.weight", NO},
    {NULL, NULL, NO},
};

/* For the text after "blk." or "model.layers.": the number of digits of the layer; 0: none, or too many. */
static int digits_of(const char *text) {
    const int n = (int)strspn(text, "0123456789");
    return n <= 4 && text[n] == '.' ? n : 0;
}

/* Translates `from`, with layer prefix `before`, to a name with layer prefix `after`. */
static bool translate(const hola_config *c, const char *from, bool ours, char out[HL_GGUF_NAME], int64_t *heads) {
    const char *before = ours ? "model.layers." : "blk.", *after = ours ? "blk." : "model.layers.";
    const size_t n = strlen(before);
    const bool layer = strncmp(from, before, n) == 0;
    const int digits = layer ? digits_of(from + n) : 0;
    const char *rest = layer ? from + n + digits + 1 : from;
    if (layer && digits == 0) return false;
    for (const struct name *t = layer ? of_layer : whole; t->ours; t++) {
        if (strcmp(rest, ours ? t->ours : t->llama) != 0) continue;
        const char *to = ours ? t->llama : t->ours;
        if (layer) snprintf(out, HL_GGUF_NAME, "%s%.*s.%s", after, digits, from + n, to);
        else snprintf(out, HL_GGUF_NAME, "%s", to);
        *heads = t->turned == BY_HEADS ? c->num_heads : t->turned == BY_KV_HEADS ? c->num_kv_heads : 0;
        return true;
    }
    return false;
}

bool hl_llama_name(const hola_config *c, const char *ours, char llama[HL_GGUF_NAME], int64_t *heads) {
    return translate(c, ours, true, llama, heads);
}
bool hl_our_name(const hola_config *c, const char *llama, char ours[HL_GGUF_NAME], int64_t *heads) {
    return translate(c, llama, false, ours, heads);
}
