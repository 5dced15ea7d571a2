// gelu: y = x Phi(x).   gelu_gradient: d = d (Phi(x) + x phi(x)), in place.
// gelu_tanh: y = x s, s = (1 + tanh u) / 2.   gelu_tanh_gradient: d = d (s + x s (1 - s) 2 u'), in place.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone, in f32
// with the CPU's bits.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_, )(const Stored* x, Stored* y, u64 len) {
    each(x, y, len, exact_gelu);
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_gradient_, )(const Stored* x, Stored* d, u64 len) {
    each(x, d, d, len, [](float x, float d) { return d * slope_of_gelu(x); });
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_tanh_, )(const Stored* x, Stored* y, u64 len) {
    each(x, y, len, tanh_gelu);
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_tanh_gradient_, )(const Stored* x, Stored* d, u64 len) {
    each(x, d, d, len, [](float x, float d) { return d * slope_of_tanh_gelu(x); });
}
