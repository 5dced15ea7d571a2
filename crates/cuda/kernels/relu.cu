// relu: y = max(x, 0), NaN stays NaN.   relu_gradient: d = y > 0 ? d : 0, in place.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know layers.

extern "C" __global__ void __launch_bounds__(256) NAME(relu_, )(const Stored* x, Stored* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = activate(x[i], ACTIVATION_RELU);
}

extern "C" __global__ void __launch_bounds__(256) NAME(relu_gradient_, )(const Stored* y, Stored* d, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) d[i] = y[i] > 0.0f ? d[i] : 0.0f;
}
