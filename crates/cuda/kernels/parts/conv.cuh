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

// A matrix with contiguous rows, `along` elements each.
struct RowMajor {
    typedef u32 Where;
    typedef u32 Term;
    typedef const Stored* Line;
    const Stored* x;
    u32 rows, along;
    static constexpr bool along_k = true, shared = false;
    __device__ Line line(u32 row) const { return kept(rows, x + (u64)least(row, rows - 1) * along); }
    __device__ Where where(u32 k) const { return k; }
    __device__ void go(Where& where, Where step) const { where += step; }
    __device__ Term term(Where where) const { return where; }
    __device__ Stored at(Line line, Term term, bool wanted) const { return element(line + term, wanted); }
};

// What an element of a window adds to its corner: to where that lies, and to its place.
template <u32 N, class Offset>
struct alignas(16) Inside {
    Offset offset;
    Axes<N> place;
};

// The corner of a window, which may lie outside of its box.
template <u32 N>
struct Corner {
    const Stored* start;
    Axes<N> place;

    __device__ static Corner of(const Stored* box, const Axes<N>& size, const Axes<N>& place) {
        return {kept(size.last, box + (int)size.index(place)), place};
    }

    template <class Term>
    __device__ Stored at(const Term& term, const Axes<N>& size, bool wanted) const {
        return element(start + term.offset, wanted & size.has(place + term.place));
    }
};

// A patch matrix: a column is a cell of an image, K is channel, then place in the kernel.
template <u32 N>
struct Patches {
    typedef Numbered<N> Where;
    typedef Inside<N, u32> Term;
    typedef Corner<N> Line;
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = false, shared = true;
    __device__ Line line(u32 index) const {
        Numbered<N> cell(least(index, shape.images * shape.out_area() - 1), shape.out);
        const Stored* image = x + (u64)cell.number * shape.channels * shape.area();
        return Line::of(image, shape.size, cell.place * shape.stride - shape.padding);
    }
    __device__ Where where(u32 k) const { return Where(k, shape.kernel); }
    __device__ void go(Where& where, const Where& step) const { where.go(step, shape.kernel); }
    __device__ Term term(const Where& where) const {
        return {where.number * shape.area() + shape.size.index(where.place), where.place};
    }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const { return line.at(term, shape.size, wanted); }
};

template <u32 N, class Tile>
__device__ inline void convolve(
    Tile& room, const Stored* x, const Stored* w, const float* bias, Stored* y, const Conv<N>& shape, u32 activation) {
    u32 cells = shape.images * shape.out_area(), area = shape.out_area();
    u32 across = parts_of(cells, Tile::COLUMNS);
    u32 row = blockIdx.x / across * Tile::ROWS, column = blockIdx.x % across * Tile::COLUMNS;
    typename Tile::Sums total;
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
    typedef Numbered<1> Where;
    typedef u32 Term;
    typedef const Stored* Line;
    Conv<N> shape;
    const Stored* w;
    static constexpr bool along_k = false, shared = true;
    __device__ Line line(u32 channel) const {
        return kept(shape.channels, w + least(channel, shape.channels - 1) * shape.window());
    }
    __device__ Where where(u32 k) const { return Where(k, {shape.window()}); }
    __device__ void go(Where& where, const Where& step) const { where.go(step, {shape.window()}); }
    __device__ Term term(const Where& where) const {
        return where.number * shape.terms() + shape.window() - 1 - where.place.last;
    }
    __device__ Stored at(Line line, Term term, bool wanted) const { return element(line + term, wanted); }
};

// The gradients of outputs that used an element: a column is an element of an image, K is output channel, then place in the
// turned kernel.
//
// An element at `e` and a place `p` of the turned kernel, both from the corner of the windows that there would be if they were one
// apart, belong to the window (e + p) / stride, if that is whole. So e counts as the next window's corner, `rest` places back, and
// they do where p has the same rest, and no other number has to be divided.
template <u32 N>
struct Users {
    typedef Numbered<N> Where;
    struct alignas(16) Term {
        u32 offset;
        Axes<N> place;
        u32 rest;
    };
    struct Line {
        Corner<N> corner;
        u32 rest;
    };
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = false, shared = true;
    __device__ Line line(u32 index) const {
        Numbered<N> element(least(index, shape.images * shape.area() - 1), shape.size);
        const Stored* image = dy + (u64)element.number * shape.outputs * shape.out_area();
        // Some windows further on, so that nothing is divided that is negative.
        Axes<N> stride = shape.stride, before = shape.kernel - 1, more = (before + (stride - 1)) / stride;
        Axes<N> place = element.place + shape.padding + (more * stride - before), next = (place + (stride - 1)) / stride;
        return {Corner<N>::of(image, shape.out, next - more), stride.index(next * stride - place)};
    }
    __device__ Where where(u32 k) const { return Where(k, shape.kernel); }
    __device__ void go(Where& where, const Where& step) const { where.go(step, shape.kernel); }
    __device__ Term term(const Where& where) const {
        Axes<N> window = where.place / shape.stride;
        u32 rest = shape.stride.index(where.place - window * shape.stride);
        return {where.number * shape.out_area() + shape.out.index(window), window, rest};
    }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const {
        return line.corner.at(term, shape.out, wanted & (line.rest == term.rest));
    }
};

