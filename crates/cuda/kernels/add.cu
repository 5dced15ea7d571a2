// add: y = a + b.   add_to: y += x, the addition of the reduction tree.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone: one f32 addition, the
// same bits as on any other device. Does not know which buffers are gradients.

extern "C" __global__ void __launch_bounds__(256) NAME(add_, )(const Stored* a, const Stored* b, Stored* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = a[i] + b[i];
}

extern "C" __global__ void __launch_bounds__(256) NAME(add_to_, )(const Stored* x, Stored* y, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = y[i] + x[i];
}
