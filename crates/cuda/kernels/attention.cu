// attention_W: self-attention, causal or of all keys, over packed qkv [B, T, 3, heads, head], for heads of up to W = 32,
// 64, 128, 256. attention_queries_W: dq, and `deltas` [B, heads, T], the sums of y dy, for the next.   attention_keys_W: dk
// and dv.
//
// A query (or a key, for the last) belongs to W / 32 threads, neighbours in a warp, each with every (W / 32)-th four
// elements of the head in registers; elements beyond the head are zeros. Keys and values (queries and gradients) come
// through shared memory, 16 at a time, and are read four elements at a time. Nothing of size T x T is kept: `logs`
// [B, heads, T] has the logarithm of each row's sum of exponentials, from which the backward pass makes the probabilities
// again.
//
// Order: a score over the elements of a thread in order, then over threads in pairs far apart first; outputs and dq over
// keys in order, dk and dv over queries in order. No atomics. So the bits depend on the operands and the shape alone.
// Launch: B x heads x ceil(T / (4096 / W)) blocks of 128 threads.
// Source: Dao et al., "FlashAttention", 2022. Does not know the projections around it, nor tensor cores.

const u32 SOME = 16;   // keys or queries that are in shared memory at once
const u32 DIMS = 32;   // elements of a head that one thread has

// A thread's place: which head of which sequence, which query or key, and which part of the head.
template <u32 GROUP>
struct Place {
    u64 qkv, out, logs;  // where this head of this sequence starts
    u32 first, at, lane;
    __device__ explicit Place(const Shape& shape) {
        const u32 each = 128 / GROUP;
        u32 blocks = parts_of(shape.time, each);
        u64 task = blockIdx.x / blocks, sequence = task / shape.heads, head = task % shape.heads;
        first = blockIdx.x % blocks * each;
        at = first + threadIdx.x / GROUP;
        lane = threadIdx.x % GROUP;
        qkv = sequence * shape.time * 3 * shape.wide() + head * shape.head;
        out = sequence * shape.time * shape.wide() + head * shape.head;
        logs = task * shape.time;
    }
};

// Where elements `4 * i` to `4 * i + 3` of a thread's part of a row lie in it.
template <u32 GROUP>
__device__ inline u32 four_at(u32 i, u32 lane) { return 4 * (i * GROUP + lane); }

// Whether every four elements of a head lie on 16 bytes, as its sequences and all that is a multiple of heads then do.
__device__ inline bool in_fours(const Shape& shape, const float* x) { return shape.head % 4 == 0 && (u64)x % 16 == 0; }

// One thread's part of a row, zero beyond the head and beyond the sequence.
template <u32 GROUP>
__device__ inline void take(const Shape& shape, const float* x, u64 pitch, u32 at, u32 lane, float (&part)[DIMS]) {
    bool wide = in_fours(shape, x);
#pragma unroll
    for (u32 i = 0; i < DIMS / 4; i++) {
        u32 dim = four_at<GROUP>(i, lane);
        const float* from = x + at * pitch + dim;
        Four four = {};
        if (wide) {
            if (at < shape.time && dim < shape.head) four = *(const Four*)from;
        } else {
            for (u32 j = 0; j < 4; j++) {
                if (at < shape.time && dim + j < shape.head) four.v[j] = from[j];
            }
        }
        for (u32 j = 0; j < 4; j++) part[4 * i + j] = four.v[j];
    }
}

template <u32 GROUP>
__device__ inline void put(const Shape& shape, float* x, u64 pitch, u32 at, u32 lane, const float (&part)[DIMS]) {
    bool wide = in_fours(shape, x);
#pragma unroll
    for (u32 i = 0; i < DIMS / 4; i++) {
        u32 dim = four_at<GROUP>(i, lane);
        float* to = x + at * pitch + dim;
        Four four = {part[4 * i], part[4 * i + 1], part[4 * i + 2], part[4 * i + 3]};
        if (wide) {
            if (at < shape.time && dim < shape.head) *(Four*)to = four;
        } else {
            for (u32 j = 0; j < 4; j++) {
                if (at < shape.time && dim + j < shape.head) to[j] = four.v[j];
            }
        }
    }
}

