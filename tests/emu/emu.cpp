/* emu.cpp -- see emu.h: fibers, barriers, warp-wide operations. */
#include "emu.h"
#include <stdio.h>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { MAX_THREADS = 1024, STACK = 256 << 10 };

struct copy {
    void *to;
    const void *from;
    int bytes, filled, group;
};
struct fiber {
    struct emu_place at;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack;
    bool done;
    unsigned warp_turn;       /* warp-wide operations this lane has begun */
    std::vector<copy> copies; /* asynchronous copies not waited for */
    int group;
};
struct warp {
    char slot[2][32][EMU_SLOT]; /* double-buffered, so that no lane overwrites what another still reads */
    int arrived, lanes;
    unsigned turn; /* operations that all lanes have begun */
};

const struct emu_place *emu_now;
char *emu_shared;
static fiber fibers[MAX_THREADS];
static warp warps[MAX_THREADS / 32];
static int n_fibers, current, at_barrier, opened, live, order_step = 1, any_or, or_result;
static unsigned barrier_turn;
static long idle; /* switches since anything moved */
static void (*kernel)(void *);
static void *kernel_ctx;

static void die(const char *what) {
    fprintf(stderr, "emulated kernel: %s (block %u,%u,%u thread %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x);
    abort();
}

#if defined(__x86_64__)
/* Inline and without a return: the CPU would mispredict every return after a switch. (The 128 bytes below the stack
 * pointer are the red zone.) */
static inline __attribute__((always_inline)) void emu_switch(void **save, void *to) {
    asm volatile("leaq -128(%%rsp), %%rsp\n  pushq %%rbp\n  leaq 1f(%%rip), %%rax\n  pushq %%rax\n"
                 "  movq %%rsp, (%0)\n  movq %1, %%rsp\n"
                 "  popq %%rax\n  popq %%rbp\n  leaq 128(%%rsp), %%rsp\n  jmp *%%rax\n1:\n"
                 : "+D"(save), "+S"(to)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                   "xmm14", "xmm15", "cc", "memory");
}
static void *main_sp;
static void go(void **save, fiber *to) { emu_switch(save, to->sp); }
#else
static ucontext_t main_context;
#endif

static int next_fiber(void) {
    int i = current;
    do {
        i += order_step;
        if (i == n_fibers) i = 0;
        if (i < 0) i = n_fibers - 1;
    } while (fibers[i].done);
    return i;
}
static void leave(int to) { /* the running fiber yields to another */
    int from = current;
    if (to == from) return;
    current = to;
    emu_now = &fibers[to].at;
    WATCH(run(to, fibers[to].stack, STACK));
#if defined(__x86_64__)
    go(&fibers[from].sp, &fibers[to]);
#else
    swapcontext(&fibers[from].context, &fibers[to].context);
#endif
}
static void yield(void) {
    if (++idle > 4L * n_fibers + 64) die("threads wait for each other at different barriers");
    leave(next_fiber());
}

static void release_barrier(void) {
    at_barrier = 0;
    barrier_turn++;
    or_result = any_or;
    WATCH(syncthreads());
    any_or = 0;
    idle = 0;
}
void __syncthreads(void) {
    unsigned turn = barrier_turn;
    if (++at_barrier == live) release_barrier();
    else
        while (barrier_turn == turn) yield();
}
int emu_block_or(int v) {
    any_or |= v != 0;
    __syncthreads();
    return or_result;
}

unsigned emu_lane(void) { return (unsigned)current & 31; }
const char *emu_share(const void *mine, size_t bytes, void (*whole)(char (*)[EMU_SLOT])) {
    fiber *f = &fibers[current];
    warp *w = &warps[current / 32];
    char(*slot)[EMU_SLOT] = w->slot[f->warp_turn & 1];
    if (bytes > EMU_SLOT) die("a warp operation of too many bytes");
    if (bytes == 4) memcpy(slot[current & 31], mine, 4); /* the usual size, without a call */
    else memcpy(slot[current & 31], mine, bytes);
    f->warp_turn++;
    if (++w->arrived == w->lanes) {
        if (whole) whole(slot);
        WATCH(collective(current / 32 * 32, n_fibers - current / 32 * 32 < 32 ? n_fibers % 32 : 32));
        w->arrived = 0;
        w->turn++;
        idle = 0;
    } else
        while ((int)(w->turn - f->warp_turn) < 0) yield();
    return slot[0];
}
void emu_sync_warp(void) {
    char nothing = 0;
    emu_share(&nothing, 1);
}

static void forget_copies(void); /* of the copy engine */

static void body(void) {
    kernel(kernel_ctx);
    fiber *f = &fibers[current];
    f->done = true;
    f->copies.clear(); /* copies never waited for never happen */
    warps[current / 32].lanes--;
    live--;
    idle = 0;
    if (live > 0 && at_barrier == live) release_barrier();
    if (live == 0) {
#if defined(__x86_64__)
        void *none;
        emu_switch(&none, main_sp);
#else
        setcontext(&main_context);
#endif
    }
    leave(next_fiber());
    die("a finished thread was resumed");
}

static void start(fiber *f) {
    if (!f->stack) {
        f->stack = (char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (f->stack == (char *)MAP_FAILED) die("no memory for stacks");
    }
    f->done = false;
    f->warp_turn = 0;
    f->group = 0;
#if defined(__x86_64__)
    /* staggered within a page, or they would share a few cache sets */
    void **sp = (void **)(f->stack + STACK - (f - fibers) % 64 * 320);
    *--sp = NULL; /* keeps the stack aligned as after a call */
    sp -= 128 / sizeof *sp;
    *--sp = NULL; /* rbp */
    *--sp = (void *)body;
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, body, 0);
#endif
}

void emu_run(dim3 grid, dim3 block, size_t shared, void (*k)(void *), void *ctx) {
    static size_t room;
    const char *order = getenv("EMU_ORDER");
    n_fibers = (int)(block.x * block.y * block.z);
    order_step = order && !strcmp(order, "reverse") ? -1 : 1;
    kernel = k;
    kernel_ctx = ctx;
    if (n_fibers < 1 || n_fibers > MAX_THREADS) die("a block of too many threads");
    if (shared > (227u << 10)) die("a block of too much shared memory");
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) die("an impossible grid");
    if (shared > room) {
        free(emu_shared);
        emu_shared = (char *)aligned_alloc(128, room = (shared + 127) / 128 * 128);
    }
    WATCH(kernel());
    for (unsigned b = 0; b < grid.x * grid.y * grid.z; b++) {
        memset(emu_shared, 0xff, shared); /* NaN in every format */
        WATCH(block(n_fibers, emu_shared, shared));
        live = n_fibers;
        at_barrier = 0;
        opened = 0;
        idle = 0;
        forget_copies();
        for (int w = 0; w * 32 < n_fibers; w++) {
            warps[w].arrived = 0;
            warps[w].turn = 0;
            warps[w].lanes = n_fibers - w * 32 < 32 ? n_fibers - w * 32 : 32;
        }
        for (int i = 0; i < n_fibers; i++) {
            unsigned t = (unsigned)i;
            fibers[i].at.tid = dim3(t % block.x, t / block.x % block.y, t / block.x / block.y);
            fibers[i].at.bid = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
            fibers[i].at.bdim = block;
            fibers[i].at.gdim = grid;
            start(&fibers[i]);
        }
        current = order_step > 0 ? 0 : n_fibers - 1;
        emu_now = &fibers[current].at;
        WATCH(run(current, fibers[current].stack, STACK));
#if defined(__x86_64__)
        go(&main_sp, &fibers[current]);
#else
        swapcontext(&main_context, &fibers[current].context);
#endif
        WATCH(run(-1, NULL, 0));
        if (opened && opened != n_fibers) die("named_barrier_init by a part of the block");
    }
    WATCH(kernel_end());
}

