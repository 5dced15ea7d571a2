// gelu: y = x Phi(x).   gelu_gradient: d = d (Phi(x) + x phi(x)), in place.
// gelu_tanh: y = x s, s = (1 + tanh u) / 2.   gelu_tanh_gradient: d = d (s + x s (1 - s) 2 u'), in place.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone, in f32 with the CPU's bits.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_, )(const Stored* x, Stored* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        y[i] = exact_gelu(x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_gradient_, )(const Stored* x, Stored* d, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        d[i] = d[i] * slope_of_gelu(x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_tanh_, )(const Stored* x, Stored* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        y[i] = tanh_gelu(x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(gelu_tanh_gradient_, )(const Stored* x, Stored* d, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        d[i] = d[i] * slope_of_tanh_gelu(x[i]);
    }
}
