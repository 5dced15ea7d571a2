// finite_parts, finite_all: whether every element is finite, in two stages without an atomic.
//
// finite_parts: a block looks at 16 384 elements and writes one word, 1 where all of its elements are finite.
// finite_all: one block looks at all words and writes one.
//
// Launch: finite_parts one block for each 16 384 elements, finite_all one block, both 256 threads. Order: of no matter,
// the words are truths. Does not know what is done about it.

extern "C" __global__ void __launch_bounds__(256) finite_parts(const float* x, u32* parts, u64 len) {
    u64 start = (u64)blockIdx.x * 16384;
    u64 end = len < start + 16384 ? len : start + 16384;
    int fine = 1;
    for (u64 i = start + threadIdx.x; i < end; i += 256) fine = fine && is_finite(x[i]);
    fine = __syncthreads_and(fine);
    if (threadIdx.x == 0) parts[blockIdx.x] = fine;
}

extern "C" __global__ void __launch_bounds__(256) finite_all(const u32* parts, u32* all, u32 count) {
    int fine = 1;
    for (u32 i = threadIdx.x; i < count; i += 256) fine = fine && parts[i] != 0;
    fine = __syncthreads_and(fine);
    if (threadIdx.x == 0) all[0] = fine;
}