/* ---- tensor cores: fragments as PTX lays them out ---- */

static float bf(uint32_t pair, int high) { return __uint_as_float(high ? pair & 0xffff0000u : pair << 16); }
static float tf(uint32_t x) { return __uint_as_float(x & 0xffffe000u); }

struct operands { /* of one lane */
    uint32_t a[4], b[2];
    float d[4];
};
/* D += A B of a whole warp, each D[r][n] in the order of k; D[r][n] is in lane (r%8)*4 + n/2, element
 * 2(r/8) + n%2. */
template <int K> static void product(char (*slot)[EMU_SLOT], const float A[16][K], const float B[K][8]) {
    for (int r = 0; r < 16; r++) {
        float D[8];
        for (int n = 0; n < 8; n += 2)
            memcpy(&D[n], ((operands *)slot[r % 8 * 4 + n / 2])->d + r / 8 * 2, sizeof(float[2]));
        for (int k = 0; k < K; k++)
            for (int n = 0; n < 8; n++) D[n] += A[r][k] * B[k][n];
        for (int n = 0; n < 8; n += 2)
            memcpy(((operands *)slot[r % 8 * 4 + n / 2])->d + r / 8 * 2, &D[n], sizeof(float[2]));
    }
}
/* m16n8k16: A[r][c] is in lane (r%8)*4 + (c%8)/2, register r/8 + 2(c/8), half c%2; B[k][n] in lane
 * n*4 + (k%8)/2, register k/8 */
