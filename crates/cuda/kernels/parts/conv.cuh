// The shape of a convolution, as all kernels of convolutions are given it, their operands, and what they do with a tile.
//
// This file does not know which tile stands before it, nor in which order that sums.

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

// A patch matrix: column `cell` of image `cell / out_area`, K over channel, kernel row and kernel column.
struct Patches {
    struct Line {
        u32 image, row, column;
    };
    Conv2d shape;
    const float* x;
    static constexpr bool along_k = false;
    __device__ Line line(u32 cell) const {
        u32 place = cell % shape.out_area();
        Line line = {cell / shape.out_area(), place / shape.out_width * shape.stride_height - shape.padding_height,
                     place % shape.out_width * shape.stride_width - shape.padding_width};
        return line;
    }
    __device__ float at(const Line& line, u32 k) const {
        if (line.image >= shape.images) return 0.0f;
        u32 place = k % shape.window();
        return pixel(shape, x, line.image, k / shape.window(), line.row + place / shape.kernel_width,
                     line.column + place % shape.kernel_width);
    }
};

__device__ inline void convolve(
    TileRoom& room, const float* x, const float* w, const float* bias, float* y, const Conv2d& shape, u32 activation) {
    u32 cells = shape.images * shape.out_area();
    u32 across = parts_of(cells, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    RowMajor kernels = {w, shape.outputs, shape.terms()};
    Patches patches = {shape, x};
    tile_product(room, kernels, patches, row, column, 0, shape.terms(), total);
    each_result(total, row, shape.outputs, column, cells, [=](u32 output, u32 cell, float sum) {
        u32 image = cell / shape.out_area(), place = cell % shape.out_area();
        sum = bias ? sum + bias[output] : sum;
        y[(u64)(image * shape.outputs + output) * shape.out_area() + place] = activate(sum, activation);
    });
}

// The kernels of one input channel, turned by half a circle.
struct TurnedKernels {
    struct Line {
        u32 channel;
    };
    Conv2d shape;
    const float* w;
    static constexpr bool along_k = false;
    __device__ Line line(u32 channel) const { return Line{channel}; }
    __device__ float at(const Line& line, u32 k) const {
        if (line.channel >= shape.channels) return 0.0f;
        u32 output = k / shape.window(), place = shape.window() - 1 - k % shape.window();
        return w[(u64)(output * shape.channels + line.channel) * shape.window() + place];
    }
};

// The gradients of outputs that used an element: column is an element of an image.
struct Users {
    struct Line {
        u32 image, row, column;
    };
    Conv2d shape;
    const float* dy;
    static constexpr bool along_k = false;
    __device__ Line line(u32 element) const {
        u32 place = element % shape.area();
        return Line{element / shape.area(), place / shape.width, place % shape.width};
    }
    __device__ float at(const Line& line, u32 k) const {
        if (line.image >= shape.images) return 0.0f;
        u32 output = k / shape.window(), place = shape.window() - 1 - k % shape.window();
        // Before the first window the difference wraps, and the quotient is beyond the last.
        u32 row = line.row + shape.padding_height - place / shape.kernel_width;
        u32 column = line.column + shape.padding_width - place % shape.kernel_width;
        if (row % shape.stride_height != 0 || column % shape.stride_width != 0) return 0.0f;
        row /= shape.stride_height;
        column /= shape.stride_width;
        if (row >= shape.out_height || column >= shape.out_width) return 0.0f;
        return dy[(u64)(line.image * shape.outputs + output) * shape.out_area() + row * shape.out_width + column];
    }
};

__device__ inline void input_gradient(
    TileRoom& room, const float* w, const float* dy, float* dx, const Conv2d& shape) {
    u32 elements = shape.images * shape.area();
    u32 across = parts_of(elements, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    TurnedKernels kernels = {shape, w};
    Users users = {shape, dy};
    tile_product(room, kernels, users, row, column, 0, shape.outputs * shape.window(), total);
    each_result(total, row, shape.channels, column, elements, [=](u32 channel, u32 element, float sum) {
        u32 image = element / shape.area(), place = element % shape.area();
        dx[(u64)(image * shape.channels + channel) * shape.area() + place] = sum;
    });
}

// dy of one output channel over the cells of all images.
struct Outputs {
    struct Line {
        u32 output;
    };
    Conv2d shape;
    const float* dy;
    static constexpr bool along_k = true;
    __device__ Line line(u32 output) const { return Line{output}; }
    __device__ float at(const Line& line, u32 cell) const {
        if (line.output >= shape.outputs) return 0.0f;
        u32 image = cell / shape.out_area();
        return dy[(u64)(image * shape.outputs + line.output) * shape.out_area() + cell % shape.out_area()];
    }
};

// The elements that one place of a kernel meets over the cells of all images.
struct Met {
    struct Line {
        u32 channel, row, column;
    };
    Conv2d shape;
    const float* x;
    static constexpr bool along_k = true;
    __device__ Line line(u32 term) const {
        u32 place = term % shape.window();
        return Line{term / shape.window(), place / shape.kernel_width - shape.padding_height,
                    place % shape.kernel_width - shape.padding_width};
    }
    __device__ float at(const Line& line, u32 cell) const {
        if (line.channel >= shape.channels) return 0.0f;
        u32 place = cell % shape.out_area();
        return pixel(shape, x, cell / shape.out_area(), line.channel,
                     line.row + place / shape.out_width * shape.stride_height,
                     line.column + place % shape.out_width * shape.stride_width);
    }
};

__device__ inline void weight_gradient(
    TileRoom& room, const float* x, const float* dy, float* parts, const Conv2d& shape, u32 splits) {
    u32 cells = shape.images * shape.out_area();
    u32 each = parts_of(parts_of(cells, splits), DEPTH) * DEPTH;
    u32 down = parts_of(shape.outputs, TILE), across = parts_of(shape.terms(), TILE);
    u32 split = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
    u32 row = tile / across * TILE, column = tile % across * TILE;
    u32 from = least(cells, split * each), to = least(cells, from + each);
    TileSums total;
    Outputs outputs = {shape, dy};
    Met met = {shape, x};
    tile_product(room, outputs, met, row, column, from, to, total);
    parts += (u64)split * shape.outputs * shape.terms();
    each_result(total, row, shape.outputs, column, shape.terms(), [=](u32 output, u32 term, float sum) {
        parts[(u64)output * shape.terms() + term] = sum;
    });
}
