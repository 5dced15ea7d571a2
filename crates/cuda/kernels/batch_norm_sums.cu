// batch_norm_statistics: from the runs' means and squares to `saved` and `sums`.
// batch_norm_gradient_sums: dbias and dgain from the runs' sums.
//
// Launch: one thread a channel, blocks of 256. Order: from the first run to the last, in f64.
// Does not know the values.

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
