// add: y = a + b.   add_to: y += x, the addition of the reduction tree.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone: one f32
// addition, the same bits as on any other device. Does not know which buffers are gradients.

extern "C" __global__ void __launch_bounds__(256) NAME(add_, )(const Stored* a, const Stored* b, Stored* y, u64 len) {
    each(a, b, y, len, [](float a, float b) { return a + b; });
}

extern "C" __global__ void __launch_bounds__(256) NAME(add_to_, )(const Stored* x, Stored* y, u64 len) {
    each(y, x, y, len, [](float y, float x) { return y + x; });
}
