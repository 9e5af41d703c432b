/* watch.cpp -- a race detector for emulated kernels: make EMU_WATCH=1. Kernels are compiled with -fsanitize=thread,
 * whose access hooks are implemented here instead of in a library.
 *
 * Each thread has a vector clock (v: what it knows of every other thread's past), which barriers join. Every two bytes
 * record the last write and two reads. Conflicting accesses that no chain of barriers orders are reported once per pair
 * of code locations, and the program then fails at the end:
 *   in shared memory and in global memory, between threads of a block;
 *   in global memory between blocks of a kernel, unless the kernel has fences or atomics, which then order its blocks;
 *   between a kernel launched with PDL, before its pdl_wait, and earlier kernels that may still run (pdl.cuh).
 * Asynchronous copies write from their start until they are waited for; operands of wgmma and sources of bulk stores
 * are read until then. The asynchronous proxy sees only writes before a fence_proxy_async (f: what is known and
 * fenced). Engines count as one more thread per mbarrier: what bulk copies write is known to threads that waited
 * there. */
#include "watch.h"
#ifdef EMU_WATCH
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

enum { MOST = 1024, ENGINES = 64, PDL = MOST + ENGINES, WIDTH = PDL + 1, GRAIN = 2, PAGE = 4096 };
static const uint32_t CLOCKS = (1u << 21) - 1; /* plus the clock of what is still in flight */
extern char __data_start[], _end[];            /* of the program: __shared__ is the kernels' only static memory */
extern char __executable_start;

struct hit {
    uint32_t run, who, pc; /* block number, 0: none; thread << 21 | clock */
};
struct cell {
    hit w, r[2];
};
struct clocks {
    uint32_t v[WIDTH], f[WIDTH];
};
struct rendezvous {
    clocks now, done; /* of arrivals; at the end of the previous phase */
    int engine;
    uint32_t copies; /* completed phases */
};
struct reading {
    const void *p;
    size_t bytes;
    int group;
};

static clocks of[MOST];
static bool dirty[MOST / 32]; /* a lane knows something that the others do not */
static std::vector<reading> readings[2][MOST];
static int groups[2][MOST];
static bool by_wgmma[MOST];
static std::map<const void *, rendezvous> barriers;
static rendezvous named[16];
static std::unordered_map<uintptr_t, cell *> pages;
static int threads, me = -1;
static const char *shared_at, *stack_at;
static size_t shared_bytes, stack_bytes;
static uint32_t run, kernel_run, unsettled = 1, unsettled_now = 1;
static bool pdl, next_pdl, ordered, waited_any, settles, block_triggered, block_waited, protocol;
static std::set<uint64_t> reported;

static void finish(void) {
    if (reported.empty()) return;
    fprintf(stderr, "emulated kernels: %zu races\n", reported.size());
    fflush(NULL);
    _exit(1);
}
static void report(const char *what, const hit &before, uint32_t pc, const void *p) {
    if (!reported.insert((uint64_t)before.pc << 32 | pc).second) return;
    if (reported.size() == 1) atexit(finish);
    fprintf(stderr, "RACE %s: 0x%x after 0x%x, threads %d and %d, at %p%s\n", what, pc, before.pc, me,
            (int)(before.who >> 21), p, p >= shared_at && p < shared_at + shared_bytes ? " (shared)" : "");
}

