// cross_entropy, squared_error: the loss of each row. Where `d` is not null it is the outputs' own memory, and the gradient,
// times `scale` (where `found` is not null, what it holds), takes their place: a thread writes the elements that it alone
// reads, and what all read is read before a barrier.
// arg_max: the place of each row's greatest element, the first of equals.
//
// Rows of outputs lie `pitch` apart; what is between them is nobody's. They leave loss and weight in `values` [rows, 2] and
// a word in `counts` (1 counted, 2 right as well). A row whose target is no class has NaN as loss and gradient: the host
// checks targets, a kernel cannot refuse.
//
// Order: cross_entropy: thread i adds elements 8 i to 8 i + 7, then those 4 096 further on, ... in order; squared_error:
// thread i adds elements i, i + 256, ... in order; then the threads as `sums` says; `loss_sums` adds the rows. Exponentials
// are taken around the greatest element that a thread has met, with the eight at hand, and brought to that of the row in the
// end: one read for the loss, one more for its gradient.
// Launch: a block a row, of 512 threads for cross_entropy, else of 256.
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

// As PyTorch has it with reduction="sum". With smoothing s, class weights w (null: ones) and lse the logarithm of the sum
// of exponentials, a row costs (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c]).
extern "C" __global__ void __launch_bounds__(512) NAME(cross_entropy_, )(
    const Stored* logits, const u32* targets, const float* class_weights, Stored* d, double* values, u32* counts, u32 width,
    u32 pitch, float smoothing, u32 ignores, u32 ignored, float scale, const float* found) {
    const u32 WARPS = 16, ROUND = WARPS * 32 * 8;
    scale = number(scale, found);
    __shared__ float room[WARPS];
    __shared__ u32 places[WARPS];
    u64 row = blockIdx.x;
    u32 target = targets[row];
    const Stored* x = logits + row * pitch;
    if (d) d += row * pitch;
    bool wide = lies_wide(x);
    u32 start = threadIdx.x * 8;
    if ((ignores && target == ignored) || target >= width) {
        bool wrong = !(ignores && target == ignored);
        Eight all;
        for (u32 i = 0; i < 8; i++) all.v[i] = wrong ? not_a_number() : 0.0f;
        for (u32 first = start; d && first < width; first += ROUND) all.write(d + first, width - first, wide);
        if (threadIdx.x == 0) {
            values[2 * row] = wrong ? (double)not_a_number() : 0.0;
            values[2 * row + 1] = 0.0;
            counts[row] = 0;
        }
        return;
    }
    float weight = class_weights ? class_weights[target] : 1.0f, goal = x[target];
    float main = 1.0f - smoothing, spread = smoothing / (float)width;
    Exponentials own = {Greatest::none(width), 0.0f, 0.0f, 0.0f, 0.0f};
    // The next are on their way while those at hand are added.
    Packed<Stored> next = {};
    if (start < width) next = Packed<Stored>::read(x + start, width - start, wide, -infinity());
    for (u32 first = start; first < width; first += ROUND) {
        Eight some = next.eight();
        u32 left = width - first;
        if (left > ROUND) next = Packed<Stored>::read(x + first + ROUND, left - ROUND, wide, -infinity());
        own.add(some, first, width);
        if (spread > 0.0f) own.weigh(some, class_weights, first, width);
    }
    Greatest best = greatest<WARPS>(own.greatest, width, room, places);
    float top = best.value;
    // Of a thread without an element the total is zero, of a row without a finite top not a number.
    float total = own.greatest.value == top ? own.total : own.total * exponential_to_zero(own.greatest.value - top);
    total = is_finite(top) ? across_block<WARPS>(total, room, Plus()) : not_a_number();
    // A NaN or an infinite logit must show in the loss; `logarithm` asks for a finite number.
    double lse = is_finite(total) ? logarithm((double)total) + (double)top : (double)not_a_number();
    double loss = (double)(main * weight) * (lse - (double)goal);
    // What the gradient of lse is multiplied by: the sum of all that multiplies lse in the loss.
    float mass = main * weight;
    if (spread > 0.0f) {
        float weights = across_block<WARPS>(own.weights, room, Plus());
        float elements = across_block<WARPS>(own.elements, room, Plus());
        loss += (double)spread * ((double)weights * lse - (double)elements);
        mass += spread * weights;
    }
    if (threadIdx.x == 0) {
        values[2 * row] = loss;
        values[2 * row + 1] = (double)weight;
        counts[row] = best.place == target ? 3 : 1;
    }
    if (!d) return;
    // The scale is a power of two: the bits are those of scaling the result.
    float share = mass / total * scale, hit = main * weight * scale;
    spread *= scale;
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
        if (target - first < 8) {
            for (u32 i = 0; i < 8; i++) some.v[i] = first + i == target ? some.v[i] - hit : some.v[i];
        }
        some.write(d + first, width - first, wide);
    }
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
