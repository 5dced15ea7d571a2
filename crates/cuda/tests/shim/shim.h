/* A GPU for tests, in one header: the words that kernels use, and a scheduler that runs their threads one at a time.
 *
 * Each thread of a block is a fiber with a stack of its own. A fiber runs until it waits at a barrier or for its warp at a
 * shuffle, or ends; then the next one runs. When all wait at the same place they go on. A warp runs until all of it waits at
 * a barrier before the next one starts. Blocks run one after another. The order of blocks, of warps and of threads in a
 * warp is chosen by a seed: first to last, last to first, or shuffled, so that a kernel that lacks a barrier, or whose
 * blocks depend on each other, gives other bits in another order.
 *
 * What a GPU leaves undefined is an error here: threads of a block at different barriers, a barrier that some threads
 * never reach, a shuffle without all lanes, and, where the caller asks to watch, a touch of pages that may not be
 * touched. Shared memory holds NaN when a block starts. With SHIM_WATCHED each access is told to accesses.cpp.
 *
 * It does not know time, memory models between barriers, or any C++ header. Tensor cores are in tensor.h.
 */
/* C's own headers: those that C++ has in their place take most of the time of a small kernel. */
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__x86_64__)
#include <setjmp.h>
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __launch_bounds__(...)
/* All shared memory lies in one section, so that it can be spoiled before each block. */
#define __shared__ static __attribute__((section("shim_shared")))

struct shim_dim { unsigned x, y, z; };
static shim_dim threadIdx, blockIdx, blockDim, gridDim;

static inline float __uint_as_float(unsigned bits) { float v; memcpy(&v, &bits, 4); return v; }
static inline unsigned __float_as_uint(float v) { unsigned bits; memcpy(&bits, &v, 4); return bits; }
static inline double __longlong_as_double(long long bits) { double v; memcpy(&v, &bits, 8); return v; }
static inline long long __double_as_longlong(double v) { long long bits; memcpy(&bits, &v, 8); return bits; }

extern "C" char __start_shim_shared[] __attribute__((weak));
extern "C" char __stop_shim_shared[] __attribute__((weak));

