// layer_norm: y = (x - mean) / deviation * gain + bias along each row; saved [rows, 2] keeps mean and 1 / deviation.
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

// Strips of a row that stay in registers.
const u32 HELD = 4;

// Where the eight elements of a thread begin in a strip.
__device__ inline u32 own_place(u32 strip) { return strip * STRIP + threadIdx.x % 32 * 8; }

// Of rows that are `WIDE` each thread has eight elements or none, on 16 bytes.
template <bool WIDE, class T>
__device__ inline Eight eight_of(const T* row, u32 first, u32 width) {
    Eight all = {};
    if (first < width) {
        if (WIDE) all.read_wide(row + first);
        else all.read(row + first, width - first, false, 0.0f);
    }
    return all;
}

template <bool WIDE>
__device__ inline void write_eight(const Eight& all, Stored* row, u32 first, u32 width) {
    if (first < width) {
        if (WIDE) all.write_wide(row + first);
        else all.write(row + first, width - first, false);
    }
}

// Elements that are in no strip that is held, eight at a time.
template <bool WIDE, class F>
__device__ inline void beyond(const Stored* row, u32 width, F each) {
    for (u32 strip = HELD; strip * STRIP < width; strip++) {
        u32 first = own_place(strip);
        each(eight_of<WIDE>(row, first, width), first);
    }
}

template <bool WIDE>
__device__ inline void norm_of_row(
    const Stored* x, const float* gain, const float* bias, Stored* y, float* saved, u32 width, float epsilon) {
    Eight held[HELD];
#pragma unroll
    for (u32 k = 0; k < HELD; k++) held[k] = eight_of<WIDE>(x, own_place(k), width);
    float sum = 0.0f, squares = 0.0f;
    // What is not there is zero.
    auto add = [&](const Eight& some, u32) {
        for (u32 i = 0; i < 8; i++) sum += some.v[i];
    };
#pragma unroll
    for (u32 k = 0; k < HELD; k++) add(held[k], 0);
    beyond<WIDE>(x, width, add);
    float mean = across_warp(sum, Plus()) / (float)width;
    auto add_square = [&](const Eight& some, u32 first) {
        for (u32 i = 0; i < 8; i++) {
            float away = some.v[i] - mean;
            squares += first + i < width ? away * away : 0.0f;
        }
    };
#pragma unroll
    for (u32 k = 0; k < HELD; k++) add_square(held[k], own_place(k));
    beyond<WIDE>(x, width, add_square);
    float variance = across_warp(squares, Plus()) / (float)width;
    float factor = 1.0f / sqrtf(variance + epsilon);
    if (threadIdx.x % 32 == 0) {
        saved[0] = mean;
        saved[1] = factor;
    }
    auto write = [&](Eight some, u32 first) {
        Eight by = eight_of<WIDE>(gain, first, width), plus = eight_of<WIDE>(bias, first, width);
        for (u32 i = 0; i < 8; i++) some.v[i] = fmaf((some.v[i] - mean) * factor, by.v[i], plus.v[i]);
        write_eight<WIDE>(some, y, first, width);
    };
#pragma unroll
    for (u32 k = 0; k < HELD; k++) {
        if (k * STRIP < width) write(held[k], own_place(k));
    }
    beyond<WIDE>(x, width, write);
}

extern "C" __global__ void __launch_bounds__(256) NAME(layer_norm_, )(
    const Stored* x, const float* gain, const float* bias, Stored* y, float* saved, u32 rows, u32 width,
    float epsilon) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    bool wide = width % 8 == 0 && lies_wide(x) && lies_wide(y) && lies_wide(gain) && lies_wide(bias);
    x += (u64)row * width;
    y += (u64)row * width;
    saved += 2 * (u64)row;
    if (wide) {
        norm_of_row<true>(x, gain, bias, y, saved, width, epsilon);
    } else {
        norm_of_row<false>(x, gain, bias, y, saved, width, epsilon);
    }
}

// Strips of a row of whose columns a thread has the sums, and lanes of a run.
const u32 SUMMED = sizeof(Stored) == 2 ? 3 : 2;
const u32 LANES = 16;

template <bool WIDE>
__device__ inline Packed<Stored> packed_of(const Stored* row, u32 first, u32 width) {
    if (WIDE) {
        Packed<Stored> packed = {};
        if (first < width) packed = *(const Packed<Stored>*)(row + first);
        return packed;
    }
    return Packed<Stored>::of(eight_of<WIDE>(row, first, width));
}

// Operands of a run, and of a row.
struct Norm {
    const Stored *x, *dy, *outer;
    Stored* dx;
    const float *gain, *saved;
    u32 width;
    float mean, factor;

    __device__ Norm row(u32 number) const {
        u64 at = (u64)number * width;
        return {x + at, dy + at, outer ? outer + at : 0, dx ? dx + at : 0, gain, saved, width,
                saved[2 * number], saved[2 * number + 1]};
    }

    __device__ void normalise(Eight& x) const {
        for (u32 i = 0; i < 8; i++) x.v[i] = (x.v[i] - mean) * factor;
    }
};

// Means of d and of d xhat, d = dy gain.
struct Means {
    float along, across;

