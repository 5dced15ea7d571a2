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
    // The place of element `index` of a box, and the index of a place.
    __device__ Axes place(u32 index) const { return {outer.place(index / last), index % last}; }
    __device__ u32 index(const Axes& place) const { return outer.index(place.outer) * last + place.last; }
    // Whether a place is in a box: negative coordinates wrap to huge ones.
    __device__ bool has(const Axes& place) const { return outer.has(place.outer) & (place.last < last); }
    // The element at a place of box `number` of many.
    __device__ u64 element(u32 number, const Axes& place) const { return (u64)number * box() + index(place); }
    // A place of a box goes as far on as `step` is from the first, and `more`: how many boxes further that is.
    __device__ u32 go(const Axes& step, const Axes& box, u32 more) {
        last += step.last + more;
        u32 over = last >= box.last;
        last -= over ? box.last : 0;
        return outer.go(step.outer, box.outer, over);
    }

    __device__ Axes operator+(const Axes& b) const { return {outer + b.outer, last + b.last}; }
    __device__ Axes operator-(const Axes& b) const { return {outer - b.outer, last - b.last}; }
    __device__ Axes operator-(u32 b) const { return {outer - b, last - b}; }
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
    __device__ u32 index(const Axes& place) const { return place.last; }
    __device__ bool has(const Axes& place) const { return place.last < last; }
    __device__ u64 element(u32 number, const Axes& place) const { return (u64)number * last + place.last; }
    __device__ u32 go(const Axes& step, const Axes& box, u32 more) {
        last += step.last + more;
        u32 over = last >= box.last;
        last -= over ? box.last : 0;
        return over;
    }

    __device__ Axes operator+(const Axes& b) const { return {last + b.last}; }
    __device__ Axes operator-(const Axes& b) const { return {last - b.last}; }
    __device__ Axes operator-(u32 b) const { return {last - b}; }
    __device__ Axes operator*(const Axes& b) const { return {last * b.last}; }
    __device__ Axes operator/(const Axes& b) const { return {last / b.last}; }
    __device__ u32 rest(const Axes& steps) const { return last % steps.last; }
};

// A place of one of many boxes: where a thread is in K. It goes on without a division.
template <u32 N>
struct Numbered {
    u32 number;
    Axes<N> place;

    __device__ Numbered(u32 index, const Axes<N>& box) : number(index / box.box()), place(box.place(index % box.box())) {}
    __device__ void go(const Numbered& step, const Axes<N>& box) { number += step.number + place.go(step.place, box, 0); }
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

// What lies there, or zero where nothing is wanted: one load without a branch, and nothing is done to it here, so that several are
// on their way.
__device__ inline Stored element(const Stored* at, bool wanted) {
    Stored v = {};
    if (wanted) v = *at;
    return v;
}

// A matrix with contiguous rows, `along` elements each, zero from row `rows` on.
struct RowMajor {
    typedef u32 Term;
    struct Line {
        const Stored* start;
    };
    const Stored* x;
    u32 rows, along;
    static constexpr bool along_k = true;
    __device__ Line line(u32 row) const { return Line{row < rows ? x + (u64)row * along : nullptr}; }
    __device__ Term term(u32 k) const { return k; }
    __device__ void go(Term& term, Term step) const { term += step; }
    __device__ Stored at(const Line& line, Term k, bool wanted) const {
        return element(line.start + k, wanted & (line.start != 0));
    }
};

// A patch matrix: a column is a cell of an image, K is channel, then place in the kernel.
template <u32 N>
struct Patches {
    typedef Numbered<N> Term;
    struct Line {
        u32 image;
        Axes<N> corner;
    };
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = false;
    __device__ Line line(u32 index) const {
        Numbered<N> cell(index, shape.out);
        return Line{cell.number, cell.place * shape.stride - shape.padding};
    }
    __device__ Term term(u32 k) const { return Term(k, shape.kernel); }
    __device__ void go(Term& term, const Term& step) const { term.go(step, shape.kernel); }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        Axes<N> place = line.corner + term.place;
        u64 at = shape.size.element(line.image * shape.channels + term.number, place);
        return element(x + at, wanted & (line.image < shape.images) & shape.size.has(place));
    }
};

