// sum_parts: adds the sums of runs, other kernels' results.
//
// Launch: one thread a result, blocks of 256. Order: from the first part to the last.
// Does not know what was summed.

extern "C" __global__ void __launch_bounds__(256) sum_parts(
    const float* parts, float* sums, u64 len, u32 count, u64 pitch) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float sum = parts[i];
        // In order, but with several loads on their way.
#pragma unroll 8
        for (u32 part = 1; part < count; part++) sum = sum + parts[part * pitch + i];
        sums[i] = sum;
    }
}
