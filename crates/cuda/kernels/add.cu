// add: y = a + b.   add_to: y += x, the addition of the reduction tree.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone: one f32 addition, the
// same bits as on any other device. Does not know which buffers are gradients.

extern "C" __global__ void __launch_bounds__(256) add(const float* a, const float* b, float* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = a[i] + b[i];
}

extern "C" __global__ void __launch_bounds__(256) add_to(const float* x, float* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = y[i] + x[i];
}
