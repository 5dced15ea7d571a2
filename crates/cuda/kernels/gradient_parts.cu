// gradient_parts: the gradient of an activation, in place, and sums of its columns over each run of 256 rows: what a
// linear layer with an activation behind it has to do before its products.
//
//   0, relu: d = saved > 0 ? d : 0, `saved` the outputs.
//   1, gelu: d = d (Phi(x) + x phi(x)); 2, gelu by way of tanh: d = d (s + x s (1 - s) 2 u'); `saved` the inputs.
//
// Order: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order, of what was written; `sum_parts`
// adds the runs. The bits are those of `relu_gradient`, `gelu_gradient` and `column_parts` one behind the other.
// Launch: ceil(width / 32) x runs blocks of 256 threads (32 columns by 8 lanes).
// Does not know products.

__device__ inline float slope(float x, u32 kind) {
    if (kind == 1) {
        float density;
        float distribution = normal(x, density);
        return fmaf(x, density, distribution);
    }
    float rest, twice_slope;
    float s = half_of_tanh(x, rest, twice_slope);
    float bend = s * rest;
    // Where it is flat, its slope may be beyond the range.
    return bend == 0.0f ? s : fmaf(x * bend, twice_slope, s);
}

extern "C" __global__ void __launch_bounds__(256) NAME(gradient_parts_, )(
    const Stored* saved, Stored* d, float* parts, u32 rows, u32 width, u32 kind) {
    __shared__ float lanes[8][33];
    u32 strips = parts_of(width, 32);
    u32 run = blockIdx.x / strips;
    u32 lane = threadIdx.x / 32;
    u32 column = blockIdx.x % strips * 32 + threadIdx.x % 32;
    u32 end = least(rows, (run + 1) * 256);
    float sum = 0.0f;
    if (column < width) {
        for (u32 row = run * 256 + lane; row < end; row += 8) {
            u64 at = (u64)row * width + column;
            float x = saved[at], before = d[at];
            d[at] = kind == 0 ? (x > 0.0f ? before : 0.0f) : before * slope(x, kind);
            sum = sum + d[at];
        }
    }
    lanes[lane][threadIdx.x % 32] = sum;
    __syncthreads();
    if (lane == 0 && column < width) {
        for (u32 i = 1; i < 8; i++) sum += lanes[i][threadIdx.x];
        parts[(u64)run * width + column] = sum;
    }
}
