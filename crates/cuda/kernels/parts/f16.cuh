// f16, IEEE's, one of the two kinds of halves: what is its own of tensor cores, and how kernels of it are called. The
// stand-in of the tests has bodies of its own (tests/shim/tensor.h).
//
// Eleven significant bits, five of exponent: 65520 and more is infinity, below 2^-14 there are fewer bits, below 2^-25 none.
// Does not know a kernel; bf16.cuh has the same words.

// A kernel's name has the kind in its middle.
#define NAME(before, after) before##f16##after
#define multiply_add multiply_add_f16
#define as_halves as_f16
#define from_half f16_as_float

#ifndef STAND_IN
// sum += a b.
__device__ inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, to the nearest, ties to even.
__device__ inline u32 as_halves(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// One as a float: exact.
__device__ inline float from_half(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#endif

// A number between layers as it lies in memory: read as a float, rounded as it is written.
struct F16 {
    u16 bits;
    __device__ operator float() const { return from_half(bits); }
    __device__ void operator=(float x) { bits = (u16)as_halves(x, 0.0f); }

    // Two that share a word, the first in its low half.
    __device__ static void both(u32 word, float& first, float& second) {
        first = from_half((u16)word);
        second = from_half((u16)(word >> 16));
    }
    __device__ static u32 both(float first, float second) { return as_halves(first, second); }
};
typedef F16 Stored;