    // Adds what eight elements come to. What is not there is zero.
    __device__ void add(const Eight& dy, const Eight& hat, const Eight& gain) {
        for (u32 i = 0; i < 8; i++) {
            float d = dy.v[i] * gain.v[i];
            along += d;
            across += d * hat.v[i];
        }
    }

    __device__ void finish(u32 width) {
        along = across_warp(along, Plus()) / (float)width;
        across = across_warp(across, Plus()) / (float)width;
    }
};

// Those of a row that no thread holds whole.
template <bool WIDE>
__device__ inline Means means_of(const Norm& row) {
    Means means = {};
    for (u32 strip = 0; strip * STRIP < row.width; strip++) {
        u32 first = own_place(strip);
        Eight hat = eight_of<WIDE>(row.x, first, row.width);
        row.normalise(hat);
        means.add(eight_of<WIDE>(row.dy, first, row.width), hat, eight_of<WIDE>(row.gain, first, row.width));
    }
    return means;
}

// Shared memory: the sums of lanes, and the gains of the strips at hand.
struct Room {
    Lanes<LANES> lanes[2];
    alignas(16) float gains[SUMMED * STRIP];

    __device__ void take(const float* gain, u32 strip, u32 width) {
        for (u32 i = threadIdx.x; i < SUMMED * STRIP; i += LANES * 32) {
            u32 column = strip * STRIP + i;
            gains[i] = column < width ? gain[column] : 0.0f;
        }
        __syncthreads();
    }

    __device__ Eight gain(u32 strip) const {
        Eight own = {};
        own.read_wide(gains + own_place(strip));
        return own;
    }
};

// A run's strips from `strip` on, as many as are summed at once: their dx and their sums.
template <bool WIDE>
__device__ inline void gradient_of_strips(const Norm& run, float* parts, u32 rows, u32 strip, Room& room) {
    Eight dgain[SUMMED] = {}, dbias[SUMMED] = {};
    u32 width = run.width, end = least(rows, (blockIdx.x + 1) * 64);
    room.take(run.gain, strip, width);
    for (u32 number = blockIdx.x * 64 + threadIdx.x / 32; number < end; number += LANES) {
        Norm row = run.row(number);
        Packed<Stored> x[SUMMED], dy[SUMMED];
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            x[k] = packed_of<WIDE>(row.x, own_place(strip + k), width);
            dy[k] = packed_of<WIDE>(row.dy, own_place(strip + k), width);
        }
        Means means = {};
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            Eight hat = x[k].eight(), d = dy[k].eight();
            row.normalise(hat);
            for (u32 i = 0; i < 8; i++) dgain[k].v[i] = fmaf(d.v[i], hat.v[i], dgain[k].v[i]);
            dbias[k].add(d);
            means.add(d, hat, room.gain(k));
        }
        if (!row.dx) continue;
        if (width > SUMMED * STRIP) means = means_of<WIDE>(row);
        Packed<Stored> outer[SUMMED] = {};
        if (row.outer) {
#pragma unroll
            for (u32 k = 0; k < SUMMED; k++) outer[k] = packed_of<WIDE>(row.outer, own_place(strip + k), width);
        }
        means.finish(width);
#pragma unroll
        for (u32 k = 0; k < SUMMED; k++) {
            Eight hat = x[k].eight(), d = dy[k].eight(), plus = outer[k].eight(), by = room.gain(k);
            row.normalise(hat);
            for (u32 i = 0; i < 8; i++) {
                d.v[i] = (d.v[i] * by.v[i] - means.along - hat.v[i] * means.across) * row.factor;
                d.v[i] = row.outer ? plus.v[i] + d.v[i] : d.v[i];
            }
            write_eight<WIDE>(d, row.dx, own_place(strip + k), width);
        }
    }
#pragma unroll
    for (u32 k = 0; k < SUMMED; k++) {
        room.lanes[0].put(dgain[k]);
        room.lanes[1].put(dbias[k]);
        __syncthreads();
        // Half of the threads have gains, the other half has biases.
        u32 which = threadIdx.x / STRIP, column = (strip + k) * STRIP + threadIdx.x % STRIP;
        float sum = room.lanes[which].across(threadIdx.x % STRIP);
        if (column < width) parts[((u64)blockIdx.x * 2 + which) * width + column] = sum;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(512) NAME(layer_norm_gradient_, )(
    const Stored* x, const float* gain, const float* saved, const Stored* dy, const Stored* outer, Stored* dx, float* parts,
    u32 rows, u32 width) {
    __shared__ Room room;
    // Null lies on 16 bytes as well.
    bool wide = width % 8 == 0 && lies_wide(x) && lies_wide(gain) && lies_wide(dy) && lies_wide(outer) && lies_wide(dx);
    Norm run = {x, dy, outer, dx, gain, saved, width, 0.0f, 0.0f};
    for (u32 strip = 0; strip * STRIP < width; strip += SUMMED) {
        if (wide) {
            gradient_of_strips<true>(run, parts, rows, strip, room);
        } else {
            gradient_of_strips<false>(run, parts, rows, strip, room);
        }
    }
}
