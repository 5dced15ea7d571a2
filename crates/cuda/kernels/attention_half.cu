// attention_bf16_W: self-attention, causal or of all keys, over packed bf16 qkv [B, T, 3, heads, head] on tensor cores, for
// heads of up to W = 32, 64, 128 elements, a multiple of 8.   attention_bf16_queries_W: dq, and `deltas` [B, heads, T], the
// sums of y dy, for the next.   attention_bf16_keys_W: dk and dv.   attention_f16_W, ...: the same over f16.
//
// A block has 64 queries (keys, for the last), 16 a warp, in registers for good. Keys and values (queries and gradients)
// come through shared memory in tiles, one tile ahead. What lies beyond the head and the sequence is zero. Scores, sums,
// maxima and outputs are f32; probabilities and their gradients are rounded to halves before they are multiplied. `logs`
// [B, heads, T] has the logarithm of each row's sum of exponentials, from which the gradients make the probabilities again.
//
// Order: a score over the head in steps of 16; outputs and dq over tiles of keys from the first (64 keys, 32 at W = 128), dk
// and dv over tiles of queries from the first (32, 16 at W = 128), each tile in steps of 16. A row's sum of exponentials:
// each of four lanes adds its keys in order, then lanes 1 and 2 apart. One block, one warp has a result: nothing is added up
// between blocks. Within 16 terms the hardware's order.
// Launch: B x heads x ceil(T / 64) blocks of 128 threads; all pointers to halves aligned to 16 bytes.
// Source: Dao, "FlashAttention-2", 2023. Does not know the projections around it.

const u32 ROWS = 64;
const float LOG2_E = 1.44269504088896340736f;

// A thread's place: which head of which sequence, which rows.
struct Place {
    u64 qkv, out, logs;  // where this head of this sequence starts
    u32 first;           // the block's first row
    u32 row;             // the first of the two rows of this lane; the other is 8 further on
    u32 lane4;           // which of the four lanes that share these rows
    // With `late_first` the blocks that have the most keys begin first.
    __device__ Place(const Shape& shape, bool late_first) {
        u32 blocks = parts_of(shape.time, ROWS);
        u64 task = blockIdx.x / blocks, sequence = task / shape.heads, head = task % shape.heads;
        u32 block = blockIdx.x % blocks;
        first = (late_first ? blocks - 1 - block : block) * ROWS;
        row = first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        lane4 = threadIdx.x % 4;
        qkv = sequence * shape.time * 3 * shape.wide() + head * shape.head;
        out = sequence * shape.time * shape.wide() + head * shape.head;
        logs = task * shape.time;
    }
    __device__ u32 first_of_warp() const { return first + threadIdx.x / 32 * 16; }
};

// Rows `first` to `first + COUNT` on their way into shared memory.
template <u32 W, u32 COUNT>
__device__ inline void fetch(u16* room, const Shape& shape, const u16* x, u64 pitch, u32 first) {
#pragma unroll
    for (u32 i = threadIdx.x; i < COUNT * W / 8; i += 128) {
        u32 row = i / (W / 8), dim = i % (W / 8) * 8;
        bool there = first + row < shape.time && dim < shape.head;
        copy_behind(room + row * (W + 8) + dim, there ? x + (first + row) * pitch + dim : x, there ? 16 : 0);
    }
}

// The warp's 16 rows as left operands, through `room`.
template <u32 W>
__device__ inline void take(
    u32 (&own)[W / 16][4], u16* room, const Shape& shape, const u16* x, u64 pitch, u32 first) {
    fetch<W, ROWS>(room, shape, x, pitch, first);
    end_of_copies();
    copies_are_done<0>();
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < W / 16; i++) load_matrices(own[i], left_place(room, W + 8, threadIdx.x / 32 * 16, i * 16));
    __syncthreads();
}

// Rows of the warp to memory, times a factor for each of the lane's two rows.
template <u32 W>
__device__ inline void put(
    const Shape& shape, const Place& place, u16* x, u64 pitch, const float (&sum)[W / 8][4], float factor0, float factor1) {
#pragma unroll
    for (u32 i = 0; i < W / 8; i++) {
        if (i * 8 >= shape.head) continue;
        u16* to = x + place.row * pitch + i * 8 + 2 * place.lane4;
        if (place.row < shape.time) *(u32*)to = as_halves(sum[i][0] * factor0, sum[i][1] * factor0);
        if (place.row + 8 < shape.time) *(u32*)(to + 8 * pitch) = as_halves(sum[i][2] * factor1, sum[i][3] * factor1);
    }
}

template <u32 N>
__device__ inline void clear(float (&sum)[N][4]) {
#pragma unroll
    for (u32 i = 0; i < N * 4; i++) sum[i / 4][i % 4] = 0.0f;
}

