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
    PARTS = TILE / THREADS,
    TOGETHER = 4,
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
    // A thread stays in its column while it reads, and in its row while it writes.
    u32 row = threadIdx.x >> (12 - bits), column = threadIdx.x & (wide - 1), step = THREADS >> (12 - bits);
    u32 here = left + column < columns && top + row < rows ? rows - top - row : 0;
    const Stored* next = from + matrix + (u64)(top + row) * columns + left + column;
    Stored* place = tile + row * pitch + column;
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
        if (part * step < here) *place = *next;
        next += (u64)step * columns;
        place += step * pitch;
    }
    __syncthreads();
    row = threadIdx.x & (high - 1), column = threadIdx.x >> bits, step = THREADS >> bits;
    here = top + row < rows && left + column < columns ? columns - left - column : 0;
    u64 at = matrix + (u64)(left + column) * rows + top + row, far = (u64)step * rows;
    place = tile + row * pitch + column;
    if (!(bias || x || adds || activation != ACTIVATION_NONE)) {
        Stored* own = to + at;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
            if (part * step < here) *own = *place;
            own += far;
            place += step;
        }
        return;
    }
    for (u32 part = 0; part < PARTS; part += TOGETHER) {
        // All are on their way before one of them is there.
        float before[TOGETHER], passed[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            bool is_there = (part + i) * step < here;
            before[i] = adds && is_there ? (float)to[at + i * far] : 0.0f;
            passed[i] = x && is_there ? (float)x[at + i * far] : 1.0f;
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            u32 more = (part + i) * step;
            if (more >= here) continue;
            float turned = *place, sum = bias ? turned + bias[left + column + more] : turned;
            if (adds) sum = before[i] + sum;
            to[at + i * far] = passed[i] > 0.0f ? activate(sum, activation) : 0.0f;
            place += step;
        }
        at += TOGETHER * far;
    }
}
