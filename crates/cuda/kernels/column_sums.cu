// column_parts: sums of the columns of x [rows, width], whose rows lie `pitch` apart, over each run of 256 rows.
// plane_parts: sums of the channels of x [images, channels, area] over each run of 4 096 values of a channel.
//
// Order: column_parts: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order. plane_parts: thread
// i adds values i, i + 256, ... in order, then the threads as `sums` says. `sum_parts` adds the runs.
//
// Launch: column_parts ceil(width / S) x runs blocks of 256 threads, S = 128 columns of f32 or 256 of halves: a strip of
// them by eight lanes; plane_parts
// channels x runs blocks of 256 threads. Does not know whose gradient it is.

extern "C" __global__ void __launch_bounds__(256) NAME(column_parts_, )(
    const Stored* x, float* parts, u32 rows, u32 width, u32 pitch) {
    typedef WideStrip<Stored> Strip;
    __shared__ Strip::Room room;
    u32 strips = parts_of(width, Strip::WIDTH);
    u32 run = blockIdx.x / strips, strip = blockIdx.x % strips * Strip::WIDTH;
    Strip::Own own(strip, width);
    u32 row = run * 256 + threadIdx.x / 32, end = least(rows, (run + 1) * 256);
    u32 count = row < end ? parts_of(end - row, 8) : 0;
    const Stored* from = x + (u64)row * pitch + own.first;
    Wide<Stored> sums = {}, some;
    if (own.count >= Strip::N && rows_lie_wide(x, pitch)) {
        // In order, but with several loads on their way.
#pragma unroll 4
        for (u32 i = 0; i < count; i++) {
            some.read_wide(from + (u64)i * 8 * pitch);
            sums.add(some);
        }
    } else {
        for (u32 i = 0; own.count > 0 && i < count; i++) {
            some.read(from + (u64)i * 8 * pitch, own.count, false, 0.0f);
            sums.add(some);
        }
    }
    room.put(sums);
    __syncthreads();
    u32 column = strip + threadIdx.x;
    if (threadIdx.x < Strip::WIDTH && column < width) parts[(u64)run * width + column] = room.across(threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(256) NAME(plane_parts_, )(
    const Stored* x, float* parts, u32 images, u32 channels, u32 area) {
    __shared__ float room[8];
    u32 channel = blockIdx.x % channels;
    u32 run = blockIdx.x / channels;
    Run values(run, images, area);
    Walk walk = values.walk(channel, channels, area);
    u32 count = values.own();
    float sum = 0.0f;
    // In order, but with several loads on their way.
#pragma unroll 8
    for (u32 i = 0; i < count; i++) sum = sum + x[walk.next()];
    sum = across_block(sum, room, Plus());
    if (threadIdx.x == 0) parts[(u64)run * channels + channel] = sum;
}
