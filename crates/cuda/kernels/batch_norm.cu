// Batch norm over x [images, channels, area], by the statistics of one micro-batch or by running ones, and its gradients.
//
// The values of a channel, image after image, are cut into runs of 4 096. Statistics in two stages: batch_norm_parts has
// the mean of a run, then its squares around that mean, in f64; `batch_norm_sums` joins the runs. batch_norm applies them;
// batch_norm_by applies running ones. batch_norm_gradient_parts, and the sums behind it, give dbias and dgain;
// batch_norm_gradient gives dx.
//
// Order: thread i of a run adds values i, i + 256, ... in order (f32 in f64), then the threads as `sums` says, then the
// runs from the first to the last. Source: Chan, Golub and LeVeque, 1979, for joining means and squares of runs.
//
// Launch: parts channels x runs blocks of 256 threads; batch_norm, batch_norm_by and batch_norm_gradient any grid, 256
// threads; a loop over elements, 16 bytes at a time.
// Does not know running statistics beyond reading them; blending is `blend`.

extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_parts_, )(
    const Stored* x, double* parts, u32 images, u32 channels, u32 area) {
    __shared__ double room[8];
    u32 channel = blockIdx.x % channels, run = blockIdx.x / channels;
    Run values(run, images, area);
    Walk first = values.walk(channel, channels, area), again = first;
    u32 own = values.own();
    double count = (double)(values.end - values.start);
    double sum = 0.0, squares = 0.0;
    // In order, but with several loads on their way.
#pragma unroll 8
    for (u32 i = 0; i < own; i++) sum += x[first.next()];
    double mean = across_block(sum, room, Plus()) / count;
#pragma unroll 8
    for (u32 i = 0; i < own; i++) {
        double away = x[again.next()] - mean;
        squares += away * away;
    }
    squares = across_block(squares, room, Plus());
    if (threadIdx.x == 0) {
        parts[((u64)run * channels + channel) * 2] = mean;
        parts[((u64)run * channels + channel) * 2 + 1] = squares;
    }
}

// What one channel's values are scaled by: y = (x - mean) * slope + bias.
struct Scale {
    float mean, slope, bias;
};

template <class F>
__device__ inline void scale(const Stored* x, Stored* y, u64 len, u32 channels, u32 area, F scale_of) {
    bool wide = lies_wide(x) && lies_wide(y);
    over_channels(len, channels, area, [&](u64 first, u32 count, const Place& place) {
        Wide<Stored> some;
        some.read(x + first, count, wide, 0.0f);
        with_channels(place, channels, area, scale_of, [&](u32 i, const Scale& by) {
            some.v[i] = fmaf(some.v[i] - by.mean, by.slope, by.bias);
        });
        some.write(y + first, count, wide);
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_, )(
    const Stored* x, const float* gain, const float* bias, const float* saved, Stored* y, u64 len, u32 channels, u32 area) {
    scale(x, y, len, channels, area, [&](u32 c) -> Scale { return {saved[2 * c], saved[2 * c + 1] * gain[c], bias[c]}; });
}

// running [2, channels]: means, then variances.
extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_by_, )(
    const Stored* x, const float* gain, const float* bias, const float* running, Stored* y, u64 len, u32 channels, u32 area,
    float epsilon) {
    scale(x, y, len, channels, area, [&](u32 c) -> Scale {
        float factor = (float)(1.0 / sqrt((double)running[channels + c] + (double)epsilon));
        return {running[c], factor * gain[c], bias[c]};
    });
}

// [runs, channels, 2]: sums of dy, and of dy * xhat.
extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_gradient_parts_, )(
    const Stored* x, const float* saved, const Stored* dy, double* parts, u32 images, u32 channels, u32 area) {
    __shared__ double room[8];
    u32 channel = blockIdx.x % channels, run = blockIdx.x / channels;
    Run values(run, images, area);
    float mean = saved[2 * channel], factor = saved[2 * channel + 1];
    double along = 0.0, across = 0.0;
    Walk walk = values.walk(channel, channels, area);
    u32 own = values.own();
#pragma unroll 4
    for (u32 i = 0; i < own; i++) {
        u64 at = walk.next();
        along += dy[at];
        across += (double)dy[at] * ((x[at] - mean) * factor);
    }
    along = across_block(along, room, Plus());
    across = across_block(across, room, Plus());
    if (threadIdx.x == 0) {
        parts[((u64)run * channels + channel) * 2] = along;
        parts[((u64)run * channels + channel) * 2 + 1] = across;
    }
}

// What dx = factor gain (dy - mean(dy) - xhat mean(dy xhat)) has of a channel.
struct Centered {
    float mean, factor, slope, along, across;
};

extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_gradient_, )(
    const Stored* x, const float* gain, const float* saved, const float* dgain, const float* dbias, const Stored* dy,
    Stored* dx, u64 len, u32 images, u32 channels, u32 area) {
    bool wide = lies_wide(x) && lies_wide(dy) && lies_wide(dx);
    float count = (float)((u64)images * area);
    auto of_channel = [&](u32 c) -> Centered {
        return {saved[2 * c], saved[2 * c + 1], saved[2 * c + 1] * gain[c], dbias[c] / count, dgain[c] / count};
    };
    over_channels(len, channels, area, [&](u64 first, u32 count, const Place& place) {
        Wide<Stored> some, d;
        Wide<Stored>::read_both(some, x + first, d, dy + first, count, wide);
        with_channels(place, channels, area, of_channel, [&](u32 i, const Centered& own) {
            d.v[i] = own.slope * (d.v[i] - own.along - (some.v[i] - own.mean) * own.factor * own.across);
        });
        d.write(dx + first, count, wide);
    });
}
