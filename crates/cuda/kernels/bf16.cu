// to_bf16: f32 to bf16, to the nearest, ties to even; NaN stays NaN.   from_bf16: exact.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know which copy is the master.

extern "C" __global__ void __launch_bounds__(256) to_bf16(const float* x, u16* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        u32 bits = __float_as_uint(x[i]);
        bool broken = (bits & 0x7fffffffu) > 0x7f800000u;
        u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        y[i] = (u16)(broken ? (bits >> 16) | 0x40u : rounded);
    }
}

extern "C" __global__ void __launch_bounds__(256) from_bf16(const u16* x, float* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = __uint_as_float((u32)x[i] << 16);
}