namespace shim {

/* What accesses.cpp is told. */
#ifdef SHIM_WATCHED
#define UNWATCHED __attribute__((no_sanitize("thread")))
void watch_launch();
void watch_block(unsigned index);
void watch_barrier();
void watch_thread(unsigned index, const char* stack, const char* end);
const char* watch_error();
void watch_warp();
void watch_end();
void watch_touch(const void* at, unsigned bytes, bool writes);
#else
#define UNWATCHED
static void watch_launch() {}
static void watch_block(unsigned) {}
static void watch_barrier() {}
static void watch_thread(unsigned, const char*, const char*) {}
static const char* watch_error() { return 0; }
static void watch_warp() {}
static void watch_end() {}
static void watch_touch(const void*, unsigned, bool) {}
#endif

enum { MOST_THREADS = 1024, STACK = 128 * 1024, WARP = 32, APART = 32 };
enum State { IDLE, READY, AT_BARRIER, AT_SHUFFLE, DONE };

/* Where a fiber, or the scheduler, was left. Kernels wait millions of times: the eight instructions below take a tenth of the time of
 * setjmp and longjmp, which stand in for them on other processors. */
#if defined(__x86_64__)
typedef void* Place;
extern "C" void shim_go(Place* from, Place to) __attribute__((visibility("hidden")));
__asm__(
    ".text\n.type shim_go, @function\nshim_go:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n.size shim_go, . - shim_go\n");

static void go(Place& from, Place& to) { shim_go(&from, to); }

/* A place from which `body` begins; it never returns. */
static void prepare(Place& place, char* end_of_stack, void (*body)()) {
    void** top = (void**)((uintptr_t)end_of_stack & ~(uintptr_t)15);
    *--top = 0;
    *--top = (void*)body;
    for (int i = 0; i < 6; i++) *--top = 0;
    place = top;
}
#else
struct Place {
    ucontext_t start;
    jmp_buf at;
    bool fresh;
};

static void go(Place& from, Place& to) {
    if (_setjmp(from.at) != 0) return;
    if (!to.fresh) _longjmp(to.at, 1);
    to.fresh = false;
    setcontext(&to.start);
}

static void prepare(Place& place, char* end_of_stack, void (*body)()) {
    getcontext(&place.start);
    place.start.uc_stack.ss_sp = end_of_stack - STACK;
    place.start.uc_stack.ss_size = STACK;
    place.start.uc_link = 0;
    makecontext(&place.start, body, 0);
    place.fresh = true;
}
#endif

struct Fiber {
    Place at;
    bool begun;   /* whether its place is one to go on from */
    char* stack;
};

static Fiber fibers[MOST_THREADS];
/* What each does (a State), and the line where it waits. They lie close together: whether a warp may go on is asked at each shuffle. */
static unsigned char states[MOST_THREADS];
static int lines[MOST_THREADS];
static Place scheduler;
static unsigned running, threads;
static void (*kernel)(void**);
static void** arguments;
static char message[256];

/* What lanes show each other. Two sets in turn: whoever writes the third value has seen all read the first. */
static unsigned long long shown[2][MOST_THREADS];
static unsigned turn[MOST_THREADS];
static int votes;

/* What a thread did that its GPU does not promise to forgive; the block ends there. */
static const char* misuse;

/* Runs kernels for ever: a fiber is used again and again. */
static void live() {
    for (;;) {
        kernel(arguments);
        states[running] = DONE;
        go(fibers[running].at, scheduler);
    }
}

static void wait_at(State state, int line) {
    states[running] = state;
    lines[running] = line;
    go(fibers[running].at, scheduler);
}

static bool lost;

/* A thread touched what it may not touch: back to the scheduler, its stack is given up. */
static void touched(int, siginfo_t*, void*) {
    lost = true;
    go(fibers[running].at, scheduler);
}

static void resume(unsigned thread) {
    Fiber& fiber = fibers[thread];
    running = thread;
    threadIdx.x = thread;
    watch_thread(thread, fiber.stack, fiber.stack + STACK + APART * 17 * 64);
    if (!fiber.begun) {
        fiber.begun = true;
        /* Stacks that ended at the same place of a page would take the same few lines of the cache. */
        prepare(fiber.at, fiber.stack + STACK + thread % APART * 17 * 64, live);
    }
    go(scheduler, fiber.at);
}

/* Whether all of the warp from thread `first` wait in `state` at one line. */
static bool waits(unsigned first, State state, int line) {
    unsigned other = 0;
    for (unsigned i = 0; i < WARP; i++) other |= states[first + i] ^ state;
    for (unsigned i = 0; i < WARP; i++) other |= lines[first + i] ^ line;
    return other == 0;
}

/* Lets all threads of the warps from `first` to before `end` go on if they wait in `state` at one place. One that is done is missing. */
static bool release(unsigned first, unsigned end, State state) {
    for (unsigned warp = first; warp < end; warp += WARP) {
        if (!waits(warp, state, lines[first])) return false;
    }
    memset(states + first, READY, end - first);
    if (state == AT_BARRIER) watch_barrier();
    return true;
}

static void complain() {
    int used = snprintf(message, sizeof message, "block %u is stuck:", blockIdx.x);
    for (unsigned i = 0; i < threads && used < 200; i++) {
        if (i > 0 && states[i] == states[i - 1] && lines[i] == lines[i - 1]) continue;
        const char* what = states[i] == DONE ? "has left" : states[i] == AT_BARRIER ? "waits at barrier" : "waits at shuffle";
        used += snprintf(message + used, sizeof message - used, " thread %u %s (line %d)", i, what, states[i] == DONE ? 0 : lines[i]);
    }
}

static unsigned long long random_state;
static unsigned random_below(unsigned bound) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((random_state >> 33) % bound);
}

