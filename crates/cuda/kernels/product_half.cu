// product_bf16_nt_S, _nn_S, _tn_S: C[m, n] = act(A[m, k] B[k, n] + bias[n]), or C += A B, of bf16 on tensor cores; C is
// bf16 or f32, the bias f32. n is an operand whose rows are contiguous, t one whose columns are:
//   nt: y = x w', a linear layer.   nn: dx = dy w.   tn: dw = dy' x.
// K may be cut into `splits` equal ranges (a multiple of 32 terms each), a matrix of f32 sums for each, one behind the
// other; `finish` or `sum_parts` adds them.
// product_f16_nt_S, ...: the same of f16.
// linear_bf16_gelu_S, linear_f16_gelu_S: z[m, n] = x[m, k] w[n, k]' + bias[n], and y = gelu(z), by way of tanh or not;
// all but the bias are halves, row by row. `plus`, where it is not null, lies as C does and is added to the activation.
//
// A block has a tile of S x S results, S = 64 or 128, each of its four warps a quarter of it. 32 of K are in shared memory
// at once, the next 32 on their way. Operands whose rows (or columns) do not begin at 16 bytes are fetched one by one.
//
// Order: each result is one f32 sum over its K in steps of 16 from the first, beyond the end zeros; then C, then the bias,
// then the activation, then `plus`, then it is rounded. GELU is that of a z that was rounded. The tile does not matter to
// the bits, nor whether GELU is a pass of its own. Within 16 terms the hardware's order.
// Launch: ceil(m / S) x ceil(n / S) blocks of 128 threads, of products times `splits`. Does not know layers, nor f32
// operands.

const u32 DEPTH = 32;

struct Shape {
    u32 m, n, k;
    u64 a_pitch, b_pitch, c_pitch;
    u32 adds, activation, aligned;
};

// Where eight of K of a row begin, of rows of 32 of K. The four pieces of a row change places from pair to pair of rows: so
// neither what is copied there nor the pieces at one K of eight rows meet in a bank of shared memory.
__device__ inline u32 piece(u32 row, u32 k) { return row * DEPTH + (k / 8 ^ row / 2 % 4) * 8; }

// `ROWS` rows of `WIDTH` elements as they lie in memory, from (`row`, `column`) on, zeros beyond `rows` and `columns`.
template <u32 ROWS, u32 WIDTH>
__device__ inline void fetch(
    u16* room, const u16* x, u64 pitch, u32 row, u32 rows, u32 column, u32 columns, bool aligned) {
#pragma unroll
    for (u32 i = threadIdx.x; i < ROWS * WIDTH / 8; i += 128) {
        u32 down = i / (WIDTH / 8), right = i % (WIDTH / 8) * 8;
        bool there = row + down < rows && column + right < columns;
        u32 left = there ? least(8, columns - column - right) : 0;
        const u16* from = there ? x + (row + down) * pitch + column + right : x;
        u16* to = room + (WIDTH == DEPTH ? piece(down, right) : down * (WIDTH + 8) + right);
        if (aligned) {
            copy_behind(to, from, 2 * left);
        } else {
            for (u32 j = 0; j < 8; j++) to[j] = j < left ? from[j] : 0;
        }
    }
}

// An operand's S lines (rows of A, columns of B) by 32 of K, as they lie in memory.
template <u32 S, bool ALONG_K>
struct Tile {
    static constexpr u32 PITCH = S + 8;
    static constexpr u32 SIZE = ALONG_K ? S * DEPTH : DEPTH * PITCH;

