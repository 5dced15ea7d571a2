// unit: y = x / max(|x|, least), of which `squares` has the square of the norm.   combine: y = a x + b y; where b is 0, y
// is not read.
//
// Plain products and sums without a fused multiply-add: in f32 the CPU's bits.
// Launch: any grid, 256 threads; a loop over elements, in combine 16 bytes at a time. Order: none, every element stands
// alone.
// Does not know matrices.

extern "C" __global__ void __launch_bounds__(256) NAME(unit_, )(
    const float* x, const double* squares, Stored* y, u64 len, float least) {
    double norm = sqrt(squares[0]);
    float by = (float)(1.0 / (norm > (double)least ? norm : (double)least));
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = x[i] * by;
}

extern "C" __global__ void __launch_bounds__(256) NAME(combine_, )(const Stored* x, Stored* y, u64 len, float a, float b) {
    if (b == 0.0f) {
        each(x, y, len, [&](float x) { return a * x; });
    } else {
        each(x, y, y, len, [&](float x, float y) { return a * x + b * y; });
    }
}
