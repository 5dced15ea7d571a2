// layer_norm: y = (x - mean) / deviation * gain + bias along each row; saved [rows, 2] keeps mean and 1 / deviation.
// layer_norm_gradient: dx.   layer_norm_parts: sums for dgain and dbias over each run of 64 rows, [runs, 2, width].
//
// Order: lane i of a warp adds elements i, i + 32, ... in order, then the lanes as `sums` says; the variance in a second
// pass around the mean. layer_norm_parts: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order;
// `sum_parts` adds the runs.
//
// Launch: the first two a warp a row, 8 rows a block of 256 threads; layer_norm_parts ceil(width / 32) x runs blocks of
// 256 threads. Does not know the layers around it.

extern "C" __global__ void __launch_bounds__(256) layer_norm(
    const float* x, const float* gain, const float* bias, float* y, float* saved, u32 rows, u32 width) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (u64)row * width;
    y += (u64)row * width;
    float sum = 0.0f, squares = 0.0f;
    for (u32 i = lane; i < width; i += 32) sum += x[i];
    float mean = across_warp(sum, Plus()) / (float)width;
    for (u32 i = lane; i < width; i += 32) squares += (x[i] - mean) * (x[i] - mean);
    float variance = across_warp(squares, Plus()) / (float)width;
    float factor = 1.0f / sqrtf(variance + 1e-5f);
    if (lane == 0) {
        saved[2 * row] = mean;
        saved[2 * row + 1] = factor;
    }
    for (u32 i = lane; i < width; i += 32) y[i] = fmaf((x[i] - mean) * factor, gain[i], bias[i]);
}

// dx = factor (d - mean(d) - xhat mean(d xhat)), d = dy gain.
extern "C" __global__ void __launch_bounds__(256) layer_norm_gradient(
    const float* x, const float* gain, const float* saved, const float* dy, float* dx, u32 rows, u32 width) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (u64)row * width;
    dy += (u64)row * width;
    dx += (u64)row * width;
    float mean = saved[2 * row], factor = saved[2 * row + 1];
    float along = 0.0f, across = 0.0f;
    for (u32 i = lane; i < width; i += 32) {
        float d = dy[i] * gain[i];
        along += d;
        across += d * ((x[i] - mean) * factor);
    }
    along = across_warp(along, Plus()) / (float)width;
    across = across_warp(across, Plus()) / (float)width;
    for (u32 i = lane; i < width; i += 32) {
        dx[i] = (dy[i] * gain[i] - along - (x[i] - mean) * factor * across) * factor;
    }
}

extern "C" __global__ void __launch_bounds__(256) layer_norm_parts(
    const float* x, const float* saved, const float* dy, float* parts, u32 rows, u32 width) {
    __shared__ float lanes[2][8][33];
    u32 strips = parts_of(width, 32);
    u32 run = blockIdx.x / strips;
    u32 lane = threadIdx.x / 32;
    u32 column = blockIdx.x % strips * 32 + threadIdx.x % 32;
    u32 end = least(rows, (run + 1) * 64);
    float dgain = 0.0f, dbias = 0.0f;
    if (column < width) {
        for (u32 row = run * 64 + lane; row < end; row += 8) {
            float d = dy[(u64)row * width + column];
            dgain = fmaf(d, (x[(u64)row * width + column] - saved[2 * row]) * saved[2 * row + 1], dgain);
            dbias += d;
        }
    }
    lanes[0][lane][threadIdx.x % 32] = dgain;
    lanes[1][lane][threadIdx.x % 32] = dbias;
    __syncthreads();
    if (lane == 0 && column < width) {
        for (u32 i = 1; i < 8; i++) {
            dgain += lanes[0][i][threadIdx.x];
            dbias += lanes[1][i][threadIdx.x];
        }
        parts[(u64)run * 2 * width + column] = dgain;
        parts[((u64)run * 2 + 1) * width + column] = dbias;
    }
}
