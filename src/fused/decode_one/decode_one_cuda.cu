/* decode_one_cuda.cu -- one token through the kernel (decode_one_kernel.cuh): arguments, the instances for the delta
 * rule, results on the host. */
#include "fused/decode_one/decode_one_kernel.cuh"

#ifndef HL_CUDA_F32

#ifdef HL_CUDA_EMU
static bool fits_device(struct hl_cuda *, int bytes) { return bytes <= 227 << 10; }
#else
/* Devices before Hopper have less shared memory and no bulk copies. */
static bool fits_device(struct hl_cuda *c, int bytes) {
    int device = 0, smem = 0, cooperative = 0;
    if (!c->bulk_room) {
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
        c->bulk_room =
            cooperative && hl_cuda_compiled_for_sm90(
                               c, (const void *)decode_token<struct decode_args<struct runtime_rows<HL_DECODE_DELTA>>>)
                ? smem
                : -1;
    }
    return bytes <= c->bulk_room;
}
#endif

static struct arguments arguments_of(struct hl_cuda *c, const struct hl_decode *p) {
    struct arguments a = {};
    a.L = (int)p->L, a.vocab = (int)p->vocab;
    a.policy = p->policy, a.beta_scale = p->neg_eigval ? 2.0f : 1.0f, a.eps = p->eps;
    a.lower_bound = p->lower_bound, a.inv_normalizer = 1.0f / p->normalizer, a.clamp_min = p->clamp_min;
    a.S = p->S, a.Vt = p->Vt, a.tail_q = p->tail[0], a.tail_k = p->tail[1], a.tail_v = p->tail[2];
    a.cache_at = p->cache_at, a.layer_bytes = p->layer_bytes;
    if (p->cache) {
        a.window = (int)p->window, a.chunk = (int)p->chunk, a.slots = a.window + a.chunk;
        a.at = hl_cache_layout(p->K, p->V, p->window, p->chunk, sizeof(bf16), false);
        a.task_slots = min(2 * (int)WARPS, (int)blocks_for((int64_t)a.slots * p->HV, hl_cuda_sms(c)));
        a.slot_tasks = (int)blocks_for(a.slots, a.task_slots);
        a.even_slots = (a.slots + 1) / 2 * 2;
    }
    if (p->slots) a.slot_tasks = HL_DECODE_SLOTS / COLS;
    if (p->splits) a.slot_tasks = (int)p->splits;
    a.k_off = p->k_off, a.v_off = p->v_off, a.page_layer = p->page_layer;
    const struct hl_decode_words w = hl_decode_words(p);
    a.w_in = (int)w.in, a.w_z = (int)w.z, a.w_ab = (int)w.ab, a.w_logits = (int)w.logits, a.w_o = (int)w.o,
    a.w_h = (int)w.h;
    a.w_x = (int)w.x, a.w_act = (int)w.act, a.row_words = (int)w.row, a.scores = w.scores, a.s = hl_decode_shared(p);
    for (int64_t m = 0; m < p->rows->T; m++) a.seg[m] = p->rows->seg[m], a.ids[m] = p->host_ids[m];
    a.layer = p->layer;
    a.embed = (const bf16 *)p->embed, a.head = (const bf16 *)p->head, a.final_norm = p->final_norm;
    a.pages = (char *const *)((uint64_t *)p->workspace + w.pages);
    a.words = (uint64_t *)p->workspace, a.argmax = a.words + ARGMAX_WORD;
    return a;
}

static void launch_any(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    if (p->rule == HL_DECODE_KDA) hl_decode_one_kda(c, p, y);
    else if (p->rule == HL_DECODE_GLA) hl_decode_one_gla(c, p, y);
    else if (p->rule == HL_DECODE_GSA) hl_decode_one_gsa(c, p, y);
    else if (p->rule == HL_DECODE_ATTENTION) hl_decode_one_attention(c, p, y);
    else {
        if (launch_preset<struct preset<512, 768, 128, true, true, false>>(c, p, y)) return;
        if (launch_preset<struct preset<1024, 2816, 256, false, true, true>>(c, p, y)) return;
        if (launch_preset<struct preset<512, 768, 128, true, false, false>>(c, p, y)) return;
        if (launch_preset<struct preset<1024, 2816, 256, false, false, true>>(c, p, y)) return;
        launch_sizes<HL_DECODE_DELTA>(c, p, y);
    }
}

