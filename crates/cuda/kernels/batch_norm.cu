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
// Launch: parts channels x runs blocks of 256 threads; batch_norm, batch_norm_by and batch_norm_gradient planes x
// ceil(area / 1024) blocks of 256 threads.
// Does not know running statistics beyond reading them; blending is `blend`.

// Where value `i` of a channel lies.
__device__ inline u64 value_at(u64 i, u32 channel, u32 channels, u32 area) {
    return (i / area * channels + channel) * area + i % area;
}

extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_parts_, )(
    const Stored* x, double* parts, u32 images, u32 channels, u32 area) {
    __shared__ double room[8];
    u32 channel = blockIdx.x % channels, run = blockIdx.x / channels;
    Run values(run, images, area);
    double count = (double)(values.end - values.start);
    double sum = 0.0, squares = 0.0;
    for (u64 i = values.start + threadIdx.x; i < values.end; i += 256) sum += x[value_at(i, channel, channels, area)];
    double mean = across_block(sum, room, Plus()) / count;
    for (u64 i = values.start + threadIdx.x; i < values.end; i += 256) {
        double away = x[value_at(i, channel, channels, area)] - mean;
        squares += away * away;
    }
    squares = across_block(squares, room, Plus());
    if (threadIdx.x == 0) {
        parts[((u64)run * channels + channel) * 2] = mean;
        parts[((u64)run * channels + channel) * 2 + 1] = squares;
    }
}

// What 256 threads of a block do to up to 1 024 elements of one plane: y = (x - mean) * factor * gain + bias.
__device__ inline void scale_plane(
    const Stored* x, Stored* y, u32 area, u32 pieces, float mean, float slope, float bias) {
    u64 plane = blockIdx.x / pieces;
    u32 start = blockIdx.x % pieces * 1024;
    u32 end = least(area, start + 1024);
    for (u32 i = start + threadIdx.x; i < end; i += 256) {
        y[plane * area + i] = fmaf(x[plane * area + i] - mean, slope, bias);
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_, )(
    const Stored* x, const float* gain, const float* bias, const float* saved, Stored* y, u32 channels, u32 area) {
    u32 pieces = parts_of(area, 1024);
    u32 c = blockIdx.x / pieces % channels;
    scale_plane(x, y, area, pieces, saved[2 * c], saved[2 * c + 1] * gain[c], bias[c]);
}

// running [2, channels]: means, then variances.
extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_by_, )(
    const Stored* x, const float* gain, const float* bias, const float* running, Stored* y, u32 channels, u32 area,
    float epsilon) {
    u32 pieces = parts_of(area, 1024);
    u32 c = blockIdx.x / pieces % channels;
    float factor = (float)(1.0 / sqrt((double)running[channels + c] + (double)epsilon));
    scale_plane(x, y, area, pieces, running[c], factor * gain[c], bias[c]);
}

// [runs, channels, 2]: sums of dy, and of dy * xhat.
extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_gradient_parts_, )(
    const Stored* x, const float* saved, const Stored* dy, double* parts, u32 images, u32 channels, u32 area) {
    __shared__ double room[8];
    u32 channel = blockIdx.x % channels, run = blockIdx.x / channels;
    Run values(run, images, area);
    float mean = saved[2 * channel], factor = saved[2 * channel + 1];
    double along = 0.0, across = 0.0;
    for (u64 i = values.start + threadIdx.x; i < values.end; i += 256) {
        u64 at = value_at(i, channel, channels, area);
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

// dx = factor gain (dy - mean(dy) - xhat mean(dy xhat)).
extern "C" __global__ void __launch_bounds__(256) NAME(batch_norm_gradient_, )(
    const Stored* x, const float* gain, const float* saved, const float* dgain, const float* dbias, const Stored* dy,
    Stored* dx, u32 images, u32 channels, u32 area) {
    u32 pieces = parts_of(area, 1024);
    u64 plane = blockIdx.x / pieces;
    u32 c = (u32)(plane % channels);
    u32 start = blockIdx.x % pieces * 1024;
    u32 end = least(area, start + 1024);
    float mean = saved[2 * c], factor = saved[2 * c + 1], slope = saved[2 * c + 1] * gain[c];
    float count = (float)((u64)images * area);
    float along = dbias[c] / count, across = dgain[c] / count;
    for (u32 i = start + threadIdx.x; i < end; i += 256) {
        u64 at = plane * area + i;
        dx[at] = slope * (dy[at] - along - (x[at] - mean) * factor * across);
    }
}