// The products of the warp's rows with every row of a tile, over the head.
template <u32 W, u32 TILE>
__device__ inline void products(float (&sum)[TILE / 8][4], const u32 (&own)[W / 16][4], const u16* tile) {
    clear(sum);
#pragma unroll
    for (u32 k = 0; k < W / 16; k++) {
#pragma unroll
        for (u32 i = 0; i < TILE / 16; i++) {
            u32 b[4];
            load_matrices(b, right_place(tile, W + 8, i * 16, k * 16));
            multiply_add(sum[2 * i], own[k], b[0], b[1]);
            multiply_add(sum[2 * i + 1], own[k], b[2], b[3]);
        }
    }
}

// sum += weights times the rows of a tile. What is a result of a product lies as a left operand does.
template <u32 W, u32 TILE>
__device__ inline void add_rows(float (&sum)[W / 8][4], const float (&weights)[TILE / 8][4], const u16* tile) {
#pragma unroll
    for (u32 k = 0; k < TILE / 16; k++) {
        const float(&left)[4] = weights[2 * k], (&right)[4] = weights[2 * k + 1];
        u32 a[4] = {as_halves(left[0], left[1]), as_halves(left[2], left[3]), as_halves(right[0], right[1]),
                    as_halves(right[2], right[3])};
#pragma unroll
        for (u32 i = 0; i < W / 16; i++) {
            u32 b[4];
            load_matrices_turned(b, right_place_turned(tile, W + 8, i * 16, k * 16));
            multiply_add(sum[2 * i], a, b[0], b[1]);
            multiply_add(sum[2 * i + 1], a, b[2], b[3]);
        }
    }
}

// The sum over the four lanes that share a row.
__device__ inline float across_row(float v) {
    v += __shfl_xor_sync(WHOLE_WARP, v, 1);
    return v + __shfl_xor_sync(WHOLE_WARP, v, 2);
}

// One step of the sums of a row: `r` is which of the lane's two.
template <u32 W, u32 TILE>
__device__ inline void soften(
    const float scale2, float (&s)[TILE / 8][4], float (&sum)[W / 8][4], u32 r, float& top, float& total) {
    float best = top;
#pragma unroll
    for (u32 i = 0; i < TILE / 8; i++) {
        best = s[i][2 * r] > best ? s[i][2 * r] : best;
        best = s[i][2 * r + 1] > best ? s[i][2 * r + 1] : best;
    }
#pragma unroll
    for (u32 apart = 1; apart < 4; apart *= 2) {
        float other = __shfl_xor_sync(WHOLE_WARP, best, apart);
        best = other > best ? other : best;
    }
    float factor = power_of_two((top - best) * scale2), low = -best * scale2;
    total *= factor;
#pragma unroll
    for (u32 i = 0; i < W / 8; i++) {
        sum[i][2 * r] *= factor;
        sum[i][2 * r + 1] *= factor;
    }
#pragma unroll
    for (u32 i = 0; i < TILE / 8; i++) {
        float left = power_of_two(fmaf(s[i][2 * r], scale2, low)), right = power_of_two(fmaf(s[i][2 * r + 1], scale2, low));
        total += left;
        total += right;
        s[i][2 * r] = left;
        s[i][2 * r + 1] = right;
    }
    top = best;
}

template <u32 W, u32 TILE>
__device__ inline void attend(const Shape& shape, const u16* qkv, u16* y, float* logs, u16* room) {
    const u32 EACH = TILE * (W + 8);
    Place place(shape, true);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    u32 q[W / 16][4];
    take<W>(q, room, shape, qkv, pitch, place.first);
    float sum[W / 8][4], top[2] = {-infinity(), -infinity()}, total[2] = {0.0f, 0.0f};
    clear(sum);
    float scale2 = shape.scale * LOG2_E;
    u32 end = shape.last_key(place.first + ROWS - 1) + 1, stage = 0;
    u32 last[2] = {shape.last_key(place.row), shape.last_key(place.row + 8)};
    u32 last_of_warp = shape.last_key(place.first_of_warp() + 15);
    fetch<W, TILE>(room, shape, qkv + shape.wide(), pitch, 0);
    fetch<W, TILE>(room + EACH, shape, qkv + 2 * shape.wide(), pitch, 0);
    end_of_copies();
    for (u32 start = 0; start < end; start += TILE, stage ^= 1) {
        if (start + TILE < end) {
            u16* next = room + (stage ^ 1) * 2 * EACH;
            fetch<W, TILE>(next, shape, qkv + shape.wide(), pitch, start + TILE);
            fetch<W, TILE>(next + EACH, shape, qkv + 2 * shape.wide(), pitch, start + TILE);
        }
        end_of_copies();
        copies_are_done<1>();
        __syncthreads();
        const u16 *keys = room + stage * 2 * EACH, *values = keys + EACH;
        // A warp whose queries see none of these keys has nothing to add.
        if (start <= last_of_warp) {
            float s[TILE / 8][4];
            products<W, TILE>(s, q, keys);
            if (start + TILE > shape.last_key(place.first_of_warp())) {
#pragma unroll
                for (u32 i = 0; i < TILE / 2; i++) {
                    u32 key = start + i / 4 * 8 + 2 * place.lane4 + i % 2;
                    if (key > last[i % 4 / 2]) s[i / 4][i % 4] = -infinity();
                }
            }
            soften<W, TILE>(scale2, s, sum, 0, top[0], total[0]);
            soften<W, TILE>(scale2, s, sum, 1, top[1], total[1]);
            add_rows<W, TILE>(sum, s, values);
        }
        __syncthreads();
    }
    total[0] = across_row(total[0]);
    total[1] = across_row(total[1]);
    put<W>(shape, place, y + place.out, shape.wide(), sum, 1.0f / total[0], 1.0f / total[1]);
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 query = place.row + 8 * r;
        if (place.lane4 != 0 || query >= shape.time) continue;
        double log = is_finite(total[r]) ? logarithm((double)total[r]) + (double)(top[r] * shape.scale)
                                         : (double)not_a_number();
        logs[place.logs + query] = (float)log;
    }
}

