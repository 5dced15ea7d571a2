// max_pool, avg_pool and their gradients, over planes; only maxima over padded ones.
//
// max_pool keeps the index in its plane of each maximum, the first of equals; a NaN wins over everything. The gradients
// gather: an element of dx looks at the windows over it, so nothing is added to twice. Where windows do not meet, an
// output of max_pool writes all elements of dx that no other has.
//
// Launch: any grid, 256 threads; a loop over outputs, or over elements of dx. Order: a window row by row;
// gradients over outputs in order: the CPU's bits. Does not know images or channels: a plane is a plane.

struct Pool2d {
    u32 planes, height, width;
    u32 window_height, window_width, stride_height, stride_width;
    u32 out_height, out_width;
    u32 pad_height, pad_width;

    __device__ u64 area() const { return (u64)height * width; }
    __device__ u64 out_area() const { return (u64)out_height * out_width; }
};

// The outputs in one dimension whose windows hold place `at`: from `first` to before `end`.
struct Over {
    u32 first, end;
    __device__ Over(u32 at, u32 window, u32 stride, u32 out) {
        first = at < window ? 0 : (at - window) / stride + 1;
        end = least(out, at / stride + 1);
    }
};

// What of a window lies in the plane, in one dimension: from `first` to before `end`. The window begins at `from` of the
// padded one.
struct Inside {
    u32 first, end;
    __device__ Inside(u32 from, u32 window, u32 pad, u32 size) {
        first = from < pad ? 0 : from - pad;
        end = least(size, from + window - pad);
    }
};

// A place of planes of some height and width, and the way to the next place of a thread, without a division.
struct Spot {
    u64 plane;
    u32 row, column;

    __device__ Spot(u64 at, u32 height, u32 width)
        : plane(at / width / height), row((u32)(at / width % height)), column((u32)(at % width)) {}

    // As far on as `step` is from the first place.
    __device__ void go(const Spot& step, u32 height, u32 width) {
        plane += step.plane;
        row += step.row;
        column += step.column;
        if (column >= width) {
            column -= width;
            row++;
        }
        if (row >= height) {
            row -= height;
            plane++;
        }
    }
};

// f(i, spot) for each of `planes` planes' places.
template <class F>
__device__ inline void each_spot(u32 planes, u32 height, u32 width, F f) {
    u64 len = (u64)planes * height * width;
    Spot spot(first_element(), height, width), step(next_element(), height, width);
    for (u64 i = first_element(); i < len; i += next_element()) {
        f(i, spot);
        spot.go(step, height, width);
    }
}

// The greatest element of a window and its place. Nothing is there that beats the first.
struct Maximum {
    float best;
    u32 place;

    __device__ void meet(float v, u32 at) {
        bool wins = v > best || v != v;
        best = wins ? v : best;
        place = wins ? at : place;
    }
};

