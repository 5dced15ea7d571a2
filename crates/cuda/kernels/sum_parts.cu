// sum_parts: adds the sums of runs, other kernels' results.
//
// Order: of fewer than 32 parts from the first to the last; of more by eight lanes, lane i adds parts i, i + 8, ... in
// order, then the lanes in order: few results would keep few threads busy, for long.
// Launch: any grid, blocks of 256 threads: a thread a result, or 32 results a block where there are lanes, a warp each.
// Does not know what was summed.

const u32 LANES = 8;

// `sum` and `count` numbers, `pitch` apart.
__device__ inline float in_order(float sum, const float* parts, u32 count, u64 pitch) {
    // In order, but with several loads on their way.
#pragma unroll 16
    for (u32 part = 0; part < count; part++) sum = sum + parts[part * pitch];
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) sum_parts(
    const float* parts, float* sums, u64 len, u32 count, u64 pitch) {
    __shared__ float room[LANES][32];
    if (count < 32) {
        for (u64 i = first_element(); i < len; i += next_element()) {
            sums[i] = in_order(parts[i], parts + pitch + i, count - 1, pitch);
        }
        return;
    }
    u32 lane = threadIdx.x / 32, column = threadIdx.x % 32, own = parts_of(count - lane, LANES);
    for (u64 first = (u64)blockIdx.x * 32; first < len; first += (u64)gridDim.x * 32) {
        u64 i = first + column;
        room[lane][column] = i < len ? in_order(0.0f, parts + lane * pitch + i, own, LANES * pitch) : 0.0f;
        __syncthreads();
        if (lane == 0 && i < len) {
            float sum = room[0][column];
            for (u32 other = 1; other < LANES; other++) sum += room[other][column];
            sums[i] = sum;
        }
        __syncthreads();
    }
}
