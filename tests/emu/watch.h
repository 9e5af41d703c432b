/* watch.h -- the emulator's calls to the race detector (watch.cpp); compiled out without EMU_WATCH. */
#ifndef HL_EMU_WATCH_H
#define HL_EMU_WATCH_H
#include <stddef.h>
#include <stdint.h>
#ifdef EMU_WATCH
#define WATCH(call) watch_##call
#else
#define WATCH(call) ((void)0)
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* The stream: a kernel starts, launched normally or with PDL; a copy or a product runs. */
void watch_kernel(void);
void watch_operation(void);
void watch_host_touch(const void *p, size_t bytes, int write);
void watch_kernel_end(void);
/* A block of n threads with `shared` bytes at `at` starts; thread t with its stack is now running (-1: none). */
void watch_block(int n, const char *at, size_t shared);
void watch_run(int t, const char *stack, size_t stack_bytes);
/* Barriers: all threads; the lanes from `first` on; arrivals and phase ends of named barriers and mbarriers. */
void watch_syncthreads(void);
void watch_collective(int first, int lanes);
void watch_named_arrive(int id, int completes);
void watch_named_waited(int id);
void watch_mbarrier_init(const void *b);
void watch_mbarrier_arrive(const void *b);
void watch_mbarrier_phase(const void *b);
void watch_mbarrier_waited(const void *b);
/* Accesses by the running thread. async: by the asynchronous proxy (wgmma, bulk copies). */
void watch_access(const void *p, size_t bytes, int write, int async);
/* Copies in flight: cp.async of this thread, and bulk copies that complete on a barrier. */
void watch_copy(const void *to, size_t bytes, int done);
void watch_bulk(const void *to, size_t bytes, const void *barrier);
/* Reads in flight: operands of wgmma (0), sources of bulk stores (1). They end when their groups are waited for. */
void watch_reads(int kind, const void *p, size_t bytes);
void watch_commit(int kind);
void watch_wait(int kind, int left);
void watch_fence_proxy(void);
void watch_wgmma(int begins); /* from here on, this thread's ldmatrix reads count as wgmma reads, or no longer */
void watch_ldmatrix(const void *row);
void watch_atomic(const void *p); /* NULL: a fence */
void watch_pdl_launch(void);
void watch_pdl_wait(void);
void watch_pdl_trigger(void);
#ifdef __cplusplus
}
#endif
#endif
