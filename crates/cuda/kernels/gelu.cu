// gelu: y = x Phi(x).   gelu_gradient: d = d (Phi(x) + x phi(x)), in place.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone, with the CPU's bits.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) gelu(const float* x, float* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float density;
        y[i] = x[i] * normal(x[i], density);
    }
}

extern "C" __global__ void __launch_bounds__(256) gelu_gradient(const float* x, float* d, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float density;
        float distribution = normal(x[i], density);
        d[i] = d[i] * fmaf(x[i], density, distribution);
    }
}