template <u32 W, u32 TILE>
__device__ inline void queries_gradient(
    const Shape& shape, const u16* qkv, const u16* y, const float* logs, const u16* dy, u16* dqkv, float* deltas,
    u16* room) {
    const u32 EACH = TILE * (W + 8);
    Place place(shape, true);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    u32 q[W / 16][4], d[W / 16][4];
    take<W>(d, room, shape, dy + place.out, shape.wide(), place.first);
    take<W>(q, room, shape, y + place.out, shape.wide(), place.first);
    float delta[2] = {0.0f, 0.0f}, log2[2];
#pragma unroll
    for (u32 i = 0; i < W / 4; i++) {
        u32 left = q[i / 4][i % 4], right = d[i / 4][i % 4];
        delta[i % 2] = fmaf(low_half(left), low_half(right), delta[i % 2]);
        delta[i % 2] = fmaf(high_half(left), high_half(right), delta[i % 2]);
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        delta[r] = across_row(delta[r]);
        u32 query = place.row + 8 * r;
        bool there = query < shape.time;
        log2[r] = there ? logs[place.logs + query] * LOG2_E : 0.0f;
        if (there && place.lane4 == 0) deltas[place.logs + query] = delta[r];
    }
    take<W>(q, room, shape, qkv, pitch, place.first);
    float dq[W / 8][4];
    clear(dq);
    float scale2 = shape.scale * LOG2_E;
    u32 end = shape.last_key(place.first + ROWS - 1) + 1, stage = 0;
    u32 last[2] = {shape.last_key(place.row), shape.last_key(place.row + 8)};
    u32 last_of_warp = shape.last_key(place.first_of_warp() + 15);
    fetch<W, TILE>(room, shape, qkv + shape.wide(), pitch, 0);
    fetch<W, TILE>(room + EACH, shape, qkv + 2 * shape.wide(), pitch, 0);
    end_of_copies();
    for (u32 start = 0; start < end; start += TILE, stage ^= 1) {
        if (start + TILE < end) {
            u16* next = room + (stage ^ 1) * 2 * EACH;
            fetch<W, TILE>(next, shape, qkv + shape.wide(), pitch, start + TILE);
            fetch<W, TILE>(next + EACH, shape, qkv + 2 * shape.wide(), pitch, start + TILE);
        }
        end_of_copies();
        copies_are_done<1>();
        __syncthreads();
        const u16 *keys = room + stage * 2 * EACH, *values = keys + EACH;
        if (start <= last_of_warp) {
            float s[TILE / 8][4], ds[TILE / 8][4];
            products<W, TILE>(s, q, keys);
            products<W, TILE>(ds, d, values);
#pragma unroll
            for (u32 i = 0; i < TILE / 2; i++) {
                u32 key = start + i / 4 * 8 + 2 * place.lane4 + i % 2, r = i % 4 / 2;
                float p = power_of_two(fmaf(s[i / 4][i % 4], scale2, -log2[r]));
                float& each = ds[i / 4][i % 4];
                each = key <= last[r] ? p * (each - delta[r]) : 0.0f;
            }
            add_rows<W, TILE>(dq, ds, keys);
        }
        __syncthreads();
    }
    put<W>(shape, place, dqkv + place.qkv, pitch, dq, shape.scale, shape.scale);
}

