// The core of every matrix product: one tile of 64 x 64 results by a block of 256 threads, 4 x 4 a thread.
//
// Order: each result is a sum over K in blocks of 512 from the start of the range, each block from zero in order by fused
// multiply-add, blocks added in order: as the CPU device has it, so a product has the CPU's bits.
//
// An operand is a type with `Line line(index)` (what belongs to a row of A or a column of B, worked out once),
// `float at(line, k)` and `bool along_k` (whether neighbours in K are neighbours in memory). Lines beyond the matrix
// have to give zeros; K stays in its range. This file does not know what the operands are.

const u32 TILE = 64;
const u32 DEPTH = 16;
const u32 K_BLOCK = 512;
const u32 TILE_PITCH = TILE + 4;

// Four neighbours are read at once.
struct alignas(16) TileRoom {
    float a[DEPTH][TILE_PITCH];
    float b[DEPTH][TILE_PITCH];
};

// What a thread has of a tile.
typedef float TileSums[4][4];

// Which of the tile's lines and K a thread fetches in turn `i` of four: neighbours in memory go to neighbours in a warp.
struct Fetch {
    u32 line, k;
    __device__ Fetch(bool along_k, u32 i) {
        line = along_k ? threadIdx.x / DEPTH + DEPTH * i : threadIdx.x % TILE;
        k = along_k ? threadIdx.x % DEPTH : threadIdx.x / TILE + 4 * i;
    }
};

__device__ inline void tile_step(const TileRoom& room, u32 k, float (&block)[4][4]) {
    const float* a = &room.a[k][threadIdx.x / 16 * 4];
    const float* b = &room.b[k][threadIdx.x % 16 * 4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) block[r][c] = fmaf(a[r], b[c], block[r][c]);
    }
}

// The sums over `from <= k < to` of the tile at (`row`, `column`): thread t has rows t / 16 * 4 and columns t % 16 * 4.
template <class A, class B>
__device__ inline void tile_product(
    TileRoom& room, const A& a, const B& b, u32 row, u32 column, u32 from, u32 to, TileSums& total) {
    typename A::Line rows[4];
    typename B::Line columns[4];
    float block[4][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        rows[i] = a.line(row + Fetch(a.along_k, i).line);
        columns[i] = b.line(column + Fetch(b.along_k, i).line);
#pragma unroll
        for (u32 j = 0; j < 4; j++) total[i][j] = block[i][j] = 0.0f;
    }
    for (u32 start = from; start < to; start += DEPTH) {
        u32 depth = least(DEPTH, to - start);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            Fetch left(a.along_k, i), right(b.along_k, i);
            room.a[left.k][left.line] = left.k < depth ? a.at(rows[i], start + left.k) : 0.0f;
            room.b[right.k][right.line] = right.k < depth ? b.at(columns[i], start + right.k) : 0.0f;
        }
        __syncthreads();
        if (depth == DEPTH) {
#pragma unroll
            for (u32 k = 0; k < DEPTH; k++) tile_step(room, k, block);
        } else {
            for (u32 k = 0; k < depth; k++) tile_step(room, k, block);
        }
        __syncthreads();
        u32 done = start + depth - from;
        if (done % K_BLOCK == 0 || start + depth == to) {
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                float& sum = total[i / 4][i % 4];
                sum = done <= K_BLOCK ? block[i / 4][i % 4] : sum + block[i / 4][i % 4];
                block[i / 4][i % 4] = 0.0f;
            }
        }
    }
}

// What this thread has of the tile at (`row`, `column`), one result after another: those within `rows` and `columns`.
template <class Put>
__device__ inline void each_result(const TileSums& total, u32 row, u32 rows, u32 column, u32 columns, Put put) {
    row += threadIdx.x / 16 * 4;
    column += threadIdx.x % 16 * 4;
    for (u32 i = 0; i < 4 && row + i < rows; i++) {
        for (u32 j = 0; j < 4 && column + j < columns; j++) put(row + i, column + j, total[i][j]);
    }
}