struct logits_row {
    const struct hl_decode *p;
    int64_t row;
};
static void on_words(void *ctx, int64_t from, int64_t to) {
    const struct logits_row *y = (const struct logits_row *)ctx;
    if (y->p->on_logits) y->p->on_logits(y->p->ctx, y->row, from, to);
}
/* Submits the token to the prelaunched kernel, or launches one; then prelaunches a kernel for the next token, if the
 * host can tell when this one is done. (In the emulator it would never end.) */
static void submit_token(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    const bool on_host = p->rows->T == 1 && p->rule != HL_DECODE_ATTENTION && (p->host_logits || p->host_argmax);
    const uint32_t number = hl_prelaunch_number(c), flips = p->host_logits ? 1 : 0;
    struct arguments work = y, next = y; /* work: without per-token values */
    static_assert(sizeof work <= 1024, "prelaunch.c: MAX_WORK");
    work.ids[0] = 0, work.seg[0].pos -= number, work.tag ^= number & flips;
    next.seg[0].pos++, next.tag ^= flips;
    if (!on_host) hl_prelaunch_cancel(c);
    if (!on_host || !hl_prelaunch_submit(c, &work, sizeof work, (uint32_t)y.ids[0])) launch_any(c, p, y);
#ifndef HL_CUDA_EMU
    if (on_host && hl_prelaunch_arm(c, &next.request)) launch_any(c, p, next);
#endif
}
/* ATTENTION: the addresses of the sessions' pages, copied when a page is added or a session changes. */
static void bring_pages(struct hl_cuda *c, const struct hl_decode *p, const struct arguments &y) {
    for (int64_t m = 0; p->rule == HL_DECODE_ATTENTION && m < p->rows->T; m++) {
        const int64_t n = p->rows->seg[m].pos / HL_PAGE_TOKENS + 1;
        uint64_t hash = (uint64_t)n;
        for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)(uintptr_t)p->rows->pages[m][i]) * 0x100000001b3ull;
        if (hash == p->page_hash[m]) continue;
        hl_cuda_memcpy(c, (void *)(y.pages + m * HL_DECODE_PAGES), p->rows->pages[m], n * 8, HL_TO_DEVICE);
        p->page_hash[m] = hash;
    }
}
/* Reads the kernel's writes to host memory while the rest of it still runs. */
extern "C" void HL_OP(decode_one)(struct hl_backend *backend, const struct hl_decode *p) {
    struct hl_cuda *c = hl_cuda_of(backend);
    const int64_t M = p->rows->T;
    struct arguments y = arguments_of(c, p);
    *p->refused = !fits_device(c, y.s.bytes);
    if (*p->refused) return;
    y.logits = p->host_logits ? (float *)hl_mapped_words(c, M * p->vocab, &y.tag) : p->logits;
    if (p->host_argmax) y.host_argmax = hl_mapped_values(c, (int)M);
    *p->refused = (p->host_logits && !y.logits) || (p->host_argmax && !y.host_argmax);
    if (*p->refused) return;
    bring_pages(c, p, y);
    submit_token(c, p, y);
    for (struct logits_row k = {p, 0}; p->host_logits && k.row < M; k.row++)
        if (!hl_mapped_words_wait(c, p->host_logits + k.row * p->vocab, k.row * p->vocab, p->vocab, on_words, &k))
            break;
    static_assert(sizeof *p->host_argmax == sizeof *y.host_argmax, "a logit and its id");
    uint64_t argmax[ROWS];
    if (p->host_argmax && hl_mapped_values_wait(c, argmax, (int)M))
        memcpy(p->host_argmax, argmax, (size_t)M * sizeof *argmax);
    hl_prelaunch_done(c);
}

#endif