static void join(uint32_t *to, const uint32_t *from) {
    for (int i = 0; i < WIDTH; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}
static void join(clocks *to, const clocks &from) { join(to->v, from.v), join(to->f, from.f); }
static void know(const clocks &what) {
    join(&of[me], what);
    dirty[me / 32] = true;
}
static void tick(int t) {
    if (++of[t].v[t] >= CLOCKS) fprintf(stderr, "watch: a clock ran over\n"), abort();
}

/* ---- cells ---- */

static cell *cell_of(uintptr_t a) {
    static struct {
        uintptr_t page;
        cell *cells;
    } last[256];
    const uintptr_t page = a / PAGE;
    auto &l = last[page % 256];
    if (l.page != page || !l.cells) {
        cell *&c = pages[page];
        if (!c) c = (cell *)calloc(PAGE / GRAIN, sizeof *c);
        l.page = page, l.cells = c;
    }
    return &l.cells[a % PAGE / GRAIN];
}
static bool in_shared(const void *p) {
    const char *c = (const char *)p;
    return (c >= shared_at && c < shared_at + shared_bytes) || (c >= __data_start && c < _end);
}
static bool known(const hit &e) { /* to the running thread, which comes later */
    const uint32_t clock = e.who & CLOCKS;
    return clock != CLOCKS && of[me].v[e.who >> 21] >= clock;
}
static bool fenced(const hit &e) { return of[me].f[e.who >> 21] >= (e.who & CLOCKS); }
static void check(const hit &e, bool shared, bool write, bool async, uint32_t pc, const void *p) {
    if (!e.run) return;
    if (e.run == run) {
        if (!known(e)) report(write ? "(write)" : "(read)", e, pc, p);
        else if (async && !write && (e.who >> 21) < MOST && !fenced(e)) report("without fence_proxy_async", e, pc, p);
    } else if (shared) return;
    else if (e.run >= kernel_run) {
        if (!protocol) report("between blocks", e, pc, p);
    } else if (e.run >= unsettled_now && !of[me].v[PDL] && !protocol) report("before pdl_wait", e, pc, p);
}
static void put_read(cell *c, const hit &e) {
    for (int i = 0; i < 2; i++)
        if (c->r[i].run != run || known(c->r[i])) {
            c->r[i] = e;
            return;
        }
    c->r[1] = c->r[0], c->r[0] = e;
}
static void touch(const void *p, size_t bytes, bool write, bool async, uint32_t pc, uint32_t who) {
    const bool shared = in_shared(p);
    const struct hit e = {run, who, pc};
    for (uintptr_t a = (uintptr_t)p / GRAIN * GRAIN; a < (uintptr_t)p + bytes; a += GRAIN) {
        cell *c = cell_of(a);
        check(c->w, shared, write, async, pc, (void *)a);
        for (int i = 0; write && i < 2; i++) check(c->r[i], shared, true, false, pc, (void *)a);
        if (write) c->w = e, c->r[0].run = c->r[1].run = 0;
        else put_read(c, e);
    }
}
static uint32_t self(void) { return (uint32_t)me << 21 | of[me].v[me]; }
static uint32_t place(const void *pc) { return (uint32_t)((const char *)pc - &__executable_start); }
#define HERE place(__builtin_return_address(0))
static inline void instrumented(const void *p, size_t bytes, bool write, const void *pc) {
    if (me < 0 || ((const char *)p >= stack_at && (const char *)p < stack_at + stack_bytes)) return;
    touch(p, bytes, write, false, place(pc), self());
}

extern "C" {
void watch_access(const void *p, size_t bytes, int write, int async) { touch(p, bytes, write, async, HERE, self()); }

/* ---- the stream ---- */

void watch_pdl_launch(void) { next_pdl = true; }
/* Whether the kernel before the last may overlap the next one: only if no block of the last one waited for it before
 * triggering the next launch. */
static void follow(bool with_pdl) {
    const uint32_t mine = kernel_run;
    unsettled = !with_pdl ? run + 1 : pdl && !settles ? unsettled : mine;
    unsettled_now = unsettled;
    kernel_run = run + 1;
    pdl = with_pdl, settles = waited_any = protocol = false;
}
void watch_kernel(void) {
    follow(next_pdl);
    next_pdl = false;
}
void watch_kernel_end(void) {
    me = -1;
    if (pdl && !waited_any) {
        const hit none = {0, 0, kernel_run};
        report("a kernel launched with PDL that never waits", none, 0, NULL);
    }
}
void watch_operation(void) {
    follow(false);
    run++;
}
void watch_host_touch(const void *p, size_t bytes, int write) {
    const struct hit e = {run, 0, 0};
    for (uintptr_t a = (uintptr_t)p / GRAIN * GRAIN; a < (uintptr_t)p + bytes; a += GRAIN) {
        if (write) cell_of(a)->w = e;
        else cell_of(a)->r[0] = e;
    }
}
void watch_block(int n, const char *at, size_t shared) {
    run++;
    threads = n, shared_at = at, shared_bytes = shared;
    block_triggered = block_waited = false;
    for (int t = 0; t < n; t++) {
        memset(&of[t], 0, sizeof of[t]);
        of[t].v[t] = 1;
        for (int k = 0; k < 2; k++) readings[k][t].clear(), groups[k][t] = 0;
    }
    memset(dirty, 0, sizeof dirty);
    memset(named, 0, sizeof named);
    barriers.clear();
}
void watch_run(int t, const char *stack, size_t bytes) {
    if (t < 0 && block_waited && !block_triggered) settles = true; /* the block has ended */
    me = t, stack_at = stack, stack_bytes = bytes;
}
void watch_pdl_wait(void) {
    of[me].v[PDL] = 1;
    dirty[me / 32] = waited_any = block_waited = true;
}
void watch_pdl_trigger(void) {
    if (!block_triggered && block_waited) settles = true;
    block_triggered = true;
}
void watch_atomic(const void *p) { protocol |= !p || !in_shared(p); }

/* ---- barriers ---- */

void watch_syncthreads(void) {
    static clocks all;
    all = of[0];
    for (int t = 1; t < threads; t++) join(&all, of[t]);
    for (int t = 0; t < threads; t++) of[t] = all, tick(t);
    memset(dirty, 0, sizeof dirty);
}
void watch_collective(int first, int lanes) {
    uint32_t clock[32];
    for (int i = 0; i < lanes; i++) clock[i] = of[first + i].v[first + i];
    if (dirty[first / 32]) {
        for (int i = 1; i < lanes; i++) join(&of[first], of[first + i]);
        for (int i = 1; i < lanes; i++) of[first + i] = of[first];
    }
    dirty[first / 32] = false;
    for (int i = 0; i < lanes; i++) {
        memcpy(of[first + i].v + first, clock, (size_t)lanes * sizeof *clock);
        tick(first + i);
    }
}
void watch_named_arrive(int id, int completes) {
    join(&named[id].now, of[me]);
    tick(me);
    if (completes) named[id].done = named[id].now;
}
void watch_named_waited(int id) { know(named[id].done); }
void watch_mbarrier_init(const void *b) {
    touch(b, 8, true, false, HERE, self());
    rendezvous *s = &barriers[b];
    memset(s, 0, sizeof *s);
    s->engine = MOST + (int)(barriers.size() - 1) % ENGINES;
}
void watch_mbarrier_arrive(const void *b) {
    touch(b, 8, false, false, HERE, self());
    join(&barriers[b].now, of[me]);
    tick(me);
}
void watch_mbarrier_phase(const void *b) {
    rendezvous *s = &barriers[b];
    s->now.v[s->engine] = ++s->copies;
    s->done = s->now;
}
void watch_mbarrier_waited(const void *b) {
    touch(b, 8, false, false, HERE, self());
    know(barriers[b].done);
}
void watch_fence_proxy(void) {
    join(of[me].f, of[me].v);
    dirty[me / 32] = true;
    tick(me);
}

/* ---- what is in flight ---- */

void watch_copy(const void *to, size_t bytes, int done) {
    if (!done) touch(to, bytes, true, false, HERE, (uint32_t)me << 21 | CLOCKS);
    else {
        const struct hit e = {run, self(), HERE};
        for (uintptr_t a = (uintptr_t)to; a < (uintptr_t)to + bytes; a += GRAIN) cell_of(a)->w = e;
    }
}
void watch_bulk(const void *to, size_t bytes, const void *barrier) {
    const rendezvous &s = barriers[barrier];
    touch(to, bytes, true, true, HERE, (uint32_t)s.engine << 21 | (s.copies + 1));
}
void watch_reads(int kind, const void *p, size_t bytes) {
    touch(p, bytes, false, true, HERE, self());
    readings[kind][me].push_back({p, bytes, groups[kind][me]});
}
void watch_wgmma(int begins) { by_wgmma[me] = begins; }
void watch_ldmatrix(const void *row) {
    if (by_wgmma[me]) watch_reads(0, row, 16);
    else touch(row, 16, false, false, HERE, self());
}
void watch_commit(int kind) { groups[kind][me]++; }
void watch_wait(int kind, int left) {
    std::vector<reading> &all = readings[kind][me];
    size_t n = 0;
    while (n < all.size() && all[n].group < groups[kind][me] - left) {
        touch(all[n].p, all[n].bytes, false, false, HERE, self());
        n++;
    }
    all.erase(all.begin(), all.begin() + (long)n);
}

/* ---- what the compiler calls ---- */

#define ACCESS(name, bytes)                                                                                   \
    void __tsan_read##name(void *p) { instrumented(p, bytes, false, __builtin_return_address(0)); }           \
    void __tsan_write##name(void *p) { instrumented(p, bytes, true, __builtin_return_address(0)); }           \
    void __tsan_unaligned_read##name(void *p) { instrumented(p, bytes, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##name(void *p) { instrumented(p, bytes, true, __builtin_return_address(0)); }
ACCESS(1, 1)
ACCESS(2, 2)
ACCESS(4, 4)
ACCESS(8, 8)
ACCESS(16, 16)
void __tsan_read_range(void *p, size_t n) { instrumented(p, n, false, __builtin_return_address(0)); }
void __tsan_write_range(void *p, size_t n) { instrumented(p, n, true, __builtin_return_address(0)); }
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_init(void) {}
}
#endif
