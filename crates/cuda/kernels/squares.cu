// square_parts: for each block of 4 096 elements the f64 sum of squares of g * scale (rounded to f32).
// sum_in_order: the sum of f64 numbers from the first to the last.
//
// The clip norm. Order, as on the CPU: eight lanes a block, lane i adds elements i, i + 8, ... in order; the lanes in
// order; the blocks in order. So it has the CPU's bits. A value that is not finite makes the sum not finite.
// `found` is null, or has what is multiplied by in place of `scale`.
//
// Launch: square_parts one block of 256 threads for each 32 blocks of elements, eight threads each; sum_in_order one
// block of 256 threads, one of which adds. Does not know what is clipped.

extern "C" __global__ void __launch_bounds__(256) square_parts(const float* g, double* parts, u64 len, float scale,
    const float* found) {
    scale = number(scale, found);
    __shared__ double lanes[256];
    u64 block = (u64)blockIdx.x * 32 + threadIdx.x / 8;
    u64 start = block * 4096;
    u64 end = len < start + 4096 ? len : start + 4096;
    double sum = 0.0;
    for (u64 i = start + threadIdx.x % 8; i < end; i += 8) {
        double v = (double)(g[i] * scale);
        sum = sum + v * v;
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x % 8 == 0 && start < len) {
        for (u32 lane = 1; lane < 8; lane++) sum += lanes[threadIdx.x + lane];
        parts[block] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) sum_in_order(const double* parts, double* sum, u32 count) {
    __shared__ double some[256];
    double total = 0.0;
    for (u32 start = 0; start < count; start += 256) {
        u32 here = least(256, count - start);
        if (threadIdx.x < here) some[threadIdx.x] = parts[start + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < here; i++) total = total + some[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) sum[0] = total;
}