// Where `x` is there, it is what a ReLU gave to be convolved, and what that does to the gradient is done too.
template <u32 N, class Tile>
__device__ inline void input_gradient(
    Tile& room, const Stored* w, const Stored* dy, const Stored* x, Stored* dx, const Conv<N>& shape) {
    u32 elements = shape.images * shape.area(), area = shape.area();
    u32 across = parts_of(elements, Tile::COLUMNS);
    u32 row = blockIdx.x / across * Tile::ROWS, column = blockIdx.x % across * Tile::COLUMNS;
    typename Tile::Sums total;
    TurnedKernels<N> kernels = {shape, w};
    u32 depth = shape.outputs * shape.window();
    Users<N> users = {shape, dy};
    tile_product(room, kernels, users, row, column, 0, depth, total);
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
    typedef Numbered<1> Where;
    typedef u64 Term;
    typedef const Stored* Line;
    Conv<N> shape;
    const Stored* dy;
    static constexpr bool along_k = true, shared = false;
    __device__ Line line(u32 output) const {
        return kept(shape.outputs, dy + (u64)least(output, shape.outputs - 1) * shape.out_area());
    }
    __device__ Where where(u32 cell) const { return Where(cell, {shape.out_area()}); }
    __device__ void go(Where& where, const Where& step) const { where.go(step, {shape.out_area()}); }
    __device__ Term term(const Where& where) const {
        return (u64)where.number * shape.outputs * shape.out_area() + where.place.last;
    }
    __device__ Stored at(Line line, Term term, bool wanted) const { return element(line + term, wanted); }
};

// The elements that one place of a kernel meets: K is the cells of all images.
template <u32 N>
struct Met {
    typedef Numbered<N> Where;
    typedef Inside<N, u64> Term;
    typedef Corner<N> Line;
    Conv<N> shape;
    const Stored* x;
    static constexpr bool along_k = true, shared = false;
    __device__ Line line(u32 index) const {
        Numbered<N> place(least(index, shape.terms() - 1), shape.kernel);
        return Line::of(x + (u64)place.number * shape.area(), shape.size, place.place - shape.padding);
    }
    __device__ Where where(u32 cell) const { return Where(cell, shape.out); }
    __device__ void go(Where& where, const Where& step) const { where.go(step, shape.out); }
    __device__ Term term(const Where& where) const {
        Axes<N> place = where.place * shape.stride;
        return {(u64)where.number * shape.channels * shape.area() + shape.size.index(place), place};
    }
    __device__ Stored at(const Line& line, const Term& term, bool wanted) const { return line.at(term, shape.size, wanted); }
};

template <u32 N, class Tile>
__device__ inline void weight_gradient(
    Tile& room, const Stored* x, const Stored* dy, float* parts, const Conv<N>& shape, u32 splits) {
    u32 cells = shape.images * shape.out_area();
    u32 each = parts_of(parts_of(cells, splits), DEPTH) * DEPTH;
    u32 down = parts_of(shape.outputs, Tile::ROWS), across = parts_of(shape.terms(), Tile::COLUMNS);
    u32 split = blockIdx.x / (down * across), tile = blockIdx.x % (down * across);
    u32 row = tile / across * Tile::ROWS, column = tile % across * Tile::COLUMNS;
    u32 from = least(cells, split * each), to = least(cells, from + each);
    typename Tile::Sums total;
    Outputs<N> outputs = {shape, dy};
    Met<N> met = {shape, x};
    tile_product(room, outputs, met, row, column, from, to, total);
    parts += (u64)split * shape.outputs * shape.terms();
    auto put = [&](u32 output, u32 term, float sum, u32) { parts[(u64)output * shape.terms() + term] = sum; };
    each_result(room, total, row, shape.outputs, column, shape.terms(), Itself(), Nothing(), put);
}
