// turn: matrices with their rows and columns the other way round: channels of images come to lie side by side so, and back.
//
// Of each matrix `to[column][row] = from[row][column]`, bit by bit. Where it is asked for, a column's bias is added (null:
// none), then what was there before, and the sum is activated. Where `x` is there and not above zero, the result is zero:
// what a ReLU that gave `x` does to its gradient.
//
// Launch: a block for each tile of 4096 numbers, which is 2^bits rows high; 256 threads, each reads 16 numbers along rows
// and writes 16 along columns. Order: none, every element stands alone.
// Does not know what the numbers are.

enum {
    TILE = 4096,
    THREADS = 256,
    // Numbers in a word of shared memory: rows lie an odd number of words apart, so that a column is in many banks.
    PAD = 4 / sizeof(Stored),
    MOST_ROWS = 256,
};

extern "C" __global__ void __launch_bounds__(256) NAME(turn_, )(
    const Stored* from, const float* bias, const Stored* x, Stored* to, u32 rows, u32 columns, u32 bits, u32 activation,
    u32 adds) {
    __shared__ Stored tile[TILE + MOST_ROWS * PAD];
    u32 high = 1u << bits, wide = TILE >> bits, pitch = wide + PAD;
    u32 across = parts_of(columns, wide), down = parts_of(rows, high);
    u32 left = blockIdx.x % across * wide, top = blockIdx.x / across % down * high;
    u64 matrix = (u64)(blockIdx.x / across / down) * rows * columns;
#pragma unroll
    for (u32 part = 0; part < TILE / THREADS; part++) {
        u32 i = part * THREADS + threadIdx.x, row = i >> (12 - bits), column = i & (wide - 1);
        if (top + row < rows && left + column < columns)
            tile[row * pitch + column] = from[matrix + (u64)(top + row) * columns + left + column];
    }
    __syncthreads();
    bool is_changed = bias || x || adds || activation != ACTIVATION_NONE;
#pragma unroll
    for (u32 part = 0; part < TILE / THREADS; part++) {
        u32 i = part * THREADS + threadIdx.x, row = i & (high - 1), column = i >> bits;
        if (top + row >= rows || left + column >= columns) continue;
        u64 at = matrix + (u64)(left + column) * rows + top + row;
        const Stored& turned = tile[row * pitch + column];
        if (!is_changed) {
            to[at] = turned;
            continue;
        }
        float sum = bias ? turned + bias[left + column] : (float)turned;
        if (adds) sum = to[at] + sum;
        to[at] = !x || x[at] > 0.0f ? activate(sum, activation) : 0.0f;
    }
}
