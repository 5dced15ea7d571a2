// The core of every matrix product in f32: a tile of results by a block of 256 threads.
//
// Order: each result is a sum over K in blocks of 512 from the start of the range, each block from zero in order by fused
// multiply-add, blocks added in order: as the CPU device has it, so a product has the CPU's bits. The tile does not matter to them.
//
// An operand is a type with `Line line(index)` (what belongs to a row of A or a column of B, worked out once), `Where where(k)` (a
// place in K), `go(where, step)` (as far on as `step`, a place, is from the first), `Term term(where)` (what belongs to it),
// `at(line, term, wanted)`, `bool along_k` (whether neighbours in K are neighbours in memory) and, where they are none, `bool
// shared` (whether a term is worth to be worked out once for all threads; it has 32 bytes at most). Lines beyond the matrix may
// give any numbers of it: nobody wants their results. K stays in its range. This file does not know what the operands are.

const u32 DEPTH = 16;
const u32 K_BLOCK = 512;

// A tile of `H` x `W` results, and the numbers of a step, which are read while those of the next are written.
template <u32 H, u32 W>
struct alignas(16) Room {
    static constexpr u32 ROWS = H, COLUMNS = W;
    // Threads that are neighbours in a row, and in a column. A flat tile has more of them in a row.
    static constexpr u32 ACROSS = W > 4 * H ? 32 : 16, DOWN = 256 / ACROSS;
    // What a thread has of a tile: pieces of `TALL` x `WIDE` results. Those of all threads together are a part of the tile.
    static constexpr u32 TALL = H < 4 * DOWN ? H / DOWN : 4, WIDE = W < 4 * ACROSS ? W / ACROSS : 4;
    static constexpr u32 PART_ROWS = TALL * DOWN, PART_COLUMNS = WIDE * ACROSS, RIGHT = W / PART_COLUMNS;
    static constexpr u32 PARTS = H / PART_ROWS * RIGHT;
    struct Sums {
        float of[H / DOWN][W / ACROSS];
    };

    float a[2][DEPTH][H + 4];
    float b[2][DEPTH][W + 4];
    // The terms of the next step, of operands that share them.
    Shared a_terms[2][DEPTH], b_terms[2][DEPTH];

    // Where a thread's pieces lie in each part.
    __device__ static u32 row() { return threadIdx.x / ACROSS * TALL; }
    __device__ static u32 column() { return threadIdx.x % ACROSS * WIDE; }
};

// The numbers of an operand that a thread fetches for a step, while the step before is computed. Of a warp 8 numbers of K of 4 lines
// are neighbours in memory, or 32 lines; in shared memory no two of them are in one bank.
template <class Operand, u32 LINES>
struct Fetched {
    static constexpr u32 TURNS = LINES * DEPTH / 256, OWN = Operand::along_k ? LINES / 32 : 1;
    static constexpr u32 APART = Operand::along_k ? 8 : 256 / LINES;
    static constexpr bool SHARED = Operand::shared;
    static_assert(!SHARED || (!Operand::along_k && sizeof(typename Operand::Term) <= sizeof(Shared)), "all threads see a term");
    typename Operand::Line lines[OWN];
    typename Operand::Where where, step;
    float numbers[TURNS];

    // The line of the tile and the K of a step that belong to a turn.
    __device__ static u32 line(u32 i) { return Operand::along_k ? threadIdx.x / 8 + 32 * (i % OWN) : threadIdx.x % LINES; }
    __device__ static u32 k(u32 i) { return (Operand::along_k ? threadIdx.x % 8 : threadIdx.x / LINES) + APART * (i / OWN); }

    __device__ Fetched(const Operand& x, u32 first, u32 from)
        : where(x.where(from + (SHARED ? threadIdx.x % DEPTH : k(0)))), step(x.where(SHARED ? DEPTH : APART)) {
#pragma unroll
        for (u32 i = 0; i < OWN; i++) lines[i] = x.line(first + line(i));
    }

    // Tells all threads the terms of the next step.
    __device__ void tell(const Operand& x, Shared (&terms)[DEPTH]) {
        if (SHARED && threadIdx.x < DEPTH) {
            *(typename Operand::Term*)&terms[threadIdx.x] = x.term(where);
            x.go(where, step);
        }
    }

    // The numbers of the next step, of which `depth` are left.
    __device__ void take(const Operand& x, const Shared (&terms)[DEPTH], u32 depth) {
        if (depth >= DEPTH) fetch<true>(x, terms, depth);
        else fetch<false>(x, terms, depth);
    }

    template <bool ALL>
    __device__ void fetch(const Operand& x, const Shared (&terms)[DEPTH], u32 depth) {
        typename Operand::Term term;
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) {
            if (SHARED) term = *(const typename Operand::Term*)&terms[k(i)];
            else if (i % OWN == 0) term = x.term(where);
            numbers[i] = x.at(lines[i % OWN], term, ALL || k(i) < depth);
            if (!SHARED && i % OWN == OWN - 1) x.go(where, step);
        }
    }

    __device__ void put(float (&room)[DEPTH][LINES + 4]) const {
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) room[k(i)][line(i)] = numbers[i];
    }
};

