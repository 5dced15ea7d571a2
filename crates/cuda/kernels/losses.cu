// cross_entropy, squared_error: the loss of each row. Where `d` is not null it is the outputs' own memory, and the gradient,
// times `scale` (where `found` is not null, what it holds), takes their place: a thread writes the elements that it alone
// reads, and what all read is read before a barrier.
// arg_max: the place of each row's greatest element, the first of equals.
//
// Rows of outputs lie `pitch` apart; what is between them is nobody's. They leave loss and weight in `values` [rows, 2] and
// a word in `counts` (1 counted, 2 right as well). A row whose target is no class has NaN as loss and gradient: the host
// checks targets, a kernel cannot refuse.
//
// Order: thread i adds elements i, i + 256, ... in order, then the threads as `sums` says; `loss_sums` adds the rows.
// Exponentials are taken around the greatest element that a thread has met, and brought to that of the row in the end:
// one read for the loss, one more for its gradient. Launch: a block of 256 threads a row.
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
__device__ inline Greatest greatest(const Greatest& own, u32 width, float* room, u32* places) {
    float top = across_block(own.value, room, Greater());
    u32 place = across_block(own.value == top ? own.place : width, places, Smaller());
    return {top, place < width ? place : 0};
}

// As PyTorch has it with reduction="sum". With smoothing s, class weights w (null: ones) and lse the logarithm of the sum
// of exponentials, a row costs (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c]).
extern "C" __global__ void __launch_bounds__(256) NAME(cross_entropy_, )(
    const Stored* logits, const u32* targets, const float* class_weights, Stored* d, double* values, u32* counts, u32 width,
    u32 pitch, float smoothing, u32 ignores, u32 ignored, float scale, const float* found) {
    scale = number(scale, found);
    __shared__ float room[8];
    __shared__ u32 places[8];
    u64 row = blockIdx.x;
    u32 target = targets[row];
    const Stored* x = logits + row * pitch;
    if (d) d += row * pitch;
    if ((ignores && target == ignored) || target >= width) {
        bool wrong = !(ignores && target == ignored);
        for (u32 i = threadIdx.x; d && i < width; i += 256) d[i] = wrong ? not_a_number() : 0.0f;
        if (threadIdx.x == 0) {
            values[2 * row] = wrong ? (double)not_a_number() : 0.0;
            values[2 * row + 1] = 0.0;
            counts[row] = 0;
        }
        return;
    }
    float weight = class_weights ? class_weights[target] : 1.0f, goal = x[target];
    float main = 1.0f - smoothing, spread = smoothing / (float)width;
    Greatest own = Greatest::none(width);
    float total = 0.0f, weights = 0.0f, logits_of_all = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float v = x[i];
        if (own.is_beaten_by(v, width)) {
            // Before the first element there is nothing to bring to another top; what is not a number stays.
            total = (own.place == width ? total : total * exponential(own.value - v)) + 1.0f;
            own = {v, i};
        } else {
            total += v == own.value ? 1.0f : exponential(v - own.value);
        }
        if (spread > 0.0f) {
            float w = class_weights ? class_weights[i] : 1.0f;
            weights += w;
            logits_of_all += w * v;
        }
    }
    Greatest best = greatest(own, width, room, places);
    float top = best.value;
    // Of a thread without an element the total is zero, of a row without a finite top not a number.
    total = own.value == top ? total : total * exponential(own.value - top);
    total = is_finite(top) ? across_block(total, room, Plus()) : not_a_number();
    // A NaN or an infinite logit must show in the loss; `logarithm` asks for a finite number.
    double lse = is_finite(total) ? logarithm((double)total) + (double)top : (double)not_a_number();
    double loss = (double)(main * weight) * (lse - (double)goal);
    // What the gradient of lse is multiplied by: the sum of all that multiplies lse in the loss.
    float mass = main * weight;
    if (spread > 0.0f) {
        weights = across_block(weights, room, Plus());
        logits_of_all = across_block(logits_of_all, room, Plus());
        loss += (double)spread * ((double)weights * lse - (double)logits_of_all);
        mass += spread * weights;
    }
    if (d) {
        float share = mass / total;
        for (u32 i = threadIdx.x; i < width; i += 256) {
            float w = class_weights ? class_weights[i] : 1.0f;
            float v = exponential(x[i] - top) * share - spread * w;
            d[i] = (i == target ? v - main * weight : v) * scale;
        }
    }
    if (threadIdx.x == 0) {
        values[2 * row] = loss;
        values[2 * row + 1] = (double)weight;
        counts[row] = best.place == target ? 3 : 1;
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
    Greatest found = greatest(own, width, room, places);
    if (threadIdx.x == 0) best[row] = found.place;
}
