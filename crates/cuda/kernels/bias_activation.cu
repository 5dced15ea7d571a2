// bias_activation: y = act(y + bias), in place, after a product by a library.
//
// `y` has channels, each of `area` elements, again and again: area 1 for rows of a product, an image's area for planes of
// a convolution. Without a bias (null) only the activation is applied.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know what made the sums.

extern "C" __global__ void __launch_bounds__(256) bias_activation(
    const float* bias, float* y, u64 len, u32 channels, u32 area, u32 activation) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float sum = bias ? y[i] + bias[i / area % channels] : y[i];
        y[i] = activate(sum, activation);
    }
}
