// layer_norm: y = (x - mean) / deviation * gain + bias along each row; saved [rows, 2] keeps mean and 1 / deviation. Nothing
// is added where the bias is null. RMS norm has zero in place of the mean: `centre` says which of the two it is.
// layer_norm_gradient: dx, to which `outer` is added where it is not null, and sums for dgain and dbias over each run of
// 64 rows, [runs, 2, width]. Nobody wants dx where it is null.
//
// Order: along a row thread i of a warp adds elements 8 i to 8 i + 7, then those 256 further on, ... in order, then the
// threads as `sums` says; the variance in a second pass around the mean. Sums over a run: sixteen lanes, lane i adds rows i,
// i + 16, ... in order, then the lanes in order; `sum_parts` adds the runs.
//
// Launch: layer_norm a warp a row, 8 rows a block of 256 threads; layer_norm_gradient a block of 512 threads a run, a warp a
// lane. A row that is not too long is read once and stays in registers; of what is longer, some is read again.
// Does not know the layers around it.

// What is taken off each element of a row.
enum { CENTRE_ZERO = 0, CENTRE_MEAN = 1 };

// Strips of a row that stay in registers.
const u32 HELD = 4;

// A thread's own of a row: what begins at its first element of the first strip, whose others are strips further on.
__device__ inline u32 own_place() { return threadIdx.x % 32 * 8; }

// How many elements there are from place `first` on.
__device__ inline u32 left_of(u32 width, u32 first) { return first < width ? width - first : 0; }

// Eight elements at a place of a thread's own, of which `left` are left. Of rows that are `WIDE` they are eight or none, on
// 16 bytes. What is not there is zero.
template <bool WIDE, class T>
__device__ inline Eight eight_of(const T* own, u32 at, u32 left) {
    Eight all = {};
    if (at < left) {
        if (WIDE) all.read_wide(own + at);
        else all.read(own + at, left - at, false, 0.0f);
    }
    return all;
}

template <bool WIDE>
__device__ inline void write_eight(const Eight& all, Stored* own, u32 at, u32 left) {
    if (at < left) {
        if (WIDE) all.write_wide(own + at);
        else all.write(own + at, left - at, false);
    }
}

// Elements that are in no strip that is held, eight at a time.
template <bool WIDE, class F>
__device__ inline void beyond(const Stored* own, u32 left, F each) {
    for (u32 at = HELD * STRIP; at < left; at += STRIP) each(eight_of<WIDE>(own, at, left), at);
}

// All but `saved` begin with the thread's own. There may be no bias.
template <bool WIDE>
__device__ inline void norm_of_row(
    const Stored* x, const float* gain, const float* bias, Stored* y, float* saved, u32 width, u32 centre, float epsilon) {
    u32 left = left_of(width, own_place());
    Eight held[HELD];
#pragma unroll
    for (u32 k = 0; k < HELD; k++) held[k] = eight_of<WIDE>(x, k * STRIP, left);
    float sum = 0.0f, squares = 0.0f, mean = 0.0f;
    if (centre == CENTRE_MEAN) {
        auto add = [&](const Eight& some, u32) {
            for (u32 i = 0; i < 8; i++) sum += some.v[i];
        };
#pragma unroll
        for (u32 k = 0; k < HELD; k++) add(held[k], 0);
        beyond<WIDE>(x, left, add);
        mean = across_warp(sum, Plus()) / (float)width;
    }
    auto add_square = [&](const Eight& some, u32 at) {
        for (u32 i = 0; i < 8; i++) {
            float away = some.v[i] - mean;
            squares += at + i < left ? away * away : 0.0f;
        }
    };
#pragma unroll
    for (u32 k = 0; k < HELD; k++) add_square(held[k], k * STRIP);
    beyond<WIDE>(x, left, add_square);
    float variance = across_warp(squares, Plus()) / (float)width;
    float factor = 1.0f / sqrtf(variance + epsilon);
    if (threadIdx.x % 32 == 0) {
        saved[0] = mean;
        saved[1] = factor;
    }
    auto write = [&](Eight some, u32 at) {
        Eight by = eight_of<WIDE>(gain, at, left), plus = eight_of<WIDE>(bias, at, bias ? left : 0);
        for (u32 i = 0; i < 8; i++) {
            float hat = (some.v[i] - mean) * factor;
            some.v[i] = bias ? fmaf(hat, by.v[i], plus.v[i]) : hat * by.v[i];
        }
        write_eight<WIDE>(some, y, at, left);
    };
#pragma unroll
    for (u32 k = 0; k < HELD; k++) write(held[k], k * STRIP);
    beyond<WIDE>(x, left, write);
}

