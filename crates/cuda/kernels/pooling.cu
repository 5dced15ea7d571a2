// max_pool, avg_pool and their gradients, over planes; only maxima over padded ones.
//
// max_pool keeps the index in its plane of each maximum, the first of equals; a NaN wins over everything. The gradients
// gather: an element of dx looks at the windows over it, so nothing is added to twice.
//
// Launch: any grid, 256 threads; a loop over outputs, for gradients over elements of dx. Order: a window row by row;
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

extern "C" __global__ void __launch_bounds__(256) NAME(max_pool_, )(const Stored* x, Stored* y, u32* places, Pool2d shape) {
    u64 len = shape.planes * shape.out_area();
    for (u64 i = first_element(); i < len; i += next_element()) {
        const Stored* plane = x + i / shape.out_area() * shape.area();
        u32 out = (u32)(i % shape.out_area());
        Inside rows(out / shape.out_width * shape.stride_height, shape.window_height, shape.pad_height, shape.height);
        Inside columns(out % shape.out_width * shape.stride_width, shape.window_width, shape.pad_width, shape.width);
        u32 place = rows.first * shape.width + columns.first;
        float best = plane[place];
        for (u32 row = rows.first; row < rows.end; row++) {
            for (u32 column = columns.first; column < columns.end; column++) {
                u32 at = row * shape.width + column;
                bool wins = plane[at] > best || plane[at] != plane[at];
                best = wins ? plane[at] : best;
                place = wins ? at : place;
            }
        }
        y[i] = best;
        places[i] = place;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(max_pool_gradient_, )(
    const u32* places, const Stored* dy, Stored* dx, Pool2d shape) {
    u64 len = shape.planes * shape.area();
    for (u64 i = first_element(); i < len; i += next_element()) {
        u64 first = i / shape.area() * shape.out_area();
        u32 at = (u32)(i % shape.area());
        Over rows(at / shape.width + shape.pad_height, shape.window_height, shape.stride_height, shape.out_height);
        Over columns(at % shape.width + shape.pad_width, shape.window_width, shape.stride_width, shape.out_width);
        float sum = 0.0f;
        for (u32 row = rows.first; row < rows.end; row++) {
            for (u32 column = columns.first; column < columns.end; column++) {
                u64 out = first + row * shape.out_width + column;
                if (places[out] == at) sum = sum + dy[out];
            }
        }
        dx[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(avg_pool_, )(const Stored* x, Stored* y, Pool2d shape) {
    u64 len = shape.planes * shape.out_area();
    float count = (float)(shape.window_height * shape.window_width);
    for (u64 i = first_element(); i < len; i += next_element()) {
        const Stored* plane = x + i / shape.out_area() * shape.area();
        u32 out = (u32)(i % shape.out_area());
        u32 corner = out / shape.out_width * shape.stride_height * shape.width + out % shape.out_width * shape.stride_width;
        float sum = 0.0f;
        for (u32 row = 0; row < shape.window_height; row++) {
            for (u32 column = 0; column < shape.window_width; column++) {
                sum = sum + plane[corner + row * shape.width + column];
            }
        }
        y[i] = sum / count;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(avg_pool_gradient_, )(const Stored* dy, Stored* dx, Pool2d shape) {
    u64 len = shape.planes * shape.area();
    float count = (float)(shape.window_height * shape.window_width);
    for (u64 i = first_element(); i < len; i += next_element()) {
        u64 first = i / shape.area() * shape.out_area();
        u32 at = (u32)(i % shape.area());
        Over rows(at / shape.width, shape.window_height, shape.stride_height, shape.out_height);
        Over columns(at % shape.width, shape.window_width, shape.stride_width, shape.out_width);
        float sum = 0.0f;
        for (u32 row = rows.first; row < rows.end; row++) {
            for (u32 column = columns.first; column < columns.end; column++) {
                sum = sum + dy[first + row * shape.out_width + column] / count;
            }
        }
        dx[i] = sum;
    }
}
