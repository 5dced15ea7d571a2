// product_T: C[m, n] = act(A[m, k] B[k, n] + bias[n]), or C += A B; any strides of A and B, columns of C contiguous.
// linear_gelu_T: z[m, n] = x[m, k] w[n, k]' + bias[n], and y = gelu(z), by way of tanh or not; all of it row by row.
//
// K may be cut into `splits` ranges of 512 terms each, a matrix of sums for each, one behind the other; `finish` adds them.
//
// The product that is always there: right for every layout, f32 throughout. A library's product is the fast way.
// Neighbours along K are fetched together where they lie together, else neighbours along rows or columns.
//
// Order: see `tile`: K in blocks of 512, each in order; then the bias, then the activation. The CPU's bits, and of both
// kernels those of a product and a pass of `gelu.cu` behind it.
// A block has a tile of T results, 32x64, 64x64 or 128x128: a large one reads half as much for each multiplication, a small
// one leaves less of a GPU idle.
// Launch: ceil(m / rows of T) x ceil(n / columns of T) blocks of 256 threads, of `product` times `splits`. Does not know
// layers.

template <bool ALONG_K>
struct Operand {
    typedef u64 Where;
    typedef u64 Term;
    typedef const float* Line;
    const float* x;
    u32 lines;
    u64 line_stride, k_stride;
    static constexpr bool along_k = ALONG_K, shared = false;
    __device__ Line line(u32 i) const { return kept(lines, x + least(i, lines - 1) * line_stride); }
    __device__ Where where(u32 k) const { return ALONG_K ? k : k * k_stride; }
    __device__ void go(Where& where, Where step) const { where += step; }
    __device__ Term term(Where where) const { return where; }
    __device__ float at(Line line, Term term, bool wanted) const {
        // One load without a branch, so that several are on their way.
        float v = 0.0f;
        if (wanted) v = line[term];
        return v;
    }
};

// What belongs to a result: what was there, and the bias.
struct Loaded {
    float there, bias;
};

// With the columns of B, which lie along K or not.
template <class Tile, class A>
__device__ inline void product_with(
    Tile& room, const A& a, const float* b, u32 n, u64 b_column, u64 b_row, u32 row, u32 column, u32 from,
    u32 to, typename Tile::Sums& total) {
    if (b_row == 1) {
        tile_product(room, a, Operand<true>{b, n, b_column, b_row}, row, column, from, to, total);
    } else {
        tile_product(room, a, Operand<false>{b, n, b_column, b_row}, row, column, from, to, total);
    }
}

template <class Tile>
__device__ inline void product_of(
    Tile& room, const float* a, const float* b, const float* bias, float* c, u32 m, u32 n, u32 k, u64 a_row,
    u64 a_column, u64 b_row, u64 b_column, u64 c_row, u32 adds, u32 activation, u32 splits) {
    const u32 ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS;
    u32 across = parts_of(n, COLUMNS), tiles = parts_of(m, ROWS) * across;
    u32 split = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    u32 row = tile / across * ROWS, column = tile % across * COLUMNS;
    u32 from = split * K_BLOCK, to = splits > 1 ? least(k, from + K_BLOCK) : k;
    c += split * (u64)m * c_row;
    typename Tile::Sums total;
    if (a_column == 1) {
        product_with(room, Operand<true>{a, m, a_row, a_column}, b, n, b_column, b_row, row, column, from, to, total);
    } else {
        product_with(room, Operand<false>{a, m, a_row, a_column}, b, n, b_column, b_row, row, column, from, to, total);
    }
    auto loaded = [&](u32 row, u32 column) -> Loaded {
        return {adds ? c[row * c_row + column] : 0.0f, bias ? bias[column] : 0.0f};
    };
    auto put = [&](u32 row, u32 column, float sum, const Loaded& with) {
        sum = adds ? with.there + sum : sum;
        c[row * c_row + column] = activate(bias ? sum + with.bias : sum, activation);
    };
    each_result(room, total, row, m, column, n, Itself(), loaded, put);
}

template <class Tile>
__device__ inline void linear_gelu_of(
    Tile& room, const float* x, const float* w, const float* bias, float* z, float* y, u32 m, u32 n, u32 k,
    u32 by_tanh) {
    const u32 ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS;
    u32 across = parts_of(n, COLUMNS);
    u32 row = blockIdx.x / across * ROWS, column = blockIdx.x % across * COLUMNS;
    typename Tile::Sums total;
    tile_product(room, Operand<true>{x, m, k, 1}, Operand<true>{w, n, k, 1}, row, column, 0, k, total);
    auto bias_of = [&](u32, u32 column) { return bias ? bias[column] : 0.0f; };
    auto put = [&](u32 row, u32 column, float sum, float its_bias) {
        u64 at = (u64)row * n + column;
        if (bias) sum = its_bias + sum;
        z[at] = sum;
        y[at] = by_tanh ? tanh_gelu(sum) : exact_gelu(sum);
    };
    each_result(room, total, row, m, column, n, Itself(), bias_of, put);
}

#define PRODUCT(H, W)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) product_##H##x##W(                                                 \
        const float* a, const float* b, const float* bias, float* c, u32 m, u32 n, u32 k, u64 a_row, u64 a_column,       \
        u64 b_row, u64 b_column, u64 c_row, u32 adds, u32 activation, u32 splits) {                                      \
        __shared__ Room<H, W> room;                                                                                      \
        product_of(room, a, b, bias, c, m, n, k, a_row, a_column, b_row, b_column, c_row, adds, activation, splits);     \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) linear_gelu_##H##x##W(                                             \
        const float* x, const float* w, const float* bias, float* z, float* y, u32 m, u32 n, u32 k, u32 by_tanh) {       \
        __shared__ Room<H, W> room;                                                                                      \
        linear_gelu_of(room, x, w, bias, z, y, m, n, k, by_tanh);                                                        \
    }

PRODUCT(32, 64)
PRODUCT(64, 64)
PRODUCT(128, 128)