template <class Tile>
__device__ inline void tile_step(const Tile& room, u32 stage, u32 k, typename Tile::Sums& block) {
    const u32 TALL = Tile::TALL, WIDE = Tile::WIDE, DOWN = Tile::ROWS / Tile::PART_ROWS, RIGHT = Tile::RIGHT;
    Piece<TALL> a[DOWN];
    Piece<WIDE> b[RIGHT];
#pragma unroll
    for (u32 i = 0; i < DOWN; i++) a[i] = *(const Piece<TALL>*)&room.a[stage][k][Tile::PART_ROWS * i + room.row()];
#pragma unroll
    for (u32 i = 0; i < RIGHT; i++) b[i] = *(const Piece<WIDE>*)&room.b[stage][k][Tile::PART_COLUMNS * i + room.column()];
#pragma unroll
    for (u32 r = 0; r < TALL * DOWN; r++) {
#pragma unroll
        for (u32 c = 0; c < WIDE * RIGHT; c++) {
            block.of[r][c] = fmaf(a[r / TALL].v[r % TALL], b[c / WIDE].v[c % WIDE], block.of[r][c]);
        }
    }
}

// The sums over `from <= k < to` of the tile at (`row`, `column`).
template <class Tile, class A, class B>
__device__ inline void tile_product(
    Tile& room, const A& a, const B& b, u32 row, u32 column, u32 from, u32 to, typename Tile::Sums& total) {
    typedef typename Tile::Sums Sums;
    const u32 WIDTH = Tile::COLUMNS / Tile::ACROSS;
    Fetched<A, Tile::ROWS> left(a, row, from);
    Fetched<B, Tile::COLUMNS> right(b, column, from);
    total = {};
    left.tell(a, room.a_terms[0]);
    right.tell(b, room.b_terms[0]);
    if (A::shared || B::shared) __syncthreads();
    left.take(a, room.a_terms[0], to - from);
    right.take(b, room.b_terms[0], to - from);
    u32 stage = 0;
    for (u32 first = from; first < to; first += K_BLOCK) {
        Sums block = {};
        u32 end = least(to, first + K_BLOCK);
        for (u32 start = first; start < end; start += DEPTH, stage ^= 1) {
            left.put(room.a[stage]);
            right.put(room.b[stage]);
            left.tell(a, room.a_terms[stage ^ 1]);
            right.tell(b, room.b_terms[stage ^ 1]);
            __syncthreads();
            if (to - start > DEPTH) {
                left.take(a, room.a_terms[stage ^ 1], to - start - DEPTH);
                right.take(b, room.b_terms[stage ^ 1], to - start - DEPTH);
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
        for (u32 i = 0; i < Tile::ROWS * Tile::COLUMNS / 256; i++) {
            float &sum = total.of[i / WIDTH][i % WIDTH], more = block.of[i / WIDTH][i % WIDTH];
            sum = first == from ? more : sum + more;
        }
    }
}

// The results of the tile at (`row`, `column`) that are within `rows` and `columns`, through shared memory, so that neighbours go
// to neighbours: with what `of` says of their column, and what `with(row, of)` has loaded for each of a thread's own of a part
// before the first is put.
template <class Tile, class Of, class With, class Put>
__device__ inline void each_result(
    Tile& room, const typename Tile::Sums& total, u32 row, u32 rows, u32 column, u32 columns, Of of, With with, Put put) {
    const u32 HEIGHT = Tile::PART_ROWS, WIDTH = Tile::PART_COLUMNS, APART = 256 / WIDTH, OWN = HEIGHT / APART;
    float(*out)[WIDTH + 4] = (float(*)[WIDTH + 4]) & room;
    u32 line = threadIdx.x / WIDTH, place = threadIdx.x % WIDTH;
    // One part after another, so that what is done with a result stands in the code once.
#pragma unroll 1
    for (u32 part = 0; part < Tile::PARTS; part++) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < Tile::TALL; i++) {
            const float* own = &total.of[part / Tile::RIGHT * Tile::TALL + i][part % Tile::RIGHT * Tile::WIDE];
            Piece<Tile::WIDE> piece;
            for (u32 j = 0; j < Tile::WIDE; j++) piece.v[j] = own[j];
            *(Piece<Tile::WIDE>*)&out[room.row() + i][room.column()] = piece;
        }
        __syncthreads();
        u32 first = row + part / Tile::RIGHT * HEIGHT + line, right = column + part % Tile::RIGHT * WIDTH + place;
        if (right < columns) {
            auto its = of(right);
            decltype(with(row, its)) loaded[OWN] = {};
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                if (first + APART * i < rows) loaded[i] = with(first + APART * i, its);
            }
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                if (first + APART * i < rows) put(first + APART * i, its, out[line + APART * i][place], loaded[i]);
            }
        }
    }
}