extern "C" __global__ void __launch_bounds__(256) NAME(layer_norm_, )(
    const Stored* x, const float* gain, const float* bias, Stored* y, float* saved, u32 rows, u32 width, u32 centre,
    float epsilon) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    // Null lies on 16 bytes as well.
    bool wide = width % 8 == 0 && lies_wide(x) && lies_wide(y) && lies_wide(gain) && lies_wide(bias);
    u64 own = (u64)row * width + own_place();
    x += own;
    y += own;
    gain += own_place();
    bias = bias ? bias + own_place() : 0;
    saved += 2 * (u64)row;
    if (wide) {
        norm_of_row<true>(x, gain, bias, y, saved, width, centre, epsilon);
    } else {
        norm_of_row<false>(x, gain, bias, y, saved, width, centre, epsilon);
    }
}

// Strips of a row of whose columns a thread has the sums, and lanes of a run.
const u32 SUMMED = sizeof(Stored) == 2 ? 3 : 2;
const u32 LANES = 16;

template <bool WIDE>
__device__ inline Packed<Stored> packed_of(const Stored* own, u32 at, u32 left) {
    if (WIDE) {
        Packed<Stored> packed = {};
        if (at < left) packed = *(const Packed<Stored>*)(own + at);
        return packed;
    }
    return Packed<Stored>::of(eight_of<WIDE>(own, at, left));
}

// What a gradient is made of: of all rows, or of one from some place on.
struct Norm {
    const Stored *x, *dy, *outer;
    Stored* dx;
    const float *gain, *saved;
    u32 width, centre;

    __device__ Norm from(u32 row, u32 first) const {
        u64 at = (u64)row * width + first;
        const Stored* around = outer ? outer + at : 0;
        return {x + at, dy + at, around, dx ? dx + at : 0, gain + first, saved + 2 * (u64)row, width, centre};
    }

    __device__ void normalise(Eight& x) const {
        float mean = saved[0], factor = saved[1];
        for (u32 i = 0; i < 8; i++) x.v[i] = (x.v[i] - mean) * factor;
    }
};

// Means of d and of d xhat, d = dy gain.
struct Means {
    float along, across;

    __device__ void add(const Eight& dy, const Eight& hat, const Eight& gain) {
        for (u32 i = 0; i < 8; i++) {
            float d = dy.v[i] * gain.v[i];
            along += d;
            across += d * hat.v[i];
        }
    }

    // Where no mean was taken off, its gradient is not either.
    __device__ void finish(u32 width, u32 centre) {
        along = centre == CENTRE_MEAN ? across_warp(along, Plus()) / (float)width : 0.0f;
        across = across_warp(across, Plus()) / (float)width;
    }
};

// Those of a row that no thread holds whole.
template <bool WIDE>
__device__ inline Means means_of(const Norm& own, u32 left) {
    Means means = {};
    for (u32 at = 0; at < left; at += STRIP) {
        Eight hat = eight_of<WIDE>(own.x, at, left);
        own.normalise(hat);
        means.add(eight_of<WIDE>(own.dy, at, left), hat, eight_of<WIDE>(own.gain, at, left));
    }
    return means;
}

// Shared memory: the sums of lanes, and the gains of the strips at hand. These are there twice, and rows take them in turn:
// else a compiler may keep them in registers that are wanted for sums.
struct Room {
    Lanes<LANES> lanes[2];
    alignas(16) float gains[2][SUMMED * STRIP];

