// bf16, one of the two kinds of halves: what is its own of tensor cores, and how kernels of it are called. The stand-in of
// the tests has bodies of its own (tests/shim/tensor.h).
//
// Eight significant bits and the exponent of f32: what is finite in f32 is finite here, but for the last numbers before
// infinity. Does not know a kernel; f16.cuh has the same words.

// A kernel's name has the kind in its middle.
#define NAME(before, after) before##bf16##after
#define multiply_add multiply_add_bf16
#define as_halves as_bf16

#ifndef STAND_IN
// sum += a b.
__device__ inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, to the nearest, ties to even.
__device__ inline u32 as_halves(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

// One as a float: exact.
__device__ inline float from_half(u16 bits) { return __uint_as_float((u32)bits << 16); }

// A number between layers as it lies in memory: read as a float, rounded as it is written.
struct Bf16 {
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
typedef Bf16 Stored;
