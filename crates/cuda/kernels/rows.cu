// copy_rows: y[r, i] = x[r, i] of rows that lie `from` apart and come to lie `to` apart.
// class_token: of each row y[0] = token and y[1 + t] = x[t], vectors of `width`, and `places` added to all of them.
//
// Launch: for each row of y a block for each 4 096 bytes of it, of 256 threads; each has 16 bytes. Order: none, every
// element stands alone: one f32 addition.
// Does not know what the rows are.

// Where a thread is, in rows of so many elements.
struct Spot {
    u64 row;
    u32 first;

    __device__ explicit Spot(u32 width) {
        u32 blocks = parts_of(width, 256 * Wide<Stored>::COUNT);
        row = blockIdx.x / blocks;
        first = (blockIdx.x % blocks * 256 + threadIdx.x) * Wide<Stored>::COUNT;
    }
};

extern "C" __global__ void __launch_bounds__(256) NAME(copy_rows_, )(
    const Stored* x, Stored* y, u32 width, u32 from, u32 to) {
    Spot spot(width);
    if (spot.first >= width) return;
    bool wide = rows_lie_wide(x, from) && rows_lie_wide(y, to);
    Wide<Stored> some;
    some.read(x + spot.row * from + spot.first, width - spot.first, wide, 0.0f);
    some.write(y + spot.row * to + spot.first, width - spot.first, wide);
}

extern "C" __global__ void __launch_bounds__(256) NAME(class_token_, )(
    const Stored* x, const float* token, const float* places, Stored* y, u32 time, u32 width) {
    const u32 N = Wide<Stored>::COUNT;
    u32 len = (time + 1) * width;
    Spot spot(len);
    u32 first = spot.first;
    if (first >= len) return;
    x += spot.row * time * width;
    y += spot.row * len + first;
    // Where a vector is 16 bytes or a multiple, no 16 bytes are of two.
    if (rows_lie_wide(x, width) && lies_wide(y) && lies_wide(token) && lies_wide(places)) {
        Wide<Stored> some, place;
        if (first < width) {
            some.read_wide(token + first);
        } else {
            some.read_wide(x + (first - width));
        }
        place.read_wide(places + first);
        some.add(place);
        some.write_wide(y);
        return;
    }
    for (u32 i = 0; i < N && first + i < len; i++) {
        u32 at = first + i;
        float own = at < width ? token[at] : (float)x[at - width];
        y[i] = own + places[at];
    }
}
