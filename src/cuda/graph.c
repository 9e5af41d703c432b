/* graph.c -- work captured as a CUDA graph and replayed: decoding runs hundreds of kernels of a few microseconds,
 * faster than the host can launch them one by one. */
#include "cuda/device.h"
#include <cuda_runtime_api.h>
#include <string.h>

static void drop(struct hl_graph *g) {
    if (g->exec) cudaGraphExecDestroy(g->exec);
    memset(g, 0, sizeof *g);
}
void hl_graph_close(struct hl_cuda *c) {
    for (int i = 0; i < HL_GRAPHS; i++) drop(&c->graph[i]);
}

/* The slot of a key: its own, else one that is free or stale, else one whose work is forgotten. */
static struct hl_graph *slot_of(struct hl_cuda *c, uint64_t key) {
    enum { PROBES = 16 };
    const uint64_t at = (key * 0x9e3779b97f4a7c15u) >> 32;
    struct hl_graph *free_slot = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        struct hl_graph *g = &c->graph[(at + i) % HL_GRAPHS];
        if (g->key == key) return g;
        if (!free_slot && (g->key == 0 || g->generation != c->generation)) free_slot = g;
    }
    return free_slot ? free_slot : &c->graph[at % HL_GRAPHS];
}

/* The first time, the work of a key only runs, so that it allocates its memory; the second time it is captured, and
 * afterwards replayed. */
bool hl_cuda_replay(struct hl_cuda *c, uint64_t key) {
    struct hl_graph *g = slot_of(c, key);
    if (g->key != key || g->generation != c->generation) {
        drop(g);
        g->key = key;
        g->generation = c->generation;
        return false;
    }
    if (g->exec) {
        cudaError_t e = cudaGraphLaunch(g->exec, hl_stream(c));
        if (e != cudaSuccess) hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: graph: %s", cudaGetErrorString(e));
        return true;
    }
    if (cudaStreamBeginCapture(hl_stream(c), cudaStreamCaptureModeThreadLocal) == cudaSuccess) c->recording = g;
    return false;
}

/* If there is no memory for it, those of other keys make room. */
static cudaError_t instantiate(struct hl_cuda *c, struct hl_graph *g, cudaGraph_t graph) {
    const struct hl_graph own = *g;
    cudaError_t e = cudaGraphInstantiate((cudaGraphExec_t *)&g->exec, graph, 0);
    if (e != cudaErrorMemoryAllocation) return e;
    cudaGetLastError(); /* clears the error */
    *g = own;
    hl_graph_close(c);
    *g = own;
    return cudaGraphInstantiate((cudaGraphExec_t *)&g->exec, graph, 0);
}

void hl_cuda_recorded(struct hl_cuda *c, uint64_t key) {
    struct hl_graph *g = c->recording;
    cudaGraph_t graph = NULL;
    c->recording = NULL;
    if (!g || g->key != key) {
        slot_of(c, key)->generation = c->generation; /* the first run may have allocated memory */
        return;
    }
    cudaError_t e = cudaStreamEndCapture(hl_stream(c), &graph);
    if (e == cudaSuccess) e = instantiate(c, g, graph);
    if (e == cudaSuccess) e = cudaGraphLaunch(g->exec, hl_stream(c));
    if (e != cudaSuccess) hl_cuda_fail(c, HOLA_EDEVICE, "CUDA: graph: %s", cudaGetErrorString(e));
    if (graph) cudaGraphDestroy(graph);
}
