// sigmoid: y = 1 / (1 + e^-x).   sigmoid_gradient: d = d y (1 - y), in place.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone, in f32
// with the CPU's bits.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) NAME(sigmoid_, )(const Stored* x, Stored* y, u64 len) {
    each(x, y, len, sigmoid);
}

extern "C" __global__ void __launch_bounds__(256) NAME(sigmoid_gradient_, )(const Stored* y, Stored* d, u64 len) {
    each(y, d, d, len, [](float y, float d) { return d * (y * (1.0f - y)); });
}
