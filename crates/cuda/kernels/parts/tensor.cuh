// Tensor cores, and what feeds them: with bf16.cuh and f16.cuh, one of which stands before it, the only place with words of
// the assembler. Each is one instruction of PTX that every GPU since sm_80 has. The stand-in of the tests has a body of its
// own for each (tests/shim/tensor.h).
//
// A warp holds a matrix in fragments, two halves a register, the lower first. With g = lane / 4 and t = lane % 4:
//   A, 16 x 16: a[0] has row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] and a[3] the same 8 columns further on.
//   B, 16 x 8:  b[0] has rows 2t and 2t + 1 of column g; b[1] the same 8 rows further down.
//   C, 16 x 8:  c[0] and c[1] have row g, columns 2t and 2t + 1; c[2] and c[3] row g + 8.
//
// Order: within one product of 16 terms, and how it is rounded, is the hardware's: the same on every run of one GPU model,
// not on all of them. The order of the products is the caller's. All lanes of a warp have to come. Does not know a tensor.

#ifndef STAND_IN
__device__ inline u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four matrices of 8 x 8 from shared memory. Lane i names row i % 8 of matrix i / 8, 16 bytes, aligned so. A lane gets
// columns 2t and 2t + 1 of row g of each.
__device__ inline void load_matrices(u32 (&to)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// The same, turned: a lane gets rows 2t and 2t + 1 of column g.
__device__ inline void load_matrices_turned(u32 (&to)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

// 16 bytes to shared memory, behind the thread's back: the first `bytes` of them from `from`, the others zero. Both have to
// be aligned to 16. They are there after `copies_are_done`, for other threads after a barrier as well.
__device__ inline void copy_behind(u16* to, const u16* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Ends a group of copies.
__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups but the last LATEST.
template <u32 LATEST>
__device__ inline void copies_are_done() { asm volatile("cp.async.wait_group %0;" :: "n"(LATEST) : "memory"); }
#endif

// A pair of halves as floats: exact.
__device__ inline float low_half(u32 both) { return from_half((u16)both); }
__device__ inline float high_half(u32 both) { return from_half((u16)(both >> 16)); }

// The place in shared memory that this lane names for a fragment. Rows lie `pitch` elements apart.
// A that lies in rows of A: four matrices, 8 rows further, then 8 columns further. Plain.
__device__ inline const u16* left_place(const u16* room, u32 pitch, u32 row, u32 k) {
    u32 lane = threadIdx.x % 32;
    return room + (row + lane % 16) * pitch + k + lane / 16 * 8;
}
// A that lies in rows of K. Turned.
__device__ inline const u16* left_place_turned(const u16* room, u32 pitch, u32 row, u32 k) {
    u32 lane = threadIdx.x % 32;
    return room + (k + lane % 8 + lane / 16 * 8) * pitch + row + lane / 8 % 2 * 8;
}
// Two B side by side that lie in rows of columns, K contiguous: registers 0 and 1 are the first, 2 and 3 the second. Plain.
__device__ inline const u16* right_place(const u16* room, u32 pitch, u32 column, u32 k) {
    u32 lane = threadIdx.x % 32;
    return room + (column + lane % 8 + lane / 16 * 8) * pitch + k + lane / 8 % 2 * 8;
}
// Two B side by side that lie in rows of K. Turned.
__device__ inline const u16* right_place_turned(const u16* room, u32 pitch, u32 column, u32 k) {
    u32 lane = threadIdx.x % 32;
    return room + (k + lane % 16) * pitch + column + lane / 16 * 8;
}

struct alignas(8) TwoFloats {
    float v[2];
};

// C to where its first element goes, its rows `pitch` apart. Plain; no two lanes meet in a bank of shared memory where rows are
// 8 banks apart.
__device__ inline void put_sums(float* to, u32 pitch, const float (&c)[4]) {
    to += threadIdx.x % 32 / 4 * pitch + threadIdx.x % 4 * 2;
    TwoFloats upper = {c[0], c[1]}, lower = {c[2], c[3]};
    *(TwoFloats*)to = upper;
    *(TwoFloats*)(to + 8 * pitch) = lower;
}
