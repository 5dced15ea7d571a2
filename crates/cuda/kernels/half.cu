// to_bf16, to_f16: f32 to halves, to the nearest, ties to even; NaN stays NaN.   from_bf16, from_f16: exact.
//
// Launch: any grid, 256 threads; a loop over elements, eight at a time. Order: none, every element stands alone.
// Does not know which copy is the master.

template <class From, class To>
__device__ inline void change(const From* x, To* y, u64 len) {
    bool wide = lies_wide(x) && lies_wide(y);
    over<8>(len, [&](u64 first, u32 count) {
        Eight some;
        some.read(x + first, count, wide, 0.0f);
        some.write(y + first, count, wide);
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(to_, )(const float* x, u16* y, u64 len) {
    change(x, (Stored*)y, len);
}

extern "C" __global__ void __launch_bounds__(256) NAME(from_, )(const u16* x, float* y, u64 len) {
    change((const Stored*)x, y, len);
}