    __device__ static void take(u16* room, const u16* x, u64 pitch, u32 line, u32 lines, u32 k, u32 end, bool aligned) {
        if (ALONG_K) {
            fetch<S, DEPTH>(room, x, pitch, line, lines, k, end, aligned);
        } else {
            fetch<DEPTH, S>(room, x, pitch, k, end, line, lines, aligned);
        }
    }
    __device__ static void left(u32 (&a)[4], const u16* room, u32 row, u32 k) {
        if (ALONG_K) {
            u32 lane = threadIdx.x % 32;
            load_matrices(a, room + piece(row + lane % 16, k + lane / 16 * 8));
        } else {
            load_matrices_turned(a, left_place_turned(room, PITCH, row, k));
        }
    }
    __device__ static void right(u32 (&b)[4], const u16* room, u32 column, u32 k) {
        if (ALONG_K) {
            u32 lane = threadIdx.x % 32;
            load_matrices(b, room + piece(column + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
        } else {
            load_matrices_turned(b, right_place_turned(room, PITCH, column, k));
        }
    }
};

// What becomes of a sum: the element of C.
struct Result {
    const float* bias;
    const u16* plus;
    float* c32;
    u16* c16;

    // What belongs to a sum: what was there, its bias, and what is added in the end.
    struct With {
        float there, bias;
        u16 plus;
    };
    __device__ With with(const Shape& shape, u64 at, u32 column) const {
        return {shape.adds ? c32[at] : 0.0f, bias ? bias[column] : 0.0f, plus ? plus[at] : (u16)0};
    }
    __device__ void put(const Shape& shape, u64 at, const With& with, float sum) const {
        if (shape.adds) sum = with.there + sum;
        sum = activate(bias ? sum + with.bias : sum, shape.activation);
        if (plus) sum = sum + from_half(with.plus);
        if (c32) {
            c32[at] = sum;
        } else {
            c16[at] = (u16)as_halves(sum, 0.0f);
        }
    }
};

// The elements of z and y.
struct GeluResult {
    const float* bias;
    u16 *z, *y;
    u32 by_tanh;

    typedef float With;
    __device__ With with(const Shape&, u64, u32 column) const { return bias ? bias[column] : 0.0f; }
    __device__ void put(const Shape& shape, u64 at, With its_bias, float sum) const {
        if (bias) sum = its_bias + sum;
        u16 rounded = (u16)as_halves(sum, 0.0f);
        z[at] = rounded;
        sum = from_half(rounded);
        y[at] = (u16)as_halves(by_tanh ? tanh_gelu(sum) : exact_gelu(sum), 0.0f);
    }
};

// What a block has: a tile, and which of K.
struct Share {
    u32 tile, from, end;

    // Of `splits` ranges, with blocks of `size` x `size`; the sums of a block's range begin at the result's new place.
    __device__ static Share of(const Shape& shape, u32 size, u32 splits, float*& c) {
        u32 tiles = parts_of(shape.m, size) * parts_of(shape.n, size), split = blockIdx.x / tiles;
        u32 each = parts_of(parts_of(shape.k, splits), DEPTH) * DEPTH, from = least(shape.k, split * each);
        if (split > 0) c += split * (u64)shape.m * shape.c_pitch;
        return {blockIdx.x % tiles, from, least(shape.k, from + each)};
    }
};

// Results of a thread that are written together.
const u32 TOGETHER = 8;

template <u32 S, bool A_ALONG_K, bool B_ALONG_K, class To>
__device__ inline void multiply(
    const Shape& shape, const Share& share, const u16* a, const u16* b, const To& to, u16* room) {
    typedef Tile<S, A_ALONG_K> Left;
    typedef Tile<S, B_ALONG_K> Right;
    const u32 EACH = Left::SIZE + Right::SIZE, SIDE = S / 2;
    u32 across = parts_of(shape.n, S), warp = threadIdx.x / 32;
    u32 row = share.tile / across * S, column = share.tile % across * S;
    u32 down = warp / 2 * SIDE, right = warp % 2 * SIDE;
    bool a_aligned = (shape.aligned & 1) != 0, b_aligned = (shape.aligned & 2) != 0;
    float sum[SIDE / 16][SIDE / 8][4];
#pragma unroll
    for (u32 i = 0; i < SIDE / 16 * SIDE / 2; i++) sum[i / (SIDE / 2)][i / 4 % (SIDE / 8)][i % 4] = 0.0f;
    Left::take(room, a, shape.a_pitch, row, shape.m, share.from, share.end, a_aligned);
    Right::take(room + Left::SIZE, b, shape.b_pitch, column, shape.n, share.from, share.end, b_aligned);
    end_of_copies();
    u32 stage = 0;
    for (u32 start = share.from; start < share.end; start += DEPTH, stage ^= 1) {
        if (start + DEPTH < share.end) {
            u16* next = room + (stage ^ 1) * EACH;
            Left::take(next, a, shape.a_pitch, row, shape.m, start + DEPTH, share.end, a_aligned);
            Right::take(next + Left::SIZE, b, shape.b_pitch, column, shape.n, start + DEPTH, share.end, b_aligned);
        }
        end_of_copies();
        copies_are_done<1>();
        __syncthreads();
        const u16 *lefts = room + stage * EACH, *rights = lefts + Left::SIZE;
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            u32 x[SIDE / 16][4];
#pragma unroll
            for (u32 i = 0; i < SIDE / 16; i++) Left::left(x[i], lefts, down + i * 16, k);
#pragma unroll
            for (u32 j = 0; j < SIDE / 16; j++) {
                u32 y[4];
                Right::right(y, rights, right + j * 16, k);
#pragma unroll
                for (u32 i = 0; i < SIDE / 16; i++) {
                    multiply_add(sum[i][2 * j], x[i], y[0], y[1]);
                    multiply_add(sum[i][2 * j + 1], x[i], y[2], y[3]);
                }
            }
        }
        __syncthreads();
    }
    // 16 rows of each warp at once, through shared memory, so that neighbours go to neighbours.
    u32 lane = threadIdx.x % 32;
    float(*out)[SIDE + 8] = (float(*)[SIDE + 8]) room + warp * 16;
#pragma unroll
    for (u32 i = 0; i < SIDE / 16; i++) {
#pragma unroll
        for (u32 j = 0; j < SIDE / 8; j++) put_sums(&out[0][j * 8], SIDE + 8, sum[i][j]);
        __syncthreads();
#pragma unroll 1
        for (u32 first = lane; first < 16 * SIDE; first += 32 * TOGETHER) {
            // What belongs to them is on its way before the first is written.
            typename To::With with[TOGETHER];
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                u32 each = first + 32 * k;
                u32 line = row + down + i * 16 + each / SIDE, place = column + right + each % SIDE;
                bool is_there = line < shape.m && place < shape.n;
                with[k] = is_there ? to.with(shape, line * shape.c_pitch + place, place) : typename To::With{};
            }
#pragma unroll
            for (u32 k = 0; k < TOGETHER; k++) {
                u32 each = first + 32 * k;
                u32 line = row + down + i * 16 + each / SIDE, place = column + right + each % SIDE;
                float own = out[each / SIDE][each % SIDE];
                if (line < shape.m && place < shape.n) to.put(shape, line * shape.c_pitch + place, with[k], own);
            }
        }
        __syncthreads();
    }
}

