// The shape of a convolution, as all kernels of convolutions are given it, and the operands that they share.
//
// This file does not know what a sum is for.

struct Conv2d {
    u32 images, channels, height, width;
    u32 outputs, kernel_height, kernel_width;
    u32 stride_height, stride_width, padding_height, padding_width;
    u32 out_height, out_width;

    __device__ u32 area() const { return height * width; }
    __device__ u32 out_area() const { return out_height * out_width; }
    __device__ u32 window() const { return kernel_height * kernel_width; }
    __device__ u32 terms() const { return channels * window(); }
};

// A matrix with contiguous rows, `along` elements each, zero from row `rows` on.
struct RowMajor {
    struct Line {
        const float* start;
    };
    const float* x;
    u32 rows, along;
    static constexpr bool along_k = true;
    __device__ Line line(u32 row) const { return Line{row < rows ? x + (u64)row * along : nullptr}; }
    __device__ float at(const Line& line, u32 k) const { return line.start ? line.start[k] : 0.0f; }
};

// The element of image `image` at (`channel`, `y`, `x`), zero outside it: negative coordinates wrap to huge ones.
__device__ inline float pixel(const Conv2d& shape, const float* x, u32 image, u32 channel, u32 row, u32 column) {
    if (row >= shape.height || column >= shape.width) return 0.0f;
    return x[((u64)(image * shape.channels + channel) * shape.height + row) * shape.width + column];
}
