// layer_norm: y = (x - mean) / deviation * gain + bias along each row; saved [rows, 2] keeps mean and 1 / deviation.
// layer_norm_gradient: dx, to which `outer` is added where it is not null, and sums for dgain and dbias over each run of
// 64 rows, [runs, 2, width]. Nobody wants dx where it is null.
//
// Order: lane i of a warp adds elements i, i + 32, ... in order, then the lanes as `sums` says; the variance in a second
// pass around the mean. Sums over a run: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order;
// `sum_parts` adds the runs.
//
// Launch: layer_norm a warp a row, 8 rows a block of 256 threads; layer_norm_gradient a block of 256 threads a run, whose
// rows are in its cache when they are read again for the sums. Does not know the layers around it.

extern "C" __global__ void __launch_bounds__(256) NAME(layer_norm_, )(
    const Stored* x, const float* gain, const float* bias, Stored* y, float* saved, u32 rows, u32 width,
    float epsilon) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (u64)row * width;
    y += (u64)row * width;
    float sum = 0.0f, squares = 0.0f;
    for (u32 i = lane; i < width; i += 32) sum += x[i];
    float mean = across_warp(sum, Plus()) / (float)width;
    for (u32 i = lane; i < width; i += 32) squares += (x[i] - mean) * (x[i] - mean);
    float variance = across_warp(squares, Plus()) / (float)width;
    float factor = 1.0f / sqrtf(variance + epsilon);
    if (lane == 0) {
        saved[2 * row] = mean;
        saved[2 * row + 1] = factor;
    }
    for (u32 i = lane; i < width; i += 32) y[i] = fmaf((x[i] - mean) * factor, gain[i], bias[i]);
}

// dx = outer + factor (d - mean(d) - xhat mean(d xhat)), d = dy gain, of one row by a warp.
__device__ inline void row_gradient(
    const Stored* x, const float* gain, float mean, float factor, const Stored* dy, const Stored* outer, Stored* dx,
    u32 width) {
    u32 lane = threadIdx.x % 32;
    float along = 0.0f, across = 0.0f;
    for (u32 i = lane; i < width; i += 32) {
        float d = dy[i] * gain[i];
        along += d;
        across += d * ((x[i] - mean) * factor);
    }
    along = across_warp(along, Plus()) / (float)width;
    across = across_warp(across, Plus()) / (float)width;
    for (u32 i = lane; i < width; i += 32) {
        float d = (dy[i] * gain[i] - along - (x[i] - mean) * factor * across) * factor;
        dx[i] = outer ? outer[i] + d : d;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(layer_norm_gradient_, )(
    const Stored* x, const float* gain, const float* saved, const Stored* dy, const Stored* outer, Stored* dx, float* parts,
    u32 rows, u32 width) {
    __shared__ float lanes[2][8][33];
    u32 run = blockIdx.x, lane = threadIdx.x / 32;
    u32 end = least(rows, (run + 1) * 64);
    for (u32 row = run * 64 + lane; dx && row < end; row += 8) {
        u64 at = (u64)row * width;
        const Stored* from = outer ? outer + at : outer;
        row_gradient(x + at, gain, saved[2 * row], saved[2 * row + 1], dy + at, from, dx + at, width);
    }
    for (u32 first = 0; first < width; first += 32) {
        u32 column = first + threadIdx.x % 32;
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
        __syncthreads();
    }
}
