// to_bf16, to_f16: f32 to halves, to the nearest, ties to even; NaN stays NaN.   from_bf16, from_f16: exact.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know which copy is the master.

extern "C" __global__ void __launch_bounds__(256) NAME(to_, )(const float* x, u16* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = (u16)as_halves(x[i], 0.0f);
}

extern "C" __global__ void __launch_bounds__(256) NAME(from_, )(const u16* x, float* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = from_half(x[i]);
}
