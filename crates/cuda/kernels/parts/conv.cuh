// The shape of a convolution, as all kernels of convolutions are given it, their operands, and what they do with a tile:
// over images (`Conv2d`: height, width) and over volumes (`Conv3d`: depth, height, width).
//
// This file does not know which tile stands before it, nor in which order that sums.

// A number for each axis, the last one apart: the sides of a box, or a place in one.
template <u32 N>
struct Axes {
    Axes<N - 1> outer;
    u32 last;

    // Elements of a box.
    __device__ u32 box() const { return outer.box() * last; }
    // The place of element `index` of a box.
    __device__ Axes place(u32 index) const { return {outer.place(index / last), index % last}; }
    // Whether a place is in a box: negative coordinates wrap to huge ones.
    __device__ bool has(const Axes& place) const { return outer.has(place.outer) && place.last < last; }
    // The element at a place of box `number` of many.
    __device__ u64 element(u32 number, const Axes& place) const {
        return outer.element(number, place.outer) * last + place.last;
    }

    __device__ Axes operator+(const Axes& b) const { return {outer + b.outer, last + b.last}; }
    __device__ Axes operator-(const Axes& b) const { return {outer - b.outer, last - b.last}; }
    __device__ Axes operator*(const Axes& b) const { return {outer * b.outer, last * b.last}; }
    __device__ Axes operator/(const Axes& b) const { return {outer / b.outer, last / b.last}; }
    // Zero if a place is a whole number of such steps from the first.
    __device__ u32 rest(const Axes& steps) const { return outer.rest(steps.outer) | last % steps.last; }
};

template <>
struct Axes<1> {
    u32 last;

    __device__ u32 box() const { return last; }
    __device__ Axes place(u32 index) const { return {index}; }
    __device__ bool has(const Axes& place) const { return place.last < last; }
    __device__ u64 element(u32 number, const Axes& place) const { return (u64)number * last + place.last; }

    __device__ Axes operator+(const Axes& b) const { return {last + b.last}; }
    __device__ Axes operator-(const Axes& b) const { return {last - b.last}; }
    __device__ Axes operator*(const Axes& b) const { return {last * b.last}; }
    __device__ Axes operator/(const Axes& b) const { return {last / b.last}; }
    __device__ u32 rest(const Axes& steps) const { return last % steps.last; }
};

// A convolution over `N` axes.
template <u32 N>
struct Conv {
    u32 images, channels;
    Axes<N> size;
    u32 outputs;
    Axes<N> kernel, stride, padding, out;

    __device__ u32 area() const { return size.box(); }
    __device__ u32 out_area() const { return out.box(); }
    __device__ u32 window() const { return kernel.box(); }
    __device__ u32 terms() const { return channels * window(); }
};

typedef Conv<2> Conv2d;
typedef Conv<3> Conv3d;

// A matrix with contiguous rows, `along` elements each, zero from row `rows` on.
struct RowMajor {
    struct Line {
        const Stored* start;
    };
    const Stored* x;
    u32 rows, along;
    static constexpr bool along_k = true;
    __device__ Line line(u32 row) const { return Line{row < rows ? x + (u64)row * along : nullptr}; }
    __device__ float at(const Line& line, u32 k) const { return line.start ? line.start[k] : 0.0f; }
};

// The element of image `image` in `channel` at a place, zero outside it.
template <u32 N>
__device__ inline float pixel(const Conv<N>& shape, const Stored* x, u32 image, u32 channel, const Axes<N>& place) {
    if (!shape.size.has(place)) return 0.0f;
    return x[shape.size.element(image * shape.channels + channel, place)];
}

// A patch matrix: column `cell` of image `cell / out_area`, K over channel and place in the kernel.
template <u32 N>
struct Patches {
    struct Line {
        u32 image;
        Axes<N> corner;
    };
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = false;
    __device__ Line line(u32 cell) const {
        Axes<N> place = shape.out.place(cell % shape.out_area());
        return Line{cell / shape.out_area(), place * shape.stride - shape.padding};
    }
    __device__ float at(const Line& line, u32 k) const {
        if (line.image >= shape.images) return 0.0f;
        Axes<N> place = shape.kernel.place(k % shape.window());
        return pixel(shape, x, line.image, k / shape.window(), line.corner + place);
    }
};

