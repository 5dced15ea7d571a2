/* Tensor cores for the stand-in: a body for each instruction that tensor.cuh, bf16.cuh and f16.cuh of kernels/parts name,
 * after the PTX manual's tables of fragments; the quick functions of quick.cuh as well. It stands in the middle of shim.h, in its namespace.
 *
 * What a GPU leaves undefined, or traps, is an error here: addresses that are not aligned to 16 bytes, matrices and copies
 * outside of shared memory, lanes that do not come. A copy behind the thread's back lands no sooner than it is waited for,
 * so what is read before that is NaN. What another warp copied is there
 * after a barrier: warps run one after another.
 *
 * It does not know the hardware's order and rounding within 16 terms: here they are added in order by fused multiply-add.
 */

/* What lanes show each other where a word is not enough; `turn` says which set. */
static unsigned long long shown_wide[2][MOST_THREADS][3];

/* This thread may not go on: back to the scheduler for good. */
static void misused(const char* what) {
    misuse = what;
    go(fibers[running].at, scheduler);
}

static bool aligned(const void* at) { return (uintptr_t)at % 16 == 0; }

static bool is_shared(const void* at) {
    return __start_shim_shared && (const char*)at >= __start_shim_shared && (const char*)at + 16 <= __stop_shim_shared;
}

/* The two kinds of halves. */
static float bf16_as_float(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

/* cvt.f32.f16 */
static float f16_as_float(unsigned short bits) {
    unsigned sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    /* Below the normal ones: so many times 2^-24. */
    if (size < 0x400) return __uint_as_float(sign | __float_as_uint((float)size * 5.9604644775390625e-8f));
    /* Infinity and NaN stay what they are. */
    return __uint_as_float(sign | (size << 13) + (size < 0x7c00 ? 0x38000000u : 0x70000000u));
}

static unsigned short nearest_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static unsigned short nearest_f16(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= __float_as_uint(65520.0f)) return sign | 0x7c00u;
    /* Below the normal ones the sum has the last bit of 2^-24, and is rounded as a sum is. */
    if (size < __float_as_uint(6.103515625e-5f)) {
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - __float_as_uint(0.5f));
    }
    return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, or with f16 */
template <float (*AS_FLOAT)(unsigned short)>
static void multiply_halves(int line, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned self = running, set = turn[self]++ % 2, warp = self / WARP * WARP;
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(shown_wide[set][self], mine, sizeof mine);
    wait_at(AT_SHUFFLE, line);
    unsigned group = self % WARP / 4, in_group = self % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = group + i / 2 * 8, column = 2 * in_group + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const unsigned* left = (const unsigned*)shown_wide[set][warp + row % 8 * 4 + k % 8 / 2];
            const unsigned* right = (const unsigned*)shown_wide[set][warp + column * 4 + k % 8 / 2] + 4;
            unsigned x = left[k / 8 * 2 + row / 8] >> k % 2 * 16, y = right[k / 8] >> k % 2 * 16;
            sum[i] = fmaf(AS_FLOAT((unsigned short)x), AS_FLOAT((unsigned short)y), sum[i]);
        }
    }
}

/* ldmatrix.sync.aligned.m8n8.x4.shared.b16, or with .trans */
UNWATCHED static void load_four(int line, bool turned, unsigned (&to)[4], const unsigned short* row) {
    if (!aligned(row)) misused("names a row of a matrix that is not aligned to 16 bytes");
    if (!is_shared(row)) misused("names a row of a matrix that is not in shared memory");
    watch_touch(row, 16, false);
    unsigned self = running, set = turn[self]++ % 2, warp = self / WARP * WARP;
    memcpy(shown_wide[set][self], &row, sizeof row);
    wait_at(AT_SHUFFLE, line);
    unsigned group = self % WARP / 4, in_group = self % 4;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned short pair[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned down = turned ? 2 * in_group + i : group, right = turned ? group : 2 * in_group + i;
            const unsigned short* from;
            memcpy(&from, shown_wide[set][warp + matrix * 8 + down], sizeof from);
            pair[i] = from[right];
        }
        memcpy(&to[matrix], pair, 4);
    }
}

/* Copies of a thread that have not landed. */
enum { MOST_COPIES = 64 };
struct Copy {
    char* to;
    const char* from;
    unsigned bytes, group;
};
static Copy copies[MOST_THREADS][MOST_COPIES];
static unsigned copying[MOST_THREADS], groups[MOST_THREADS];

static void forget_copies(unsigned threads) {
    memset(copying, 0, sizeof *copying * threads);
    memset(groups, 0, sizeof *groups * threads);
}

/* cp.async.cg.shared.global with a size of the source */
static void copy_behind(unsigned short* to, const unsigned short* from, unsigned bytes) {
    if (!aligned(to) || !aligned(from)) misused("copies what is not aligned to 16 bytes");
    if (!is_shared(to)) misused("copies to what is not shared memory");
    if (bytes > 16) misused("copies more than 16 bytes");
    if (copying[running] == MOST_COPIES) misused("has more copies under way than the stand-in remembers");
    if (bytes == 16) {
        watch_touch(from, 16, false);
    } else if (bytes > 0) {
        watch_touch(from, bytes, false);
    }
    watch_touch(to, 16, true);
    copies[running][copying[running]++] = {(char*)to, (const char*)from, bytes, groups[running]};
}

/* cp.async.commit_group */
static void end_of_copies() { groups[running]++; }

/* cp.async.wait_group */
template <unsigned LATEST>
UNWATCHED static void copies_are_done() {
    unsigned self = running, kept = 0;
    for (unsigned i = 0; i < copying[self]; i++) {
        Copy copy = copies[self][i];
        /* Of `groups` that have ended the latest may go on; so may what is in none yet. */
        if (copy.group + LATEST >= groups[self]) {
            copies[self][kept++] = copy;
            continue;
        }
        memset(copy.to, 0, 16);
        memcpy(copy.to, copy.from, copy.bytes);
    }
    copying[self] = kept;
}

/* ex2.approx.ftz.f32 */
static float power_of_two(float x) {
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

/* rcp.approx.ftz.f32 */
static float quick_inverse(float x) { return 1.0f / x; }

/* cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32 */
static unsigned as_bf16(float low, float high) { return nearest_bf16(low) | (unsigned)nearest_bf16(high) << 16; }
static unsigned as_f16(float low, float high) { return nearest_f16(low) | (unsigned)nearest_f16(high) << 16; }
