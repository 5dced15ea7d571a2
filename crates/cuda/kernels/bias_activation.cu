// bias_activation: y = act(y + bias), in place, after a convolution by a library.
//
// `y` has channels, each of `area` elements, again and again: area 1 for rows of a product, an image's area for planes of
// a convolution. Without a bias (null) only the activation is applied.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone.
// Does not know what made the sums.

extern "C" __global__ void __launch_bounds__(256) NAME(bias_activation_, )(
    const float* bias, Stored* y, u64 len, u32 channels, u32 area, u32 activation) {
    bool wide = lies_wide(y);
    auto bias_of = [&](u32 channel) { return bias[channel]; };
    over_channels(len, channels, area, [&](u64 first, u32 count, const Place& place) {
        Wide<Stored> sums;
        sums.read(y + first, count, wide, 0.0f);
        if (bias) with_channels(place, channels, area, bias_of, [&](u32 i, float bias) { sums.v[i] = sums.v[i] + bias; });
        for (u32 i = 0; i < sums.COUNT; i++) sums.v[i] = activate(sums.v[i], activation);
        sums.write(y + first, count, wide);
    });
}
