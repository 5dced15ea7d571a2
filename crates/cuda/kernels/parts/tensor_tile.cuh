// The tile of `tile` on tensor cores: 64 x 64 results by a block of 128 threads, of operands in halves. It has the same words,
// so that what is built over one tile can be built over the other.
//
// Order: each result is one f32 sum over K in steps of 16 from the start of the range, beyond its end zeros. Within 16 terms
// the hardware's order.
//
// An operand is a type as `tile` wants it. This file does not know what the operands are.

const u32 TILE = 64;
const u32 DEPTH = 32;
const u32 TILE_PITCH = DEPTH + 8;
// How far a thread's turns of fetching are apart in K, where neighbours in K are none in memory.
const u32 APART = 4;

// Lines of K.
struct alignas(16) TileRoom {
    static constexpr u32 ROWS = TILE, COLUMNS = TILE;
    // What a thread has of a tile: of each product of 16 x 8 in its warp's quarter two rows and two columns.
    typedef float Sums[2][4][4];

    u16 a[TILE * TILE_PITCH];
    u16 b[TILE * TILE_PITCH];
    // The terms of the next step, of operands that share them.
    Shared a_terms[DEPTH], b_terms[DEPTH];
};

// Which of the tile's lines and pairs of K a thread fetches in turn `i` of eight: neighbours in memory go to neighbours in
// a warp.
struct Fetch {
    u32 line, k;
    __device__ Fetch(bool along_k, u32 i) {
        line = along_k ? threadIdx.x / 16 + 8 * i : threadIdx.x % TILE;
        k = along_k ? threadIdx.x % 16 * 2 : threadIdx.x / TILE * 2 + APART * i;
    }
};

// Where a thread is in K: at its own pair, which goes on with the steps, or among the places whose terms all threads are told.
template <class Operand>
struct Places {
    typedef typename Operand::Term Term;
    static_assert(Operand::along_k != Operand::shared && sizeof(Shared) >= sizeof(Term) * Operand::shared, "one or the other");
    typename Operand::Where first, second, step;

    __device__ Places(const Operand& x, u32 from)
        : first(x.where(from + (x.shared ? threadIdx.x % DEPTH : Fetch(true, 0).k))),
          second(x.where(from + Fetch(true, 0).k + 1)), step(x.where(DEPTH)) {}

    __device__ void go(const Operand& x) {
        x.go(first, step);
        if (!x.shared) x.go(second, step);
    }

    // Tells all threads the terms of the next step.
    __device__ void tell(const Operand& x, Shared (&terms)[DEPTH]) {
        if (x.shared && threadIdx.x < DEPTH) {
            *(Term*)&terms[threadIdx.x] = x.term(first);
            go(x);
        }
    }
};

// What a thread fetches of an operand for a step.
struct Fetched {
    u32 pairs[8];

    template <class Operand>
    __device__ void take(
        const Operand& x, const typename Operand::Line (&lines)[8], Places<Operand>& places,
        const Shared (&terms)[DEPTH], u32 depth) {
        typename Operand::Term low, high;
        if (!x.shared) {
            low = x.term(places.first);
            high = x.term(places.second);
            places.go(x);
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 k = Fetch(x.along_k, i).k;
            if (x.shared) {
                low = *(const typename Operand::Term*)&terms[k];
                high = *(const typename Operand::Term*)&terms[k + 1];
            }
            Stored first = x.at(lines[i], low, k < depth), second = x.at(lines[i], high, k + 1 < depth);
            pairs[i] = first.bits | (u32)second.bits << 16;
        }
    }

    __device__ void put(u16* room, bool along_k) const {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            Fetch place(along_k, i);
            *(u32*)(room + place.line * TILE_PITCH + place.k) = pairs[i];
        }
    }
};

// The sums over `from <= k < to` of the tile at (`row`, `column`).
template <class A, class B>
__device__ inline void tile_product(
    TileRoom& room, const A& a, const B& b, u32 row, u32 column, u32 from, u32 to, TileRoom::Sums& total) {
    typename A::Line rows[8];
    typename B::Line columns[8];
    Places<A> a_places(a, from);
    Places<B> b_places(b, from);
    u32 down = threadIdx.x / 64 * 32, right = threadIdx.x / 32 % 2 * 32;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        rows[i] = a.line(row + Fetch(a.along_k, i).line);
        columns[i] = b.line(column + Fetch(b.along_k, i).line);
#pragma unroll
        for (u32 j = 0; j < 4; j++) total[i / 4][i % 4][j] = 0.0f;
    }
    // What comes next is on its way while what is there is computed.
    Fetched next_a = {}, next_b = {};
    auto fetch = [&](u32 depth) {
        next_a.take(a, rows, a_places, room.a_terms, depth);
        next_b.take(b, columns, b_places, room.b_terms, depth);
    };
    auto tell = [&]() {
        a_places.tell(a, room.a_terms);
        b_places.tell(b, room.b_terms);
        __syncthreads();
    };
    tell();
    fetch(to - from);
    __syncthreads();
    for (u32 start = from; start < to; start += DEPTH) {
        next_a.put(room.a, a.along_k);
        next_b.put(room.b, b.along_k);
        tell();
        if (to - start > DEPTH) fetch(to - start - DEPTH);
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            u32 x[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) load_matrices(x[i], left_place(room.a, TILE_PITCH, down + i * 16, k));
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u32 y[4];
                load_matrices(y, right_place(room.b, TILE_PITCH, right + j * 16, k));
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    multiply_add(total[i][2 * j], x[i], y[0], y[1]);
                    multiply_add(total[i][2 * j + 1], x[i], y[2], y[3]);
                }
            }
        }
        __syncthreads();
    }
}

// The results of the tile at (`row`, `column`) that are within `rows` and `columns`, through shared memory, so that neighbours go
// to neighbours: with what `of` says of their column, and what `with(row, of)` has loaded for each of 16 before the first is put.
template <class Of, class With, class Put>
__device__ inline void each_result(
    TileRoom& room, const TileRoom::Sums& total, u32 row, u32 rows, u32 column, u32 columns, Of of, With with, Put put) {
    float(*out)[TILE + 8] = (float(*)[TILE + 8]) & room;
    u32 line = threadIdx.x / TILE, place = threadIdx.x % TILE;
    u32 down = threadIdx.x / 64 * 16, right = threadIdx.x / 32 % 2 * 32;
    bool is_there = column + place < columns;
    auto its = of(column + place);
    // 16 rows of each half of the tile at once.
#pragma unroll
    for (u32 part = 0; part < 2; part++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) put_sums(&out[down][right + j * 8], TILE + 8, total[part][j]);
        __syncthreads();
        decltype(with(row, its)) loaded[16] = {};
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            u32 from = line + 2 * i, to = row + from / 16 * 32 + part * 16 + from % 16;
            if (is_there && to < rows) loaded[i] = with(to, its);
        }
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            u32 from = line + 2 * i, to = row + from / 16 * 32 + part * 16 + from % 16;
            if (is_there && to < rows) put(to, its, out[from][place], loaded[i]);
        }
        __syncthreads();
    }
}
