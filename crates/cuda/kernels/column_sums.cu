// column_parts: sums of the columns of x [rows, width], whose rows lie `pitch` apart, over each run of 256 rows.
// plane_parts: sums of the channels of x [images, channels, area] over each run of 4 096 values of a channel.
//
// Order: column_parts: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order. plane_parts: thread
// i adds values i, i + 256, ... in order, then the threads as `sums` says. `sum_parts` adds the runs.
//
// Launch: column_parts ceil(width / 32) x runs blocks of 256 threads (32 columns by 8 lanes); plane_parts channels x runs
// blocks of 256 threads. Does not know whose gradient it is.

extern "C" __global__ void __launch_bounds__(256) NAME(column_parts_, )(
    const Stored* x, float* parts, u32 rows, u32 width, u32 pitch) {
    __shared__ float lanes[8][33];
    u32 strips = parts_of(width, 32);
    u32 run = blockIdx.x / strips;
    u32 lane = threadIdx.x / 32;
    u32 column = blockIdx.x % strips * 32 + threadIdx.x % 32;
    u32 end = least(rows, (run + 1) * 256);
    float sum = 0.0f;
    if (column < width) {
        for (u32 row = run * 256 + lane; row < end; row += 8) sum = sum + x[(u64)row * pitch + column];
    }
    lanes[lane][threadIdx.x % 32] = sum;
    __syncthreads();
    if (lane == 0 && column < width) {
        for (u32 i = 1; i < 8; i++) sum += lanes[i][threadIdx.x];
        parts[(u64)run * width + column] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(plane_parts_, )(
    const Stored* x, float* parts, u32 images, u32 channels, u32 area) {
    __shared__ float room[8];
    u32 channel = blockIdx.x % channels;
    u32 run = blockIdx.x / channels;
    u64 end = (u64)images * area;
    end = end < (u64)(run + 1) * 4096 ? end : (u64)(run + 1) * 4096;
    float sum = 0.0f;
    for (u64 i = (u64)run * 4096 + threadIdx.x; i < end; i += 256) {
        sum = sum + x[(i / area * channels + channel) * area + i % area];
    }
    sum = across_block(sum, room, Plus());
    if (threadIdx.x == 0) parts[(u64)run * channels + channel] = sum;
}