// That of a window of this size, whose elements are all on their way together.
template <u32 HIGH, u32 WIDE>
__device__ inline Maximum maximum_of(const Stored* plane, u32 top, u32 left, u32 first, const Pool2d& shape) {
    float elements[HIGH][WIDE];
    for (u32 r = 0; r < HIGH; r++) {
        for (u32 c = 0; c < WIDE; c++) {
            // Before the plane is far behind it.
            u32 row = top + r - shape.pad_height, column = left + c - shape.pad_width;
            bool is_there = row < shape.height && column < shape.width;
            elements[r][c] = is_there ? (float)plane[row * shape.width + column] : -infinity();
        }
    }
    Maximum found = {-infinity(), first};
    for (u32 r = 0; r < HIGH; r++) {
        for (u32 c = 0; c < WIDE; c++) {
            found.meet(elements[r][c], (top + r - shape.pad_height) * shape.width + left + c - shape.pad_width);
        }
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(256) NAME(max_pool_, )(const Stored* x, Stored* y, u32* places, Pool2d shape) {
    u32 window = shape.window_height == shape.window_width ? shape.window_height : 0;
    each_spot(shape.planes, shape.out_height, shape.out_width, [&](u64 i, const Spot& out) {
        const Stored* plane = x + out.plane * shape.area();
        u32 top = out.row * shape.stride_height, left = out.column * shape.stride_width;
        Inside rows(top, shape.window_height, shape.pad_height, shape.height);
        Inside columns(left, shape.window_width, shape.pad_width, shape.width);
        Maximum found = {-infinity(), rows.first * shape.width + columns.first};
        if (window == 2) {
            found = maximum_of<2, 2>(plane, top, left, found.place, shape);
        } else if (window == 3) {
            found = maximum_of<3, 3>(plane, top, left, found.place, shape);
        } else {
            for (u32 row = rows.first; row < rows.end; row++) {
                for (u32 column = columns.first; column < columns.end; column++) {
                    u32 at = row * shape.width + column;
                    found.meet(plane[at], at);
                }
            }
        }
        y[i] = found.best;
        places[i] = found.place;
    });
}

// What of dx belongs to an output whose windows meet no other's, in one dimension: all to where the next one's begins.
struct Share {
    u32 first, end;
    __device__ Share(u32 out, u32 outs, u32 stride, u32 pad, u32 size) {
        first = out == 0 ? 0 : out * stride - pad;
        end = out + 1 == outs ? size : (out + 1) * stride - pad;
    }
};

extern "C" __global__ void __launch_bounds__(256) NAME(max_pool_gradient_, )(
    const u32* places, const Stored* dy, Stored* dx, Pool2d shape) {
    bool apart = shape.window_height <= shape.stride_height && shape.window_width <= shape.stride_width;
    // A thread that writes much lies far from its neighbours.
    if (apart && shape.stride_height * shape.stride_width <= 16) {
        each_spot(shape.planes, shape.out_height, shape.out_width, [&](u64 i, const Spot& out) {
            Share rows(out.row, shape.out_height, shape.stride_height, shape.pad_height, shape.height);
            Share columns(out.column, shape.out_width, shape.stride_width, shape.pad_width, shape.width);
            u32 place = places[i];
            float d = 0.0f + dy[i];
            Stored* plane = dx + out.plane * shape.area();
            // They are few: what a compiler makes of many takes longer.
#pragma unroll 1
            for (u32 row = rows.first; row < rows.end; row++) {
#pragma unroll 1
                for (u32 column = columns.first; column < columns.end; column++) {
                    u32 at = row * shape.width + column;
                    plane[at] = at == place ? d : 0.0f;
                }
            }
        });
        return;
    }
    each_spot(shape.planes, shape.height, shape.width, [&](u64 i, const Spot& at) {
        u64 first = at.plane * shape.out_area();
        u32 own = at.row * shape.width + at.column;
        Over rows(at.row + shape.pad_height, shape.window_height, shape.stride_height, shape.out_height);
        Over columns(at.column + shape.pad_width, shape.window_width, shape.stride_width, shape.out_width);
        float sum = 0.0f;
        for (u32 row = rows.first; row < rows.end; row++) {
            for (u32 column = columns.first; column < columns.end; column++) {
                u64 out = first + row * shape.out_width + column;
                if (places[out] == own) sum = sum + dy[out];
            }
        }
        dx[i] = sum;
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(avg_pool_, )(const Stored* x, Stored* y, Pool2d shape) {
    float count = (float)(shape.window_height * shape.window_width);
    each_spot(shape.planes, shape.out_height, shape.out_width, [&](u64 i, const Spot& out) {
        const Stored* plane = x + out.plane * shape.area();
        u32 corner = out.row * shape.stride_height * shape.width + out.column * shape.stride_width;
        float sum = 0.0f;
        for (u32 row = 0; row < shape.window_height; row++) {
            for (u32 column = 0; column < shape.window_width; column++) {
                sum = sum + plane[corner + row * shape.width + column];
            }
        }
        y[i] = sum / count;
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(avg_pool_gradient_, )(const Stored* dy, Stored* dx, Pool2d shape) {
    float count = (float)(shape.window_height * shape.window_width);
    each_spot(shape.planes, shape.height, shape.width, [&](u64 i, const Spot& at) {
        u64 first = at.plane * shape.out_area();
        Over rows(at.row, shape.window_height, shape.stride_height, shape.out_height);
        Over columns(at.column, shape.window_width, shape.stride_width, shape.out_width);
        float sum = 0.0f;
        for (u32 row = rows.first; row < rows.end; row++) {
            for (u32 column = columns.first; column < columns.end; column++) {
                sum = sum + dy[first + row * shape.out_width + column] / count;
            }
        }
        dx[i] = sum;
    });
}
