// cross_entropy, squared_error: the loss of each row. mixed_cross_entropy: the same of rows with two targets each, [rows,
// 3]: a class, the other class, and the share of the first, as the bits of an f32. Where `d` is not null it is the outputs'
// own memory, and the gradient, times `scale` (where `found` is not null, what it holds), takes their place: a thread
// writes the elements that it alone reads, and what all read is read before a barrier. arg_max: the place of each row's
// greatest element, the first of equals.
//
// Rows of outputs lie `pitch` apart; what is between them is nobody's. They leave loss and weight in `values` [rows, 2] and
// a word in `counts` (1 counted, 2 right as well). A row whose target is no class has NaN as loss and gradient: the host
// checks targets, a kernel cannot refuse.
//
// Order: cross_entropy and mixed_cross_entropy: thread i adds elements 8 i to 8 i + 7, then those 4 096 further on, ... in
// order; squared_error: thread i adds elements i, i + 256, ... in order; then the threads as `sums` says; `loss_sums` adds
// the rows. Exponentials are taken around the greatest element that a thread has met, with the eight at hand, and brought
// to that of the row in the end: one read for the loss, one more for its gradient.
// Launch: a block a row, of 512 threads for these two, else of 256.
// Source of the sum: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
// Does not know batches or means: it gives sums and the gradient of the sum.

// The greatest element of a row and its first place. NaN is passed over; of nothing else they are minus infinity and 0.
struct Greatest {
    float value;
    u32 place;

    // What thread `threadIdx.x` has before it meets anything.
    __device__ static Greatest none(u32 width) { return {-infinity(), width}; }

    // Whether an element is greater than those that were met, all of them before it.
    __device__ bool is_beaten_by(float v, u32 width) const {
        // Minus infinity is not greater than what there is before the first element, but it has a place.
        return v > value || (v == value && place == width);
    }
};

// That of the row from those of the threads.
template <u32 WARPS>
__device__ inline Greatest greatest(const Greatest& own, u32 width, float* room, u32* places) {
    float top = across_block<WARPS>(own.value, room, Greater());
    u32 place = across_block<WARPS>(own.value == top ? own.place : width, places, Smaller());
    return {top, place < width ? place : 0};
}

// What a thread of cross_entropy has of its elements.
struct Exponentials {
    Greatest greatest;
    // What exponentials are taken around: the greatest element, or zero where it is minus infinity, so that its own is zero.
    float center;
    float total;
    // Where the target is smoothed: the sum of weights, and that of weighted elements.
    float weights, elements;

    // Eight elements from place `first`. Those that are not there are minus infinity.
    __device__ void add(const Eight& x, u32 first, u32 width) {
        float top = x.v[0];
        for (u32 i = 1; i < 8; i++) top = fmaxf(top, x.v[i]);
        // Ever more seldom. A NaN beats nothing, and is in the sum.
        if (greatest.is_beaten_by(top, width)) {
            u32 place = 0;
            for (u32 i = 8; i-- > 0;) place = x.v[i] == top ? i : place;
            total = greatest.value == top ? total : total * exponential_to_zero(greatest.value - top);
            greatest = {top, first + place};
            center = top == -infinity() ? 0.0f : top;
        }
        for (u32 i = 0; i < 8; i++) total += exponential_to_zero(x.v[i] - center);
    }

    __device__ void weigh(const Eight& x, const float* class_weights, u32 first, u32 width) {
        for (u32 i = 0; i < 8 && first + i < width; i++) {
            float w = class_weights ? class_weights[first + i] : 1.0f;
            weights += w;
            elements += w * x.v[i];
        }
    }
};

// What a row is to be: a class, and what it weighs. A row has one, or two that share it.
struct Aim {
    u32 target;
    float weight;
};

// What the rows of a loss share. Of class weights that are null all are one.
struct Options {
    const float* class_weights;
    u32 width;
    float smoothing, scale;

    __device__ float weight_of(u32 target) const { return class_weights ? class_weights[target] : 1.0f; }
};