static void product_bf16(char (*slot)[EMU_SLOT]) {
    float A[16][16], B[16][8];
    for (int k = 0; k < 16; k++) {
        for (int r = 0; r < 16; r++)
            A[r][k] = bf(((operands *)slot[r % 8 * 4 + k % 8 / 2])->a[r / 8 + 2 * (k / 8)], k & 1);
        for (int n = 0; n < 8; n++) B[k][n] = bf(((operands *)slot[n * 4 + k % 8 / 2])->b[k / 8], k & 1);
    }
    product<16>(slot, A, B);
}
/* m16n8k8: A[r][c] in lane (r%8)*4 + c%4, register r/8 + 2(c/4); B[k][n] in lane n*4 + k%4, register k/4 */
static void product_tf32(char (*slot)[EMU_SLOT]) {
    float A[16][8], B[8][8];
    for (int k = 0; k < 8; k++) {
        for (int r = 0; r < 16; r++) A[r][k] = tf(((operands *)slot[r % 8 * 4 + k % 4])->a[r / 8 + 2 * (k / 4)]);
        for (int n = 0; n < 8; n++) B[k][n] = tf(((operands *)slot[n * 4 + k % 4])->b[k / 4]);
    }
    product<8>(slot, A, B);
}
static void mma(float d[4], const uint32_t a[4], const uint32_t b[2], void (*whole)(char (*)[EMU_SLOT])) {
    const operands mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    const char *all = emu_share(&mine, sizeof mine, whole);
    memcpy(d, ((const operands *)(all + emu_lane() * EMU_SLOT))->d, sizeof mine.d);
}
void emu_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma(d, a, b, product_bf16); }
void emu_mma_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma(d, a, b, product_tf32); }
void emu_ldmatrix(uint32_t *r, int n, const void *row, bool trans) {
    if ((uintptr_t)row % 16) die("ldmatrix: a row that is not on 16 bytes");
    const char *all = emu_share(&row, sizeof row);
    int lane = current & 31;
    if (lane < n * 8) WATCH(ldmatrix(row));
    for (int i = 0; i < n; i++) {
        uint16_t half[2];
        for (int j = 0; j < 2; j++) {
            int at = trans ? lane % 4 * 2 + j : lane / 4, col = trans ? lane / 4 : lane % 4 * 2 + j;
            const uint16_t *p;
            memcpy(&p, all + (i * 8 + at) * EMU_SLOT, sizeof p);
            half[j] = p[col];
        }
        r[i] = half[0] | (uint32_t)half[1] << 16;
    }
}

/* ---- asynchronous copies ---- */

void emu_copy_async(void *shared, const void *global, int bytes, int filled) {
    fiber *f = &fibers[current];
    if ((uintptr_t)shared % (uintptr_t)bytes || (filled && (uintptr_t)global % (uintptr_t)bytes))
        die("an asynchronous copy that is not aligned");
    f->copies.push_back({shared, global, bytes, filled, f->group});
    WATCH(access(global, (size_t)filled, 0, 0));
    WATCH(copy(shared, (size_t)bytes, 0));
}
void emu_copy_commit(void) { fibers[current].group++; }
void emu_copy_wait(int groups) {
    fiber *f = &fibers[current];
    size_t n = 0;
    while (n < f->copies.size() && f->copies[n].group < f->group - groups) {
        const copy *c = &f->copies[n++];
        memset(c->to, 0, (size_t)c->bytes);
        if (c->filled > 0) memcpy(c->to, c->from, (size_t)c->filled);
        WATCH(copy(c->to, (size_t)c->bytes, 1));
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + (long)n);
}

