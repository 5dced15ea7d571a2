// Batch norm over x [images, channels, area], by the statistics of one micro-batch or by running ones, and its gradients.
//
// The values of a channel, image after image, are cut into runs of 4 096. Statistics in two stages: batch_norm_parts has
// the mean of a run, then its squares around that mean, in f64; batch_norm_statistics joins the runs. batch_norm applies
// them; batch_norm_by applies running ones. batch_norm_gradient_parts and batch_norm_gradient_sums give dbias and dgain;
// batch_norm_gradient gives dx.
//
// Order: thread i of a run adds values i, i + 256, ... in order (f32 in f64), then the threads as `sums` says, then the
// runs from the first to the last. Source: Chan, Golub and LeVeque, 1979, for joining means and squares of runs.
//
// Launch: parts channels x runs blocks of 256 threads; statistics and sums one thread a channel; batch_norm, batch_norm_by
// and batch_norm_gradient planes x ceil(area / 1024) blocks of 256 threads.
// Does not know running statistics beyond reading them; blending is `blend`.

const u32 RUN = 4096;

// Where value `i` of a channel lies.
__device__ inline u64 value_at(u64 i, u32 channel, u32 channels, u32 area) {
    return (i / area * channels + channel) * area + i % area;
}

// The values of a run: its first one and the one after its last.
struct Run {
    u64 start, end;
    __device__ Run(u32 run, u32 images, u32 area) {
        u64 all = (u64)images * area;
        start = (u64)run * RUN;
        end = all < start + RUN ? all : start + RUN;
    }
};

extern "C" __global__ void __launch_bounds__(256) batch_norm_parts(
    const float* x, double* parts, u32 images, u32 channels, u32 area) {
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

// saved [channels, 2]: mean and 1 / deviation. sums [2, channels]: images x mean, images x unbiased variance.
extern "C" __global__ void __launch_bounds__(256) batch_norm_statistics(
    const double* parts, float* saved, float* sums, u32 images, u32 channels, u32 area, float epsilon) {
    u32 channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    u32 runs = (u32)(((u64)images * area + RUN - 1) / RUN);
    double count = 0.0, mean = 0.0, squares = 0.0;
    for (u32 run = 0; run < runs; run++) {
        Run values(run, images, area);
        double more = (double)(values.end - values.start);
        double away = parts[((u64)run * channels + channel) * 2] - mean;
        double all = count + more;
        mean += away * more / all;
        squares += parts[((u64)run * channels + channel) * 2 + 1] + away * away * count * more / all;
        count = all;
    }
    saved[2 * channel] = (float)mean;
    saved[2 * channel + 1] = (float)(1.0 / sqrt(squares / count + (double)epsilon));
    sums[channel] = (float)((double)images * mean);
    sums[channels + channel] = (float)((double)images * (squares / (count - 1.0)));
}

// What 256 threads of a block do to up to 1 024 elements of one plane: y = (x - mean) * factor * gain + bias.
__device__ inline void scale_plane(
    const float* x, float* y, u32 area, u32 pieces, float mean, float slope, float bias) {
    u64 plane = blockIdx.x / pieces;
    u32 start = blockIdx.x % pieces * 1024;
    u32 end = least(area, start + 1024);
    for (u32 i = start + threadIdx.x; i < end; i += 256) {
        y[plane * area + i] = fmaf(x[plane * area + i] - mean, slope, bias);
    }
}

extern "C" __global__ void __launch_bounds__(256) batch_norm(
    const float* x, const float* gain, const float* bias, const float* saved, float* y, u32 channels, u32 area) {
    u32 pieces = parts_of(area, 1024);
    u32 c = blockIdx.x / pieces % channels;
    scale_plane(x, y, area, pieces, saved[2 * c], saved[2 * c + 1] * gain[c], bias[c]);
}

// running [2, channels]: means, then variances.
extern "C" __global__ void __launch_bounds__(256) batch_norm_by(
    const float* x, const float* gain, const float* bias, const float* running, float* y, u32 channels, u32 area,
    float epsilon) {
    u32 pieces = parts_of(area, 1024);
    u32 c = blockIdx.x / pieces % channels;
    float factor = (float)(1.0 / sqrt((double)running[channels + c] + (double)epsilon));
    scale_plane(x, y, area, pieces, running[c], factor * gain[c], bias[c]);
}

// [runs, channels, 2]: sums of dy, and of dy * xhat.
extern "C" __global__ void __launch_bounds__(256) batch_norm_gradient_parts(
    const float* x, const float* saved, const float* dy, double* parts, u32 images, u32 channels, u32 area) {
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

extern "C" __global__ void __launch_bounds__(256) batch_norm_gradient_sums(
    const double* parts, float* dgain, float* dbias, u32 runs, u32 channels) {
    u32 channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= channels) return;
    double along = 0.0, across = 0.0;
    for (u32 run = 0; run < runs; run++) {
        along += parts[((u64)run * channels + channel) * 2];
        across += parts[((u64)run * channels + channel) * 2 + 1];
    }
    dbias[channel] = (float)along;
    dgain[channel] = (float)across;
}

// dx = factor gain (dy - mean(dy) - xhat mean(dy xhat)).
extern "C" __global__ void __launch_bounds__(256) batch_norm_gradient(
    const float* x, const float* gain, const float* saved, const float* dgain, const float* dbias, const float* dy,
    float* dx, u32 images, u32 channels, u32 area) {
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
