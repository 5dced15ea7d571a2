// scale_rows: y[r, i] = x[r, i] by[r].   dot_rows: y[r] = sum over i of a[r, i] b[r, i]. Rows of one element are lists.
//
// Order: scale_rows: none, every element stands alone. dot_rows: a lane of a warp adds its elements in order, which are 16
// bytes side by side and those of 32 lanes further on, then the lanes as `sums` says.
// Launch: 256 threads. scale_rows: any grid, a loop over elements, 16 bytes at a time. dot_rows: a warp a row; of rows of
// one element any grid, as scale_rows.
// Does not know what the rows are.

extern "C" __global__ void __launch_bounds__(256) NAME(scale_rows_, )(
    const Stored* x, const Stored* by, Stored* y, u64 len, u32 rows, u32 width) {
    if (width == 1) {
        each(x, by, y, len, [](float x, float by) { return x * by; });
        return;
    }
    bool wide = lies_wide(x) && lies_wide(y);
    auto factor_of = [&](u32 row) { return (float)by[row]; };
    over_channels(len, rows, width, [&](u64 first, u32 count, const Place& place) {
        Wide<Stored> some;
        some.read(x + first, count, wide, 0.0f);
        with_channels(place, rows, width, factor_of, [&](u32 i, float factor) { some.v[i] = some.v[i] * factor; });
        some.write(y + first, count, wide);
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(dot_rows_, )(
    const Stored* a, const Stored* b, Stored* y, u32 rows, u32 width) {
    if (width == 1) {
        each(a, b, y, rows, [](float a, float b) { return a * b; });
        return;
    }
    const u32 N = Wide<Stored>::COUNT;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    a += (u64)row * width;
    b += (u64)row * width;
    bool wide = lies_wide(a) && lies_wide(b);
    float sum = 0.0f;
    for (u32 first = threadIdx.x % 32 * N; first < width; first += 32 * N) {
        Wide<Stored> some, other;
        Wide<Stored>::read_both(some, a + first, other, b + first, width - first, wide);
        for (u32 i = 0; i < N; i++) sum = sum + some.v[i] * other.v[i];
    }
    sum = across_warp(sum, Plus());
    if (threadIdx.x % 32 == 0) y[row] = sum;
}