// Rows `first` to `first + 16` into shared memory, by all threads.
template <u32 GROUP>
__device__ inline void share(const Shape& shape, const float* x, u64 pitch, u32 first, float* room) {
    const u32 width = DIMS * GROUP;
    for (u32 i = threadIdx.x; i < SOME * width; i += 128) {
        u32 row = first + i / width, dim = i % width;
        room[i] = row < shape.time && dim < shape.head ? x[row * pitch + dim] : 0.0f;
    }
}

// The sum of products of a thread's part with row `row` of `room`, over the whole head.
template <u32 GROUP>
__device__ inline float dot(const float (&part)[DIMS], const float* room, u32 row, u32 lane) {
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < DIMS / 4; i++) {
        Four four = *(const Four*)(room + row * DIMS * GROUP + four_at<GROUP>(i, lane));
        for (u32 j = 0; j < 4; j++) sum = fmaf(part[4 * i + j], four.v[j], sum);
    }
    for (u32 apart = GROUP / 2; apart > 0; apart >>= 1) sum += __shfl_xor_sync(WHOLE_WARP, sum, apart);
    return sum;
}

// sum += weight * row.
template <u32 GROUP>
__device__ inline void add_row(float (&sum)[DIMS], float weight, const float* room, u32 row, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < DIMS / 4; i++) {
        Four four = *(const Four*)(room + row * DIMS * GROUP + four_at<GROUP>(i, lane));
        for (u32 j = 0; j < 4; j++) sum[4 * i + j] = fmaf(weight, four.v[j], sum[4 * i + j]);
    }
}

template <u32 GROUP>
__device__ inline void attend(const Shape& shape, const float* qkv, float* y, float* logs, float* keys, float* values) {
    Place<GROUP> place(shape);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    float q[DIMS], sum[DIMS], p[SOME];
    take<GROUP>(shape, qkv, pitch, place.at, place.lane, q);
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) sum[i] = 0.0f;
    float top = -infinity(), total = 0.0f;
    u32 end = shape.last_key(place.first + 128 / GROUP - 1) + 1, last = shape.last_key(place.at);
    for (u32 start = 0; start < end; start += SOME) {
        share<GROUP>(shape, qkv + shape.wide(), pitch, start, keys);
        share<GROUP>(shape, qkv + 2 * shape.wide(), pitch, start, values);
        __syncthreads();
        float best = top;
#pragma unroll
        for (u32 j = 0; j < SOME; j++) {
            p[j] = dot<GROUP>(q, keys, j, place.lane);
            best = start + j <= last && p[j] > best ? p[j] : best;
        }
        // A query that sees none of these keys has nothing to add.
        if (start <= last) {
            float factor = exponential((top - best) * shape.scale);
            total *= factor;
#pragma unroll
            for (u32 i = 0; i < DIMS; i++) sum[i] *= factor;
#pragma unroll
            for (u32 j = 0; j < SOME; j++) {
                float weight = start + j <= last ? exponential((p[j] - best) * shape.scale) : 0.0f;
                total += weight;
                add_row<GROUP>(sum, weight, values, j, place.lane);
            }
            top = best;
        }
        __syncthreads();
    }
    float factor = 1.0f / total;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) sum[i] *= factor;
    put<GROUP>(shape, y + place.out, shape.wide(), place.at, place.lane, sum);
    if (place.lane == 0 && place.at < shape.time) {
        double log = is_finite(total) ? logarithm((double)total) + (double)(top * shape.scale) : (double)not_a_number();
        logs[place.logs + place.at] = (float)log;
    }
}

template <u32 GROUP>
__device__ inline void queries_gradient(
    const Shape& shape, const float* qkv, const float* y, const float* logs, const float* dy, float* dqkv, float* deltas,
    float* keys, float* values) {
    Place<GROUP> place(shape);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    float q[DIMS], d[DIMS], dq[DIMS];
    take<GROUP>(shape, dy + place.out, shape.wide(), place.at, place.lane, d);
    take<GROUP>(shape, y + place.out, shape.wide(), place.at, place.lane, q);
    float delta = 0.0f;
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) {
        delta = fmaf(q[i], d[i], delta);
        dq[i] = 0.0f;
    }
    for (u32 apart = GROUP / 2; apart > 0; apart >>= 1) delta += __shfl_xor_sync(WHOLE_WARP, delta, apart);
    take<GROUP>(shape, qkv, pitch, place.at, place.lane, q);
    bool mine = place.at < shape.time;
    float log = mine ? logs[place.logs + place.at] : 0.0f;
    if (mine && place.lane == 0) deltas[place.logs + place.at] = delta;
    u32 end = shape.last_key(place.first + 128 / GROUP - 1) + 1, last = shape.last_key(place.at);
    for (u32 start = 0; start < end; start += SOME) {
        share<GROUP>(shape, qkv + shape.wide(), pitch, start, keys);
        share<GROUP>(shape, qkv + 2 * shape.wide(), pitch, start, values);
        __syncthreads();
#pragma unroll 2
        for (u32 j = 0; j < SOME; j++) {
            float score = dot<GROUP>(q, keys, j, place.lane);
            float dp = dot<GROUP>(d, values, j, place.lane);
            float p = exponential(fmaf(score, shape.scale, -log));
            float ds = p * (dp - delta) * shape.scale;
            add_row<GROUP>(dq, start + j <= last ? ds : 0.0f, keys, j, place.lane);
        }
        __syncthreads();
    }
    put<GROUP>(shape, dqkv + place.qkv, pitch, place.at, place.lane, dq);
}