#define PRODUCT(W)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(128) NAME(product_, _nt_##W)(                                           \
        const u16* a, const u16* b, const float* bias, const u16* plus, float* c32, u16* c16, u32 m, u32 n, u32 k,       \
        u64 a_pitch, u64 b_pitch, u64 c_pitch, u32 adds, u32 activation, u32 aligned, u32 splits) {                      \
        alignas(16) __shared__ u16 room[2 * (Tile<W, true>::SIZE + Tile<W, true>::SIZE)];                                \
        Shape shape = {m, n, k, a_pitch, b_pitch, c_pitch, adds, activation, aligned};                                   \
        Share share = Share::of(shape, W, splits, c32);                                                                  \
        multiply<W, true, true>(shape, share, a, b, Result{bias, plus, c32, c16}, room);                                 \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(product_, _nn_##W)(                                           \
        const u16* a, const u16* b, const float* bias, const u16* plus, float* c32, u16* c16, u32 m, u32 n, u32 k,       \
        u64 a_pitch, u64 b_pitch, u64 c_pitch, u32 adds, u32 activation, u32 aligned, u32 splits) {                      \
        alignas(16) __shared__ u16 room[2 * (Tile<W, true>::SIZE + Tile<W, false>::SIZE)];                               \
        Shape shape = {m, n, k, a_pitch, b_pitch, c_pitch, adds, activation, aligned};                                   \
        Share share = Share::of(shape, W, splits, c32);                                                                  \
        multiply<W, true, false>(shape, share, a, b, Result{bias, plus, c32, c16}, room);                                \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(product_, _tn_##W)(                                           \
        const u16* a, const u16* b, const float* bias, const u16* plus, float* c32, u16* c16, u32 m, u32 n, u32 k,       \
        u64 a_pitch, u64 b_pitch, u64 c_pitch, u32 adds, u32 activation, u32 aligned, u32 splits) {                      \
        alignas(16) __shared__ u16 room[2 * (Tile<W, false>::SIZE + Tile<W, false>::SIZE)];                              \
        Shape shape = {m, n, k, a_pitch, b_pitch, c_pitch, adds, activation, aligned};                                   \
        Share share = Share::of(shape, W, splits, c32);                                                                  \
        multiply<W, false, false>(shape, share, a, b, Result{bias, plus, c32, c16}, room);                               \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(linear_, _gelu_##W)(                                          \
        const u16* x, const u16* w, const float* bias, u16* z, u16* y, u32 m, u32 n, u32 k, u32 by_tanh, u32 aligned) {  \
        alignas(16) __shared__ u16 room[2 * (Tile<W, true>::SIZE + Tile<W, true>::SIZE)];                                \
        Shape shape = {m, n, k, k, k, n, 0, 0, aligned};                                                                 \
        multiply<W, true, true>(shape, {blockIdx.x, 0, k}, x, w, GeluResult{bias, z, y, by_tanh}, room);                 \
    }

PRODUCT(64)
PRODUCT(128)