template <u32 N>
__device__ inline void convolve(
    TileRoom& room, const Stored* x, const Stored* w, const float* bias, Stored* y, const Conv<N>& shape, u32 activation) {
    u32 cells = shape.images * shape.out_area();
    u32 across = parts_of(cells, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    RowMajor kernels = {w, shape.outputs, shape.terms()};
    Patches<N> patches = {shape, x};
    tile_product(room, kernels, patches, row, column, 0, shape.terms(), total);
    each_result(total, row, shape.outputs, column, cells, [=](u32 output, u32 cell, float sum) {
        u32 image = cell / shape.out_area(), place = cell % shape.out_area();
        sum = bias ? sum + bias[output] : sum;
        y[(u64)(image * shape.outputs + output) * shape.out_area() + place] = activate(sum, activation);
    });
}

// The kernels of one input channel, turned: their last place comes first.
template <u32 N>
struct TurnedKernels {
    struct Line {
        u32 channel;
    };
    Conv<N> shape;
    const Stored* w;
    static constexpr bool along_k = false;
    __device__ Line line(u32 channel) const { return Line{channel}; }
    __device__ float at(const Line& line, u32 k) const {
        if (line.channel >= shape.channels) return 0.0f;
        u32 output = k / shape.window(), place = shape.window() - 1 - k % shape.window();
        return w[(u64)(output * shape.channels + line.channel) * shape.window() + place];
    }
};

// The gradients of outputs that used an element: column is an element of an image.
template <u32 N>
struct Users {
    struct Line {
        u32 image;
        Axes<N> place;
    };
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = false;
    __device__ Line line(u32 element) const {
        u32 place = element % shape.area();
        return Line{element / shape.area(), shape.size.place(place)};
    }
    __device__ float at(const Line& line, u32 k) const {
        if (line.image >= shape.images) return 0.0f;
        u32 output = k / shape.window(), turned = shape.window() - 1 - k % shape.window();
        // Before the first window the difference wraps, and the quotient is beyond the last.
        Axes<N> place = line.place + shape.padding - shape.kernel.place(turned);
        if (place.rest(shape.stride) != 0) return 0.0f;
        place = place / shape.stride;
        if (!shape.out.has(place)) return 0.0f;
        return dy[shape.out.element(line.image * shape.outputs + output, place)];
    }
};

// Where `x` is there, it is what a ReLU gave to be convolved, and what that does to the gradient is done too.
template <u32 N>
__device__ inline void input_gradient(
    TileRoom& room, const Stored* w, const Stored* dy, const Stored* x, Stored* dx, const Conv<N>& shape) {
    u32 elements = shape.images * shape.area();
    u32 across = parts_of(elements, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    TurnedKernels<N> kernels = {shape, w};
    Users<N> users = {shape, dy};
    tile_product(room, kernels, users, row, column, 0, shape.outputs * shape.window(), total);
    each_result(total, row, shape.channels, column, elements, [=](u32 channel, u32 element, float sum) {
        u32 image = element / shape.area(), place = element % shape.area();
        u64 at = (u64)(image * shape.channels + channel) * shape.area() + place;
        dx[at] = !x || x[at] > 0.0f ? sum : 0.0f;
    });
}

// dy of one output channel over the cells of all images.
template <u32 N>
struct Outputs {
    struct Line {
        u32 output;
    };
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = true;
    __device__ Line line(u32 output) const { return Line{output}; }
    __device__ float at(const Line& line, u32 cell) const {
        if (line.output >= shape.outputs) return 0.0f;
        u32 image = cell / shape.out_area();
        return dy[(u64)(image * shape.outputs + line.output) * shape.out_area() + cell % shape.out_area()];
    }
};

// The elements that one place of a kernel meets over the cells of all images.
template <u32 N>
struct Met {
    struct Line {
        u32 channel;
        Axes<N> first;
    };
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = true;
    __device__ Line line(u32 term) const {
        u32 place = term % shape.window();
        return Line{term / shape.window(), shape.kernel.place(place) - shape.padding};
    }
    __device__ float at(const Line& line, u32 cell) const {
        if (line.channel >= shape.channels) return 0.0f;
        Axes<N> place = shape.out.place(cell % shape.out_area());
        return pixel(shape, x, cell / shape.out_area(), line.channel, line.first + place * shape.stride);
    }
};

template <u32 N>
__device__ inline void weight_gradient(
    TileRoom& room, const Stored* x, const Stored* dy, float* parts, const Conv<N>& shape, u32 splits) {
    u32 cells = shape.images * shape.out_area();
    u32 each = parts_of(parts_of(cells, splits), DEPTH) * DEPTH;
    u32 down = parts_of(shape.outputs, TILE), across = parts_of(shape.terms(), TILE);
    u32 split = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
    u32 row = tile / across * TILE, column = tile % across * TILE;
    u32 from = least(cells, split * each), to = least(cells, from + each);
    TileSums total;
    Outputs<N> outputs = {shape, dy};
    Met<N> met = {shape, x};
    tile_product(room, outputs, met, row, column, from, to, total);
    parts += (u64)split * shape.outputs * shape.terms();
    each_result(total, row, shape.outputs, column, shape.terms(), [=](u32 output, u32 term, float sum) {
        parts[(u64)output * shape.terms() + term] = sum;
    });
}
