// relu: y = max(x, 0), NaN stays NaN.   relu_gradient: d = y > 0 ? d : 0, in place.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) NAME(relu_, )(const Stored* x, Stored* y, u64 len) {
    each(x, y, len, [](float v) { return activate(v, ACTIVATION_RELU); });
}

extern "C" __global__ void __launch_bounds__(256) NAME(relu_gradient_, )(const Stored* y, Stored* d, u64 len) {
    each(y, d, d, len, [](float y, float d) { return y > 0.0f ? d : 0.0f; });
}
