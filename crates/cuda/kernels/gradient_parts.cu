// gradient_parts: the gradient of an activation, in place, and sums of its columns over each run of 256 rows: what a
// linear layer with an activation behind it has to do before its products.
//
//   0, relu: d = saved > 0 ? d : 0, `saved` the outputs.
//   1, gelu: d = d (Phi(x) + x phi(x)); 2, gelu by way of tanh: d = d (s + x s (1 - s) 2 u'); `saved` the inputs.
//
// Order: eight lanes, lane i adds rows i, i + 8, ... in order, then the lanes in order, of what was written; `sum_parts`
// adds the runs. The bits are those of `relu_gradient`, `gelu_gradient` and `column_parts` one behind the other.
// Launch: ceil(width / S) x runs blocks of 256 threads, S = 128 columns of f32 or 256 of halves: a strip of them by eight
// lanes.
// Does not know products.

__device__ inline void turn(Wide<Stored>& d, const Wide<Stored>& x, u32 kind) {
    if (kind == 0) {
        for (u32 i = 0; i < d.COUNT; i++) d.v[i] = x.v[i] > 0.0f ? d.v[i] : 0.0f;
    } else if (kind == 1) {
        for (u32 i = 0; i < d.COUNT; i++) d.v[i] = d.v[i] * slope_of_gelu(x.v[i]);
    } else {
        for (u32 i = 0; i < d.COUNT; i++) d.v[i] = d.v[i] * slope_of_tanh_gelu(x.v[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(gradient_parts_, )(
    const Stored* saved, Stored* d, float* parts, u32 rows, u32 width, u32 kind) {
    typedef WideStrip<Stored> Strip;
    __shared__ Strip::Room room;
    u32 strips = parts_of(width, Strip::WIDTH);
    u32 run = blockIdx.x / strips, strip = blockIdx.x % strips * Strip::WIDTH;
    Strip::Own own(strip, width);
    u32 end = least(rows, (run + 1) * 256);
    bool wide = rows_lie_wide(saved, width) && rows_lie_wide(d, width);
    Wide<Stored> sums = {};
    for (u32 row = run * 256 + threadIdx.x / 32; own.count > 0 && row < end; row += 8) {
        u64 at = (u64)row * width + own.first;
        Wide<Stored> x, some;
        Wide<Stored>::read_both(x, saved + at, some, (const Stored*)d + at, own.count, wide);
        turn(some, x, kind);
        some.round_as(d);
        some.write(d + at, own.count, wide);
        sums.add(some);
    }
    room.put(sums);
    __syncthreads();
    u32 column = strip + threadIdx.x;
    if (threadIdx.x < Strip::WIDTH && column < width) parts[(u64)run * width + column] = room.across(threadIdx.x);
}