template <u32 GROUP>
__device__ inline void keys_gradient(
    const Shape& shape, const float* qkv, const float* logs, const float* deltas, const float* dy, float* dqkv,
    float* queries, float* gradients) {
    Place<GROUP> place(shape);
    u64 pitch = 3 * shape.wide();
    qkv += place.qkv;
    float k[DIMS], v[DIMS], dk[DIMS], dv[DIMS];
    take<GROUP>(shape, qkv + shape.wide(), pitch, place.at, place.lane, k);
    take<GROUP>(shape, qkv + 2 * shape.wide(), pitch, place.at, place.lane, v);
#pragma unroll
    for (u32 i = 0; i < DIMS; i++) dk[i] = dv[i] = 0.0f;
    // Queries that see none of this block's keys are passed over.
    for (u32 start = shape.first_query(place.first); start < shape.time; start += SOME) {
        share<GROUP>(shape, qkv, pitch, start, queries);
        share<GROUP>(shape, dy + place.out, shape.wide(), start, gradients);
        __syncthreads();
#pragma unroll 2
        for (u32 j = 0; j < SOME; j++) {
            float score = dot<GROUP>(k, queries, j, place.lane);
            float dp = dot<GROUP>(v, gradients, j, place.lane);
            u32 query = start + j;
            if (query + shape.reach >= place.at && query < shape.time) {
                float p = exponential(fmaf(score, shape.scale, -logs[place.logs + query]));
                float ds = p * (dp - deltas[place.logs + query]) * shape.scale;
                add_row<GROUP>(dv, p, gradients, j, place.lane);
                add_row<GROUP>(dk, ds, queries, j, place.lane);
            }
        }
        __syncthreads();
    }
    put<GROUP>(shape, dqkv + place.qkv + shape.wide(), pitch, place.at, place.lane, dk);
    put<GROUP>(shape, dqkv + place.qkv + 2 * shape.wide(), pitch, place.at, place.lane, dv);
}

#define ATTENTION(W)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) attention_##W(                                                     \
        const float* qkv, float* y, float* logs, u32 time, u32 heads, u32 head, u32 reach, float scale) {                \
        alignas(16) __shared__ float keys[SOME * W], values[SOME * W];                                                   \
        attend<W / DIMS>(Shape{time, heads, head, reach, scale}, qkv, y, logs, keys, values);                            \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) attention_queries_##W(                                             \
        const float* qkv, const float* y, const float* logs, const float* dy, float* dqkv, float* deltas, u32 time,      \
        u32 heads, u32 head, u32 reach, float scale) {                                                                   \
        alignas(16) __shared__ float keys[SOME * W], values[SOME * W];                                                   \
        queries_gradient<W / DIMS>(                                                                                      \
            Shape{time, heads, head, reach, scale}, qkv, y, logs, dy, dqkv, deltas, keys, values);                       \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) attention_keys_##W(                                                \
        const float* qkv, const float* logs, const float* deltas, const float* dy, float* dqkv, u32 time, u32 heads,     \
        u32 head, u32 reach, float scale) {                                                                              \
        alignas(16) __shared__ float queries[SOME * W], gradients[SOME * W];                                             \
        keys_gradient<W / DIMS>(Shape{time, heads, head, reach, scale}, qkv, logs, deltas, dy, dqkv, queries, gradients);\
    }

ATTENTION(32)
ATTENTION(64)
ATTENTION(128)
ATTENTION(256)