// What is left of a row: its loss and weight, and whether it counts and is right.
struct Left {
    double* values;
    u32* counts;

    __device__ void put(u64 row, double loss, double weight, u32 word) const {
        values[2 * row] = loss;
        values[2 * row + 1] = weight;
        counts[row] = word;
    }
};

const u32 ROW_WARPS = 16, ROUND = ROW_WARPS * 32 * 8;

// A row that counts for nothing, or whose target is no class.
__device__ inline void leave_out(Stored* d, u32 width, bool wrong, const Left& left) {
    Eight all;
    for (u32 i = 0; i < 8; i++) all.v[i] = wrong ? not_a_number() : 0.0f;
    for (u32 first = threadIdx.x * 8; d && first < width; first += ROUND) all.write(d + first, width - first, lies_wide(d));
    if (threadIdx.x == 0) left.put(blockIdx.x, wrong ? (double)not_a_number() : 0.0, 0.0, 0);
}

// As PyTorch has it with reduction="sum". With smoothing s, class weights w (null: ones) and lse the logarithm of the sum
// of exponentials, a row costs (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c]). Of two aims each has its part of
// the first.
template <u32 AIMS>
__device__ inline void row_of_cross_entropy(
    const Stored* x, Stored* d, const Options& options, const Aim (&aims)[AIMS], u32 right, const Left& left, float* room,
    u32* places) {
    u32 width = options.width, start = threadIdx.x * 8;
    bool wide = lies_wide(x);
    const float* class_weights = options.class_weights;
    float goals[AIMS];
    for (u32 a = 0; a < AIMS; a++) goals[a] = x[aims[a].target];
    float main = 1.0f - options.smoothing, spread = options.smoothing / (float)width;
    Exponentials own = {Greatest::none(width), 0.0f, 0.0f, 0.0f, 0.0f};
    // The next are on their way while those at hand are added.
    Packed<Stored> next = {};
    if (start < width) next = Packed<Stored>::read(x + start, width - start, wide, -infinity());
    for (u32 first = start; first < width; first += ROUND) {
        Eight some = next.eight();
        u32 more = width - first;
        if (more > ROUND) next = Packed<Stored>::read(x + first + ROUND, more - ROUND, wide, -infinity());
        own.add(some, first, width);
        if (spread > 0.0f) own.weigh(some, class_weights, first, width);
    }
    Greatest best = greatest<ROW_WARPS>(own.greatest, width, room, places);
    float top = best.value;
    // Of a thread without an element the total is zero, of a row without a finite top not a number.
    float total = own.greatest.value == top ? own.total : own.total * exponential_to_zero(own.greatest.value - top);
    total = is_finite(top) ? across_block<ROW_WARPS>(total, room, Plus()) : not_a_number();
    // A NaN or an infinite logit must show in the loss; `logarithm` asks for a finite number.
    double lse = is_finite(total) ? logarithm((double)total) + (double)top : (double)not_a_number();
    double loss = 0.0, weight = 0.0;
    // What the gradient of lse is multiplied by: the sum of all that multiplies lse in the loss.
    float mass = 0.0f;
    for (u32 a = 0; a < AIMS; a++) {
        loss += (double)(main * aims[a].weight) * (lse - (double)goals[a]);
        weight += (double)aims[a].weight;
        mass += main * aims[a].weight;
    }
    if (spread > 0.0f) {
        float weights = across_block<ROW_WARPS>(own.weights, room, Plus());
        float elements = across_block<ROW_WARPS>(own.elements, room, Plus());
        loss += (double)spread * ((double)weights * lse - (double)elements);
        mass += spread * weights;
    }
    if (threadIdx.x == 0) left.put(blockIdx.x, loss, weight, best.place == right ? 3 : 1);
    if (!d) return;
    // The scale is a power of two: the bits are those of scaling the result.
    float share = mass / total * options.scale, hits[AIMS];
    for (u32 a = 0; a < AIMS; a++) hits[a] = main * aims[a].weight * options.scale;
    spread *= options.scale;
    for (u32 first = start; first < width; first += ROUND) {
        Eight some;
        some.read(x + first, width - first, wide, 0.0f);
        for (u32 i = 0; i < 8; i++) some.v[i] = exponential_to_zero(some.v[i] - top) * share;
        if (spread != 0.0f) {
            for (u32 i = 0; i < 8; i++) {
                float w = class_weights && first + i < width ? class_weights[first + i] : 1.0f;
                some.v[i] = some.v[i] - spread * w;
            }
        }
        for (u32 a = 0; a < AIMS; a++) {
            if (aims[a].target - first >= 8) continue;
            for (u32 i = 0; i < 8; i++) some.v[i] = first + i == aims[a].target ? some.v[i] - hits[a] : some.v[i];
        }
        some.write(d + first, width - first, wide);
    }
}