    __device__ void take(const float* gain, u32 left) {
        for (u32 i = threadIdx.x; i < SUMMED * STRIP; i += LANES * 32) gains[0][i] = gains[1][i] = i < left ? gain[i] : 0.0f;
        __syncthreads();
    }

    __device__ Eight gain(u32 row, u32 strip) const {
        Eight own = {};
        own.read_wide(gains[row / LANES % 2] + own_place() + strip * STRIP);
        return own;
    }
};

// The strips of a run from column `first` on, as many as are summed at once: their dx and their sums.
template <bool WIDE>
__device__ inline void gradient_of_strips(const Norm& all, float* parts, u32 rows, u32 first, Room& room) {
    Eight dgain[SUMMED] = {}, dbias[SUMMED] = {};
    u32 width = all.width, left = left_of(width, first + own_place()), end = least(rows, (blockIdx.x + 1) * 64);
    room.take(all.gain + first, width - first);
    for (u32 row = blockIdx.x * 64 + threadIdx.x / 32; row < end; row += LANES) {
        Norm own = all.from(row, first + own_place());
        Packed<Stored> x[SUMMED], dy[SUMMED];
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            x[k] = packed_of<WIDE>(own.x, k * STRIP, left);
            dy[k] = packed_of<WIDE>(own.dy, k * STRIP, left);
        }
        Means means = {};
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            Eight hat = x[k].eight(), d = dy[k].eight();
            own.normalise(hat);
            for (u32 i = 0; i < 8; i++) dgain[k].v[i] = fmaf(d.v[i], hat.v[i], dgain[k].v[i]);
            dbias[k].add(d);
            means.add(d, hat, room.gain(row, k));
        }
        if (!own.dx) continue;
        if (width > SUMMED * STRIP) means = means_of<WIDE>(all.from(row, own_place()), left_of(width, own_place()));
        Packed<Stored> outer[SUMMED] = {};
        if (own.outer) {
#pragma unroll
            for (u32 k = 0; k < SUMMED; k++) outer[k] = packed_of<WIDE>(own.outer, k * STRIP, left);
        }
        means.finish(width, all.centre);
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            Eight hat = x[k].eight(), d = dy[k].eight(), plus = outer[k].eight(), by = room.gain(row, k);
            own.normalise(hat);
            for (u32 i = 0; i < 8; i++) {
                d.v[i] = (d.v[i] * by.v[i] - means.along - hat.v[i] * means.across) * own.saved[1];
                d.v[i] = own.outer ? plus.v[i] + d.v[i] : d.v[i];
            }
            write_eight<WIDE>(d, own.dx, k * STRIP, left);
        }
    }
#pragma unroll
    for (u32 k = 0; k < SUMMED; k++) {
        room.lanes[0].put(dgain[k]);
        room.lanes[1].put(dbias[k]);
        __syncthreads();
        // Half of the threads have gains, the other half has biases.
        u32 which = threadIdx.x / STRIP, column = first + k * STRIP + threadIdx.x % STRIP;
        float sum = room.lanes[which].across(threadIdx.x % STRIP);
        if (column < width) parts[((u64)blockIdx.x * 2 + which) * width + column] = sum;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(512) NAME(layer_norm_gradient_, )(
    const Stored* x, const float* gain, const float* saved, const Stored* dy, const Stored* outer, Stored* dx, float* parts,
    u32 rows, u32 width, u32 centre) {
    __shared__ Room room;
    // Null lies on 16 bytes as well.
    bool wide = width % 8 == 0 && lies_wide(x) && lies_wide(gain) && lies_wide(dy) && lies_wide(outer) && lies_wide(dx);
    Norm all = {x, dy, outer, dx, gain, saved, width, centre};
    for (u32 first = 0; first < width; first += SUMMED * STRIP) {
        if (wide) {
            gradient_of_strips<true>(all, parts, rows, first, room);
        } else {
            gradient_of_strips<false>(all, parts, rows, first, room);
        }
    }
}