/* ---- the copy engine: it copies only when a thread waits for its barrier ---- */

struct shared_barrier {                                        /* in the barrier's 8 bytes */
    uint32_t phase : 1, open : 2, arrivals : 14, missing : 14; /* open: 1; never opened memory has 3 there */
    int32_t bytes;                                             /* expected but not yet copied */
};
struct bulk {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t *barrier;
    int64_t pitch; /* of a tensor copy; 0: none */
    int filled;
};
static std::vector<bulk> bulks;
static void forget_copies(void) { bulks.clear(); }

static shared_barrier *mbarrier_t(uint64_t *b) {
    shared_barrier *s = (shared_barrier *)b;
    if (s->open != 1) die("a barrier that was never opened");
    return s;
}
static void end_phase(shared_barrier *s) {
    if (s->missing || s->bytes) return;
    s->phase ^= 1;
    WATCH(mbarrier_phase(s));
    s->missing = s->arrivals;
}
void emu_mbarrier_init(uint64_t *b, int arrivals) {
    WATCH(mbarrier_init(b));
    *(shared_barrier *)b = {0, 1, (uint32_t)arrivals, (uint32_t)arrivals, 0};
}
void emu_mbarrier_arrive(uint64_t *b, int bytes) {
    shared_barrier *s = mbarrier_t(b);
    if (!s->missing) die("an arrival too many");
    WATCH(mbarrier_arrive(b));
    s->missing--;
    s->bytes += bytes;
    idle = 0;
    end_phase(s);
}
static void do_copy(const bulk &c) {
    if (!c.pitch) memcpy(c.to, c.from, c.bytes);
    for (int r = 0; c.pitch && r < (int)(c.bytes / 128); r++)
        for (int unit = 0; unit < 8; unit++) {
            char *to = (char *)c.to + r * 128 + (unit ^ r % 8) * 16;
            if (r < c.filled) memcpy(to, (const char *)c.from + r * c.pitch + unit * 16, 16);
            else memset(to, 0, 16);
        }
}
void emu_mbarrier_wait(uint64_t *b, uint32_t parity) {
    shared_barrier *s = mbarrier_t(b);
    while (s->phase == parity) {
        size_t left = 0;
        for (size_t i = 0; i < bulks.size(); i++) {
            if (bulks[i].barrier != b) {
                bulks[left++] = bulks[i];
                continue;
            }
            do_copy(bulks[i]);
            s->bytes -= (int32_t)bulks[i].bytes;
            idle = 0;
        }
        if (left < bulks.size()) {
            bulks.resize(left);
            end_phase(s);
        } else yield();
    }
    WATCH(mbarrier_waited(b));
}
void emu_bulk_copy(void *shared, const void *global, int bytes, uint64_t *b) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes % 16 || bytes < 16)
        die("a bulk copy that is not aligned");
    bulks.push_back({shared, global, (size_t)bytes, b, 0, 0});
    WATCH(access(global, (size_t)bytes, 0, 1));
    WATCH(bulk(shared, (size_t)bytes, b));
}
void emu_tensor_copy(void *shared, const void *global, int64_t pitch, int rows, int filled, uint64_t *b) {
    if ((uintptr_t)shared % 1024 || pitch % 16 || rows % 8 || rows > 256) die("a tensor copy that is not aligned");
    bulks.push_back({shared, global, (size_t)rows * 128, b, pitch, filled});
    for (int r = 0; r < filled; r++) WATCH(access((const char *)global + r * pitch, 128, 0, 1));
    WATCH(bulk(shared, (size_t)rows * 128, b));
}

/* ---- barriers of some warps ---- */

static struct {
    int come;
    unsigned turn;
} some[16];
void emu_named_barrier_init(void) { opened++; }
void emu_named_barrier(int id, int threads, bool wait) {
    if (!opened) die("a barrier of some warps in a kernel that did not begin with named_barrier_init");
    unsigned turn = some[id].turn;
    WATCH(named_arrive(id, some[id].come + 1 == threads));
    if (++some[id].come == threads) {
        some[id].come = 0;
        some[id].turn++;
        idle = 0;
    }
    while (wait && some[id].turn == turn) yield();
    if (wait) WATCH(named_waited(id));
}