/* `count` numbers from 0: in order (seed 0), turned round (1) or shuffled. */
static void arrange(unsigned* order, unsigned count, unsigned seed) {
    for (unsigned i = 0; i < count; i++) order[i] = seed == 1 ? count - 1 - i : i;
    if (seed < 2) return;
    for (unsigned i = count; i > 1; i--) {
        unsigned j = random_below(i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

static void forget_copies(unsigned threads);

/* Runs a warp as far as it comes without the others, so that warps are as far apart as barriers let them. */
static bool run_warp(const unsigned* order, bool& moved) {
    bool more = true;
    while (more) {
        for (unsigned i = 0; i < WARP; i++) {
            if (states[order[i]] != READY) continue;
            resume(order[i]);
            moved = true;
            if (!misuse) misuse = watch_error();
            if (misuse || lost) {
                const char* what = misuse ? misuse : "is outside of its memory";
                snprintf(message, sizeof message, "thread %u of block %u %s", order[i], blockIdx.x, what);
                return false;
            }
        }
        unsigned first = order[0] / WARP * WARP;
        more = release(first, first + WARP, AT_SHUFFLE);
    }
    watch_warp();
    return true;
}

/* The same order, but the threads of a warp together. */
static void gather(unsigned* order) {
    static unsigned all[MOST_THREADS];
    static bool taken[MOST_THREADS / WARP];
    unsigned count = 0;
    memset(taken, 0, sizeof taken);
    for (unsigned i = 0; i < threads; i++) {
        unsigned warp = order[i] / WARP;
        if (taken[warp]) continue;
        taken[warp] = true;
        for (unsigned j = i; j < threads; j++) {
            if (order[j] / WARP == warp) all[count++] = order[j];
        }
    }
    memcpy(order, all, sizeof(unsigned) * threads);
}

static bool run_block(const unsigned* order) {
    if (__start_shim_shared) memset(__start_shim_shared, 0xff, __stop_shim_shared - __start_shim_shared);
    votes = 1;
    memset(states, READY, threads);
    memset(turn, 0, sizeof *turn * threads);
    forget_copies(threads);
    watch_block(blockIdx.x);
    for (;;) {
        bool moved = false;
        unsigned done = 0;
        for (unsigned i = 0; i < threads; i += WARP) {
            if (!run_warp(order + i, moved)) return false;
            for (unsigned lane = 0; lane < WARP; lane++) done += states[order[i + lane]] == DONE;
        }
        if (done == threads) return true;
        moved |= release(0, threads, AT_BARRIER);
        if (!moved) {
            complain();
            return false;
        }
    }
}

static bool launch(void (*call)(void**), void** values, unsigned blocks, unsigned threads_of_block, unsigned seed,
                   bool watch) {
    static unsigned order[MOST_THREADS];
    kernel = call;
    arguments = values;
    threads = threads_of_block;
    message[0] = 0;
    if (threads > MOST_THREADS || threads % WARP != 0) {
        snprintf(message, sizeof message, "%u threads are no whole warps", threads);
        return false;
    }
    random_state = seed;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    threadIdx = {0, 0, 0};
    for (unsigned i = 0; i < threads; i++) {
        if (!fibers[i].stack) fibers[i].stack = (char*)malloc(STACK + APART * 17 * 64);
    }
    unsigned* grid = (unsigned*)malloc(sizeof(unsigned) * blocks);
    arrange(grid, blocks, seed);
    struct sigaction before[2], ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = touched;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (watch) {
        sigaction(SIGSEGV, &ours, &before[0]);
        sigaction(SIGBUS, &ours, &before[1]);
    }
    lost = false;
    misuse = 0;
    bool fine = true;
    watch_launch();
    for (unsigned i = 0; i < blocks && fine; i++) {
        blockIdx = {grid[i], 0, 0};
        arrange(order, threads, seed);
        gather(order);
        fine = run_block(order);
    }
    watch_end();
    if (watch) {
        sigaction(SIGSEGV, &before[0], 0);
        sigaction(SIGBUS, &before[1], 0);
    }
    free(grid);
    /* Fibers that are stuck in the middle of a kernel begin anew. */
    for (unsigned i = 0; i < threads && !fine; i++) fibers[i].begun = false;
    return fine;
}

template <class T>
static T exchange(T value, unsigned from, int line) {
    unsigned self = running, set = turn[self]++ % 2;
    memcpy(&shown[set][self], &value, sizeof(T));
    wait_at(AT_SHUFFLE, line);
    memcpy(&value, &shown[set][self / WARP * WARP + from], sizeof(T));
    return value;
}

static int vote(int truth, int line) {
    wait_at(AT_BARRIER, line);
    votes &= truth != 0;
    wait_at(AT_BARRIER, line);
    int all = votes;
    wait_at(AT_BARRIER, line);
    votes = 1;
    return all;
}

#include "tensor.h"

/* A kernel's parameters as letters; the table in kernels.rs has the same. */
template <class T> struct Letter {
    static const char value = sizeof(T) == 52 ? 'C' : sizeof(T) == 72 ? 'V' : sizeof(T) == 44 ? 'P' : '?';
};
/* Halves of a type of their own. */
template <class T> struct Letter<const T*> { static const char value = sizeof(T) == 2 ? 'h' : '?'; };
template <class T> struct Letter<T*> { static const char value = sizeof(T) == 2 ? 'H' : '?'; };
template <> struct Letter<const float*> { static const char value = 'f'; };
template <> struct Letter<float*> { static const char value = 'F'; };
template <> struct Letter<const unsigned*> { static const char value = 'i'; };
template <> struct Letter<unsigned*> { static const char value = 'I'; };
template <> struct Letter<const unsigned short*> { static const char value = 'h'; };
template <> struct Letter<unsigned short*> { static const char value = 'H'; };
template <> struct Letter<const double*> { static const char value = 'd'; };
template <> struct Letter<double*> { static const char value = 'D'; };
template <> struct Letter<unsigned> { static const char value = 'u'; };
template <> struct Letter<unsigned long long> { static const char value = 'l'; };
template <> struct Letter<float> { static const char value = 'r'; };

template <unsigned... I> struct Indices {};
template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I> struct Count<0, I...> { typedef Indices<I...> type; };

template <class... A, unsigned... I>
static void spread(void (*function)(A...), void** values, Indices<I...>) { function(*(A*)values[I]...); }

template <class... A>
static void call(void (*function)(A...), void** values) { spread(function, values, typename Count<sizeof...(A)>::type()); }

template <class... A>
static const char* letters(void (*)(A...)) {
    static const char all[] = {Letter<A>::value..., 0};
    return all;
}

}  // namespace shim

#define __syncthreads() shim::wait_at(shim::AT_BARRIER, __LINE__)
#define __syncthreads_and(truth) shim::vote(truth, __LINE__)
#define __shfl_xor_sync(mask, value, apart) shim::exchange(value, (threadIdx.x % 32) ^ (apart), __LINE__)

#define STAND_IN
#define multiply_add_bf16(...) shim::multiply_halves<shim::bf16_as_float>(__LINE__, __VA_ARGS__)
#define multiply_add_f16(...) shim::multiply_halves<shim::f16_as_float>(__LINE__, __VA_ARGS__)
#define load_matrices(...) shim::load_four(__LINE__, false, __VA_ARGS__)
#define load_matrices_turned(...) shim::load_four(__LINE__, true, __VA_ARGS__)
using shim::as_bf16;
using shim::as_f16;
using shim::copies_are_done;
using shim::copy_behind;
using shim::end_of_copies;
using shim::f16_as_float;
using shim::power_of_two;
using shim::quick_inverse;

/* What the tests look up for each kernel. */
#define SHIM_KERNEL(label, function)                                                     \
    static void shim_call_##label(void** values) { shim::call(function, values); }       \
    extern "C" const char* shim_letters_##label() { return shim::letters(function); }    \
    extern "C" const char* shim_run_##label(void** values, unsigned blocks, unsigned threads, unsigned seed, \
                                              unsigned watch) {                                \
        return shim::launch(shim_call_##label, values, blocks, threads, seed, watch) ? 0 : shim::message;      \
    }
