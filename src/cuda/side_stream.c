/* side_stream.c -- the second stream of a real device (cuda.h), for work that fills multiprocessors which the main
 * stream leaves idle: its priority is the lowest, the main stream's the highest. Going aside exchanges stream and
 * scratch memory in struct hl_cuda, so ops and products need not know where their work goes.
 *
 * Products of cuBLAS leave no room for another block on their multiprocessors, so those of the side stream are asked to
 * take half of them. HOLA_STREAMS=1: one stream; HOLA_SIDE_SMS and HOLA_MAIN_SMS: other numbers of multiprocessors, for
 * products of the side stream, and of the main stream beside it (0: all). To measure: HOLA_SIDE_CHOICE=1 also chooses
 * the kernels for this number (other bits), HOLA_SIDE_EQUAL=1 gives both streams the same priority. */
#include "cuda/device.h"
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

struct hl_side_stream {
    void *stream; /* that work does not go to: the main one while aside */
    void *scratch, *workspace;
    int64_t scratch_bytes;
    cudaEvent_t fork, mark[HL_MARKS];
    bool off, busy, chooses; /* busy: it may have work that was not waited for */
    int sms[2];              /* of the main stream, of this one */
};

static bool check(struct hl_cuda *c, cudaError_t e) {
    if (e == cudaSuccess) return true;
    hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: side stream: %s", cudaGetErrorString(e));
    return false;
}
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

bool hl_side_open(struct hl_cuda *c) {
    struct hl_side_stream *s = c->side;
    int last = 0, first = 0;
    if (s || c->borrowed) return s && !s->off;
    c->side = s = calloc(1, sizeof *s);
    if (!s) return false;
    s->off = number("HOLA_STREAMS", 2) == 1;
    if (s->off) return false;
    s->sms[0] = number("HOLA_MAIN_SMS", 0), s->sms[1] = number("HOLA_SIDE_SMS", c->sms / 2);
    s->chooses = number("HOLA_SIDE_CHOICE", 0) == 1;
    const bool equal = number("HOLA_SIDE_EQUAL", 0) == 1;
    bool good = check(c, cudaDeviceGetStreamPriorityRange(&last, &first)) &&
                check(c, cudaStreamCreateWithPriority((cudaStream_t *)&s->stream, cudaStreamNonBlocking,
                                                      equal ? first : last)) &&
                check(c, cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming));
    for (int i = 0; good && i < HL_MARKS; i++)
        good = check(c, cudaEventCreateWithFlags(&s->mark[i], cudaEventDisableTiming));
    s->off = !good;
    return good;
}

void hl_side_close(struct hl_cuda *c) {
    struct hl_side_stream *s = c->side;
    if (!s) return;
    if (s->stream) cudaStreamSynchronize(s->stream);
    cudaFree(s->scratch);
    cudaFree(s->workspace);
    for (int i = 0; i < HL_MARKS; i++)
        if (s->mark[i]) cudaEventDestroy(s->mark[i]);
    if (s->fork) cudaEventDestroy(s->fork);
    if (s->stream) cudaStreamDestroy(s->stream);
    free(s);
    c->side = NULL;
}

static void exchange(struct hl_cuda *c) {
    struct hl_side_stream *s = c->side;
    void *stream = c->stream, *scratch = c->scratch;
    const int64_t bytes = c->scratch_bytes;
    c->stream = s->stream, c->scratch = s->scratch, c->scratch_bytes = s->scratch_bytes;
    s->stream = stream, s->scratch = scratch, s->scratch_bytes = bytes;
    c->aside = !c->aside;
}
/* `to` waits for all work of `from` so far. */
static void follow(struct hl_cuda *c, void *from, void *to) {
    if (check(c, cudaEventRecord(c->side->fork, from))) check(c, cudaStreamWaitEvent(to, c->side->fork, 0));
}

void hl_cuda_aside(struct hl_cuda *c) {
    HL_ASSERT(!c->aside);
    if (!hl_side_open(c)) return;
    follow(c, hl_stream(c), c->side->stream);
    exchange(c);
    c->side->busy = true;
}
void hl_cuda_back(struct hl_cuda *c) {
    if (c->aside) exchange(c);
}
static void *side_of(const struct hl_cuda *c) { return c->aside ? c->stream : c->side->stream; }

void hl_cuda_mark(struct hl_cuda *c, int i) {
    if (c->side && c->side->busy) check(c, cudaEventRecord(c->side->mark[i], side_of(c)));
}
/* (An event that was never recorded, or whose work is done, lets everything pass.) */
void hl_cuda_wait_mark(struct hl_cuda *c, int i) {
    if (c->side && c->side->busy) check(c, cudaStreamWaitEvent(hl_stream(c), c->side->mark[i], 0));
}
void hl_cuda_join(struct hl_cuda *c) {
    HL_ASSERT(!c->aside);
    if (!c->side || !c->side->busy) return;
    follow(c, c->side->stream, hl_stream(c));
    c->side->busy = false;
}
void hl_side_followed_by(struct hl_cuda *c, void *stream) {
    if (c->side && c->side->busy) follow(c, side_of(c), stream);
}

void *hl_side_workspace(struct hl_cuda *c, void *main, int64_t bytes) {
    if (!c->aside) return main;
    if (!c->side->workspace) c->side->workspace = hl_cuda_malloc(c, bytes);
    return c->side->workspace;
}
int hl_side_sms(const struct hl_cuda *c) { return c->side && c->side->busy ? c->side->sms[c->aside] : 0; }
int hl_side_choice(const struct hl_cuda *c) { return c->side && c->side->chooses ? hl_side_sms(c) : 0; }
