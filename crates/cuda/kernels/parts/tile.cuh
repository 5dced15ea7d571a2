// The core of every matrix product in f32: a tile of results by a block of 256 threads, which are 16 down and 16 across. Each has
// 4 x 4 results of every 64 x 64 of the tile.
//
// Order: each result is a sum over K in blocks of 512 from the start of the range, each block from zero in order by fused
// multiply-add, blocks added in order: as the CPU device has it, so a product has the CPU's bits. The tile does not matter to them.
//
// An operand is a type with `Line line(index)` (what belongs to a row of A or a column of B, worked out once), `Term term(k)`
// (what belongs to a place in K), `go(term, step)` (as far on as `step`, a term, is from the first), `at(line, term, wanted)`
// and `bool along_k` (whether neighbours in K are neighbours in memory). Lines beyond the matrix have to give zeros; K stays
// in its range. This file does not know what the operands are.

const u32 TILE = 64;
const u32 DEPTH = 16;
const u32 K_BLOCK = 512;

// The numbers of a step, which are read while those of the next are written: of 64 rows `DOWN` times and as many columns
// `RIGHT` times.
template <u32 DOWN, u32 RIGHT>
struct alignas(16) Room {
    float a[2][DEPTH][TILE * DOWN + 4];
    float b[2][DEPTH][TILE * RIGHT + 4];
};
typedef Room<1, 1> TileRoom;

// What a thread has of a tile: rows t / 16 * 4 and columns t % 16 * 4, and on from those of each 64.
template <u32 DOWN, u32 RIGHT>
struct Sums {
    float of[4 * DOWN][4 * RIGHT];
};
typedef Sums<1, 1> TileSums;

// The numbers of an operand that a thread fetches for a step, while the step before is computed. Of a warp 8 numbers of K of 4 lines
// are neighbours in memory, or 32 lines; in shared memory no two of them are in one bank.
template <class Operand, u32 LINES>
struct Fetched {
    static constexpr u32 TURNS = LINES * DEPTH / 256, OWN = Operand::along_k ? LINES / 32 : 1;
    static constexpr u32 APART = Operand::along_k ? 8 : 256 / LINES;
    typename Operand::Line lines[OWN];
    typename Operand::Term term, step;
    float numbers[TURNS];

    // The line of the tile and the K of a step that belong to a turn.
    __device__ static u32 line(u32 i) { return Operand::along_k ? threadIdx.x / 8 + 32 * (i % OWN) : threadIdx.x % LINES; }
    __device__ static u32 k(u32 i) { return (Operand::along_k ? threadIdx.x % 8 : threadIdx.x / LINES) + APART * (i / OWN); }

    __device__ Fetched(const Operand& x, u32 first, u32 from) : term(x.term(from + k(0))), step(x.term(APART)) {
#pragma unroll
        for (u32 i = 0; i < OWN; i++) lines[i] = x.line(first + line(i));
    }

    // Those of the next step, of which `depth` are left.
    __device__ void take(const Operand& x, u32 depth) {
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) {
            numbers[i] = x.at(lines[i % OWN], term, k(i) < depth);
            if (i % OWN == OWN - 1) x.go(term, step);
        }
    }

    __device__ void put(float (&room)[DEPTH][LINES + 4]) const {
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) room[k(i)][line(i)] = numbers[i];
    }
};

template <u32 DOWN, u32 RIGHT>
__device__ inline void tile_step(const Room<DOWN, RIGHT>& room, u32 stage, u32 k, Sums<DOWN, RIGHT>& block) {
    Four a[DOWN], b[RIGHT];
#pragma unroll
    for (u32 i = 0; i < DOWN; i++) a[i] = *(const Four*)&room.a[stage][k][TILE * i + threadIdx.x / 16 * 4];
#pragma unroll
    for (u32 i = 0; i < RIGHT; i++) b[i] = *(const Four*)&room.b[stage][k][TILE * i + threadIdx.x % 16 * 4];
#pragma unroll
    for (u32 r = 0; r < 4 * DOWN; r++) {
#pragma unroll
        for (u32 c = 0; c < 4 * RIGHT; c++) block.of[r][c] = fmaf(a[r / 4].v[r % 4], b[c / 4].v[c % 4], block.of[r][c]);
    }
}

// The sums over `from <= k < to` of the tile at (`row`, `column`).
template <u32 DOWN, u32 RIGHT, class A, class B>
__device__ inline void tile_product(
    Room<DOWN, RIGHT>& room, const A& a, const B& b, u32 row, u32 column, u32 from, u32 to, Sums<DOWN, RIGHT>& total) {
    Fetched<A, TILE * DOWN> left(a, row, from);
    Fetched<B, TILE * RIGHT> right(b, column, from);
    total = {};
    left.take(a, to - from);
    right.take(b, to - from);
    u32 stage = 0;
    for (u32 first = from; first < to; first += K_BLOCK) {
        Sums<DOWN, RIGHT> block = {};
        u32 end = least(to, first + K_BLOCK);
        for (u32 start = first; start < end; start += DEPTH, stage ^= 1) {
            left.put(room.a[stage]);
            right.put(room.b[stage]);
            __syncthreads();
            if (to - start > DEPTH) {
                left.take(a, to - start - DEPTH);
                right.take(b, to - start - DEPTH);
            }
            if (end - start >= DEPTH) {
#pragma unroll
                for (u32 k = 0; k < DEPTH; k++) tile_step(room, stage, k, block);
            } else {
#pragma unroll 1
                for (u32 k = 0; k < end - start; k++) tile_step(room, stage, k, block);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 16 * DOWN * RIGHT; i++) {
            float &sum = total.of[i / (4 * RIGHT)][i % (4 * RIGHT)], more = block.of[i / (4 * RIGHT)][i % (4 * RIGHT)];
            sum = first == from ? more : sum + more;
        }
    }
}

// The results of the tile at (`row`, `column`) that are within `rows` and `columns`, through shared memory, so that neighbours go
// to neighbours: with what `of` says of their column, and what `with(row, of)` has loaded for each of 16 before the first is put.
template <u32 DOWN, u32 RIGHT, class Of, class With, class Put>
__device__ inline void each_result(
    Room<DOWN, RIGHT>& room, const Sums<DOWN, RIGHT>& total, u32 row, u32 rows, u32 column, u32 columns, Of of, With with,
    Put put) {
    float(*out)[TILE + 4] = (float(*)[TILE + 4]) & room;
    u32 line = threadIdx.x / TILE, place = threadIdx.x % TILE;
    // One part after another, so that what is done with a result stands in the code once.
#pragma unroll 1
    for (u32 part = 0; part < DOWN * RIGHT; part++) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float* own = &total.of[part / RIGHT * 4 + i][part % RIGHT * 4];
            Four four = {own[0], own[1], own[2], own[3]};
            *(Four*)&out[threadIdx.x / 16 * 4 + i][threadIdx.x % 16 * 4] = four;
        }
        __syncthreads();
        u32 first = row + part / RIGHT * TILE + line, right = column + part % RIGHT * TILE + place;
        if (right < columns) {
            auto its = of(right);
            decltype(with(row, its)) loaded[16] = {};
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                if (first + 4 * i < rows) loaded[i] = with(first + 4 * i, its);
            }
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                if (first + 4 * i < rows) put(first + 4 * i, its, out[line + 4 * i][place], loaded[i]);
            }
        }
    }
}