template <u32 W, u32 TILE>
__device__ inline void keys_gradient(
    const Shape& shape, const u16* qkv, const float* logs, const float* deltas, const u16* dy, u16* dqkv, u16* room) {
    const u32 EACH = TILE * (W + 8);
    Place place(shape, false);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    dy += place.out;
    logs += place.logs;
    deltas += place.logs;
    u32 k[W / 16][4], v[W / 16][4];
    take<W>(k, room, shape, qkv + shape.wide(), pitch, place.first);
    take<W>(v, room, shape, qkv + 2 * shape.wide(), pitch, place.first);
    float dk[W / 8][4], dv[W / 8][4];
    clear(dk);
    clear(dv);
    float scale2 = shape.scale * LOG2_E;
    u32 stage = 0;
    // Queries that see none of this block's keys are passed over.
    u32 begin = shape.first_query(place.first);
    fetch<W, TILE>(room, shape, qkv, pitch, begin);
    fetch<W, TILE>(room + EACH, shape, dy, shape.wide(), begin);
    end_of_copies();
    for (u32 start = begin; start < shape.time; start += TILE, stage ^= 1) {
        if (start + TILE < shape.time) {
            u16* next = room + (stage ^ 1) * 2 * EACH;
            fetch<W, TILE>(next, shape, qkv, pitch, start + TILE);
            fetch<W, TILE>(next + EACH, shape, dy, shape.wide(), start + TILE);
        }
        end_of_copies();
        copies_are_done<1>();
        __syncthreads();
        const u16 *queries = room + stage * 2 * EACH, *gradients = queries + EACH;
        if (start + TILE + shape.reach > place.first_of_warp()) {
            float p[TILE / 8][4], ds[TILE / 8][4];
            products<W, TILE>(p, k, queries);
            products<W, TILE>(ds, v, gradients);
#pragma unroll
            for (u32 i = 0; i < TILE / 4; i++) {
                u32 query = start + i / 2 * 8 + 2 * place.lane4 + i % 2;
                bool there = query < shape.time;
                float log2 = there ? logs[query] * LOG2_E : 0.0f, delta = there ? deltas[query] : 0.0f;
#pragma unroll
                for (u32 r = 0; r < 2; r++) {
                    float &each = p[i / 2][2 * r + i % 2], &change = ds[i / 2][2 * r + i % 2];
                    bool seen = there && query + shape.reach >= place.row + 8 * r;
                    each = seen ? power_of_two(fmaf(each, scale2, -log2)) : 0.0f;
                    change = seen ? each * (change - delta) : 0.0f;
                }
            }
            add_rows<W, TILE>(dv, p, gradients);
            add_rows<W, TILE>(dk, ds, queries);
        }
        __syncthreads();
    }
    dqkv += place.qkv;
    put<W>(shape, place, dqkv + shape.wide(), pitch, dk, shape.scale, shape.scale);
    put<W>(shape, place, dqkv + 2 * shape.wide(), pitch, dv, 1.0f, 1.0f);
}

// Two stages of two tiles; the block's own 64 rows come through the same room before.
#define ATTENTION(W)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) NAME(attention_, _##W)(                                            \
        const u16* qkv, u16* y, float* logs, u32 time, u32 heads, u32 head, u32 reach, float scale) {                    \
        const u32 TILE = W > 64 ? 32 : 64;                                                                               \
        alignas(16) __shared__ u16 room[4 * TILE * (W + 8)];                                                             \
        attend<W, TILE>(Shape{time, heads, head, reach, scale}, qkv, y, logs, room);                                     \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(attention_, _queries_##W)(                                    \
        const u16* qkv, const u16* y, const float* logs, const u16* dy, u16* dqkv, float* deltas, u32 time, u32 heads,   \
        u32 head, u32 reach, float scale) {                                                                              \
        const u32 TILE = W > 64 ? 32 : 64;                                                                               \
        alignas(16) __shared__ u16 room[4 * TILE * (W + 8)];                                                             \
        queries_gradient<W, TILE>(Shape{time, heads, head, reach, scale}, qkv, y, logs, dy, dqkv, deltas, room);         \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) NAME(attention_, _keys_##W)(                                       \
        const u16* qkv, const float* logs, const float* deltas, const u16* dy, u16* dqkv, u32 time, u32 heads, u32 head, \
        u32 reach, float scale) {                                                                                        \
        const u32 TILE = W > 64 ? 16 : 32;                                                                               \
        alignas(16) __shared__ u16 room[4 * TILE * (W + 8)];                                                             \
        keys_gradient<W, TILE>(Shape{time, heads, head, reach, scale}, qkv, logs, deltas, dy, dqkv, room);               \
    }

ATTENTION(32)
ATTENTION(64)
ATTENTION(128)