template <u32 N>
__device__ inline void convolve(
    TileRoom& room, const Stored* x, const Stored* w, const float* bias, Stored* y, const Conv<N>& shape, u32 activation) {
    u32 cells = shape.images * shape.out_area(), area = shape.out_area();
    u32 across = parts_of(cells, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    RowMajor kernels = {w, shape.outputs, shape.terms()};
    Patches<N> patches = {shape, x};
    tile_product(room, kernels, patches, row, column, 0, shape.terms(), total);
    auto place_of = [&](u32 cell) { return (u64)(cell / area) * shape.outputs * area + cell % area; };
    auto bias_of = [&](u32 output, u64) { return bias ? bias[output] : 0.0f; };
    auto put = [&](u32 output, u64 place, float sum, float its_bias) {
        y[place + (u64)output * area] = activate(bias ? sum + its_bias : sum, activation);
    };
    each_result(room, total, row, shape.outputs, column, cells, place_of, bias_of, put);
}

// The kernels of one input channel, turned: their last place comes first.
template <u32 N>
struct TurnedKernels {
    typedef Numbered<1> Term;
    struct Line {
        u32 channel;
    };
    Conv<N> shape;
    const Stored* w;
    static constexpr bool along_k = false;
    __device__ Line line(u32 channel) const { return Line{channel}; }
    __device__ Term term(u32 k) const { return Term(k, {shape.window()}); }
    __device__ void go(Term& term, const Term& step) const { term.go(step, {shape.window()}); }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        u32 place = shape.window() - 1 - term.place.last;
        u64 at = (u64)(term.number * shape.channels + line.channel) * shape.window() + place;
        return element(w + at, wanted & (line.channel < shape.channels));
    }
};

// The gradients of outputs that used an element: a column is an element of an image, K is output channel, then place in the
// turned kernel. `DENSE` of windows that are one apart.
template <u32 N, bool DENSE>
struct Users {
    typedef Numbered<N> Term;
    struct Line {
        u32 image;
        Axes<N> corner;
    };
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = false;
    __device__ Line line(u32 index) const {
        Numbered<N> element(index, shape.size);
        return Line{element.number, element.place + shape.padding - (shape.kernel - 1)};
    }
    __device__ Term term(u32 k) const { return Term(k, shape.kernel); }
    __device__ void go(Term& term, const Term& step) const { term.go(step, shape.kernel); }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        // Before the first window the place wraps, and the quotient is beyond the last.
        Axes<N> place = line.corner + term.place;
        if (!DENSE) {
            wanted &= place.rest(shape.stride) == 0;
            place = place / shape.stride;
        }
        u64 at = shape.out.element(line.image * shape.outputs + term.number, place);
        return element(dy + at, wanted & (line.image < shape.images) & shape.out.has(place));
    }
};

// Where `x` is there, it is what a ReLU gave to be convolved, and what that does to the gradient is done too.
template <u32 N>
__device__ inline void input_gradient(
    TileRoom& room, const Stored* w, const Stored* dy, const Stored* x, Stored* dx, const Conv<N>& shape) {
    u32 elements = shape.images * shape.area(), area = shape.area();
    u32 across = parts_of(elements, TILE);
    u32 row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    TileSums total;
    TurnedKernels<N> kernels = {shape, w};
    u32 depth = shape.outputs * shape.window();
    if (shape.stride.box() == 1) {
        tile_product(room, kernels, Users<N, true>{shape, dy}, row, column, 0, depth, total);
    } else {
        tile_product(room, kernels, Users<N, false>{shape, dy}, row, column, 0, depth, total);
    }
    auto place_of = [&](u32 element) { return (u64)(element / area) * shape.channels * area + element % area; };
    auto convolved = [&](u32 channel, u64 place) { return element(x + place + (u64)channel * area, x != 0); };
    auto put = [&](u32 channel, u64 place, float sum, Stored own) {
        dx[place + (u64)channel * area] = !x || own > 0.0f ? sum : 0.0f;
    };
    each_result(room, total, row, shape.channels, column, elements, place_of, convolved, put);
}

// dy of one output channel: K is the cells of all images.
template <u32 N>
struct Outputs {
    typedef Numbered<1> Term;
    struct Line {
        u32 output;
    };
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = true;
    __device__ Line line(u32 output) const { return Line{output}; }
    __device__ Term term(u32 cell) const { return Term(cell, {shape.out_area()}); }
    __device__ void go(Term& term, const Term& step) const { term.go(step, {shape.out_area()}); }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        u64 at = (u64)(term.number * shape.outputs + line.output) * shape.out_area() + term.place.last;
        return element(dy + at, wanted & (line.output < shape.outputs));
    }
};

// The elements that one place of a kernel meets: K is the cells of all images.
template <u32 N>
struct Met {
    typedef Numbered<N> Term;
    struct Line {
        u32 channel;
        Axes<N> first;
    };
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = true;
    __device__ Line line(u32 index) const {
        Numbered<N> place(index, shape.kernel);
        return Line{place.number, place.place - shape.padding};
    }
    __device__ Term term(u32 cell) const { return Term(cell, shape.out); }
    __device__ void go(Term& term, const Term& step) const { term.go(step, shape.out); }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        Axes<N> place = line.first + term.place * shape.stride;
        u64 at = shape.size.element(term.number * shape.channels + line.channel, place);
        return element(x + at, wanted & (line.channel < shape.channels) & shape.size.has(place));
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
    auto put = [&](u32 output, u32 term, float sum, u32) { parts[(u64)output * shape.terms() + term] = sum; };
    each_result(room, total, row, shape.outputs, column, shape.terms(), Itself(), Nothing(), put);
}
