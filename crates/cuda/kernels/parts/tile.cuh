// The core of every matrix product: one tile of 64 x 64 results by a block of 256 threads, 4 x 4 a thread.
//
// Order: each result is a sum over K in blocks of 512 from the start of the range, each block from zero in order by fused
// multiply-add, blocks added in order: as the CPU device has it, so a product has the CPU's bits.
//
// An operand is a type with `Line line(index)` (what belongs to a row of A or a column of B, worked out once), `Term term(k)`
// (what belongs to a place in K), `go(term, step)` (as far on as `step`, a term, is from the first), `at(line, term, wanted)`
// and `bool along_k` (whether neighbours in K are neighbours in memory). Lines beyond the matrix have to give zeros; K stays
// in its range. This file does not know what the operands are.

const u32 TILE = 64;
const u32 DEPTH = 16;
const u32 K_BLOCK = 512;
const u32 TILE_PITCH = TILE + 4;
// How far a thread's turns of fetching are apart in K, where neighbours in K are none in memory.
const u32 APART = 4;

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
        k = along_k ? threadIdx.x % DEPTH : threadIdx.x / TILE + APART * i;
    }
};

// A thread's numbers of a step.
struct Fetched {
    float a[4], b[4];
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
    typename A::Term down = a.term(from + Fetch(a.along_k, 0).k), down_step = a.term(a.along_k ? DEPTH : APART);
    typename B::Term along = b.term(from + Fetch(b.along_k, 0).k), along_step = b.term(b.along_k ? DEPTH : APART);
    float block[4][4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        rows[i] = a.line(row + Fetch(a.along_k, i).line);
        columns[i] = b.line(column + Fetch(b.along_k, i).line);
#pragma unroll
        for (u32 j = 0; j < 4; j++) total[i][j] = block[i][j] = 0.0f;
    }
    // What a thread fetches for a step, while the step before is computed.
    Fetched next = {};
    auto fetch = [&](u32 depth) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            next.a[i] = a.at(rows[i], down, Fetch(a.along_k, i).k < depth);
            next.b[i] = b.at(columns[i], along, Fetch(b.along_k, i).k < depth);
            // Four turns are a step.
            if (!a.along_k || i == 3) a.go(down, down_step);
            if (!b.along_k || i == 3) b.go(along, along_step);
        }
    };
    fetch(to - from);
    for (u32 start = from; start < to; start += DEPTH) {
        u32 depth = least(DEPTH, to - start);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            Fetch left(a.along_k, i), right(b.along_k, i);
            room.a[left.k][left.line] = next.a[i];
            room.b[right.k][right.line] = next.b[i];
        }
        __syncthreads();
        if (depth < to - start) fetch(to - start - depth);
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

// What this thread has of the tile at (`row`, `column`), one result after another: those within `rows` and `columns`, with what
// `of` says of their column, and what `with(row, of)` has loaded for each before the first is put.
template <class Of, class With, class Put>
__device__ inline void each_result(
    const TileSums& total, u32 row, u32 rows, u32 column, u32 columns, Of of, With with, Put put) {
    row += threadIdx.x / 16 * 4;
    column += threadIdx.x % 16 * 4;
    decltype(of(column)) places[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) places[j] = of(column + j);
    decltype(with(row, places[0])) loaded[4][4] = {};
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        if (row + i / 4 < rows && column + i % 4 < columns) loaded[i / 4][i % 4] = with(row + i / 4, places[i % 4]);
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        if (row + i / 4 < rows && column + i % 4 < columns) {
            put(row + i / 4, places[i % 4], total[i / 4][i % 4], loaded[i / 4][i % 4]);
        }
    }
}