extern "C" __global__ void __launch_bounds__(512) NAME(cross_entropy_, )(
    const Stored* logits, const u32* targets, const float* class_weights, Stored* d, double* values, u32* counts, u32 width,
    u32 pitch, float smoothing, u32 ignores, u32 ignored, float scale, const float* found) {
    __shared__ float room[ROW_WARPS];
    __shared__ u32 places[ROW_WARPS];
    u64 row = blockIdx.x;
    u32 target = targets[row];
    Options options = {class_weights, width, smoothing, number(scale, found)};
    Left left = {values, counts};
    if (d) d += row * pitch;
    if ((ignores && target == ignored) || target >= width) {
        leave_out(d, width, !(ignores && target == ignored), left);
        return;
    }
    Aim aims[1] = {{target, options.weight_of(target)}};
    row_of_cross_entropy<1>(logits + row * pitch, d, options, aims, target, left, room, places);
}

extern "C" __global__ void __launch_bounds__(512) NAME(mixed_cross_entropy_, )(
    const Stored* logits, const u32* targets, const float* class_weights, Stored* d, double* values, u32* counts, u32 width,
    u32 pitch, float smoothing, float scale, const float* found) {
    __shared__ float room[ROW_WARPS];
    __shared__ u32 places[ROW_WARPS];
    u64 row = blockIdx.x;
    u32 own = targets[3 * row], other = targets[3 * row + 1];
    float share = __uint_as_float(targets[3 * row + 2]);
    Options options = {class_weights, width, smoothing, number(scale, found)};
    Left left = {values, counts};
    if (d) d += row * pitch;
    if (own >= width || other >= width) {
        leave_out(d, width, true, left);
        return;
    }
    Aim aims[2] = {{own, share * options.weight_of(own)}, {other, (1.0f - share) * options.weight_of(other)}};
    row_of_cross_entropy<2>(logits + row * pitch, d, options, aims, share < 0.5f ? other : own, left, room, places);
}

// Squared error, averaged over a row.
extern "C" __global__ void __launch_bounds__(256) NAME(squared_error_, )(
    const Stored* outputs, const float* targets, Stored* d, double* values, u32* counts, u32 width,
    u32 pitch, float scale, const float* found) {
    scale = number(scale, found);
    __shared__ float room[8];
    u64 row = blockIdx.x;
    float share = 2.0f / (float)width * scale;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float away = outputs[row * pitch + i] - targets[row * width + i];
        sum += away * away;
        if (d) d[row * pitch + i] = share * away;
    }
    sum = across_block(sum, room, Plus());
    if (threadIdx.x == 0) {
        values[2 * row] = (double)sum / (double)width;
        values[2 * row + 1] = 1.0;
        counts[row] = 1;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(arg_max_, )(const Stored* x, u32* best, u32 width, u32 pitch) {
    __shared__ float room[8];
    __shared__ u32 places[8];
    u64 row = blockIdx.x;
    Greatest own = Greatest::none(width);
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float v = x[row * pitch + i];
        if (own.is_beaten_by(v, width)) own = {v, i};
    }
    Greatest found = greatest<8>(own, width, room, places);
    if (threadIdx.x == 0) best[row] = found.place;
}
