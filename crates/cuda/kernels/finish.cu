// finish: y[rows, width] = act(sum + bias[width]) + plus, the sum that of `count` matrices of sums one behind the other: of
// the ranges into which a product cut its K. Rows of y and plus lie `pitch` apart; bias and plus may be null.
//
// Order: the matrices from the first to the last, then the bias, the activation, plus; then it is rounded.
// Launch: any grid, 256 threads; a loop over elements. Does not know the product.

extern "C" __global__ void __launch_bounds__(256) NAME(finish_, )(
    const float* parts, const float* bias, const Stored* plus, Stored* y, u64 len, u32 count, u32 width, u32 pitch,
    u32 activation) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        u32 column = (u32)(i % width);
        u64 at = i / width * pitch + column;
        float sum = parts[i];
        // In order, but with several loads on their way.
#pragma unroll 16
        for (u32 part = 1; part < count; part++) sum = sum + parts[part * len + i];
        sum = activate(bias ? sum + bias[column] : sum, activation);
        y[at] = plus ? sum + plus[at] : sum;
    }
}
