// bias_activation: y = act(y + bias), in place, after a convolution by a library.
//
// `y` has channels, each of `area` elements, again and again: area 1 for rows of a product, an image's area for planes of
// a convolution. Without a bias (null) only the activation is applied.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know what made the sums.

extern "C" __global__ void __launch_bounds__(256) NAME(bias_activation_, )(
    const float* bias, Stored* y, u64 len, u32 channels, u32 area, u32 activation) {
    // A division of 32 bits takes a fraction of the time of one of 64.
    bool is_short = len >> 32 == 0;
    for (u64 i = first_element(); i < len; i += next_element()) {
        u32 channel = is_short ? (u32)i / area % channels : (u32)(i / area % channels);
        float sum = bias ? y[i] + bias[channel] : (float)y[i];
        y[i] = activate(sum, activation);
    }
}
