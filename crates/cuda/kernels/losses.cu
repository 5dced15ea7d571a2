// cross_entropy, squared_error: the loss of each row. Where `d` is not null it is the outputs' own memory, and the gradient,
// times `scale`, takes their place: a thread writes the elements that it alone reads, and what all read is read before a
// barrier.
// loss_sums: the sums over rows.   arg_max: the place of each row's greatest element, the first of equals.
//
// Rows leave loss and weight in `values` [rows, 2] and a word in `counts` (1 counted, 2 right as well). A row whose target
// is no class has NaN as loss and gradient: the host checks targets, a kernel cannot refuse.
//
// Order: thread i adds elements (rows, for loss_sums) i, i + 256, ... in order, then the threads as `sums` says; rows in
// f64. Launch: a block of 256 threads a row; loss_sums one block of 256 threads.
// Does not know batches or means: it gives sums and the gradient of the sum.

// The greatest element of a row and its first place. NaN is passed over; of nothing else they are minus infinity and 0.
struct Greatest {
    float value;
    u32 place;
};

// Reads the row once: each thread's greatest has its first place with it.
__device__ inline Greatest greatest(const float* x, u32 width, float* room, u32* places) {
    float best = -infinity();
    u32 place = width;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float v = x[i];
        // Minus infinity is not greater than what there is before the first element, but it has a place.
        if (v > best || (v == best && place == width)) {
            best = v;
            place = i;
        }
    }
    float top = across_block(best, room, Greater());
    place = across_block(best == top ? place : width, places, Smaller());
    return {top, place < width ? place : 0};
}

// As PyTorch has it with reduction="sum". With smoothing s, class weights w (null: ones) and lse the logarithm of the sum
// of exponentials, a row costs (1 - s) w[t] (lse - x[t]) + s / C sum_c w[c] (lse - x[c]).
extern "C" __global__ void __launch_bounds__(256) cross_entropy(
    const float* logits, const u32* targets, const float* class_weights, float* d, double* values, u32* counts, u32 width,
    float smoothing, u32 ignores, u32 ignored, float scale) {
    __shared__ float room[8];
    __shared__ u32 places[8];
    u64 row = blockIdx.x;
    u32 target = targets[row];
    const float* x = logits + row * width;
    if (d) d += row * width;
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
    Greatest best = greatest(x, width, room, places);
    float top = best.value, total = 0.0f, weights = 0.0f, logits_of_all = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float v = x[i];
        total += exponential(v - top);
        if (spread > 0.0f) {
            float w = class_weights ? class_weights[i] : 1.0f;
            weights += w;
            logits_of_all += w * v;
        }
    }
    total = across_block(total, room, Plus());
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
extern "C" __global__ void __launch_bounds__(256) squared_error(
    const float* outputs, const float* targets, float* d, double* values, u32* counts, u32 width, float scale) {
    __shared__ float room[8];
    u64 row = blockIdx.x;
    float share = 2.0f / (float)width * scale;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        float away = outputs[row * width + i] - targets[row * width + i];
        sum += away * away;
        if (d) d[row * width + i] = share * away;
    }
    sum = across_block(sum, room, Plus());
    if (threadIdx.x == 0) {
        values[2 * row] = (double)sum / (double)width;
        values[2 * row + 1] = 1.0;
        counts[row] = 1;
    }
}

// sums [2]: loss, weight. totals [2]: rows counted, rows right.
extern "C" __global__ void __launch_bounds__(256) loss_sums(
    const double* values, const u32* counts, double* sums, u32* totals, u32 rows) {
    __shared__ double room[8];
    __shared__ u32 counters[8];
    double loss = 0.0, weight = 0.0;
    u32 counted = 0, right = 0;
    for (u32 row = threadIdx.x; row < rows; row += 256) {
        loss += values[2 * (u64)row];
        weight += values[2 * (u64)row + 1];
        counted += counts[row] & 1;
        right += counts[row] >> 1;
    }
    loss = across_block(loss, room, Plus());
    weight = across_block(weight, room, Plus());
    counted = across_block(counted, counters, Plus());
    right = across_block(right, counters, Plus());
    if (threadIdx.x == 0) {
        sums[0] = loss;
        sums[1] = weight;
        totals[0] = counted;
        totals[1] = right;
    }
}

extern "C" __global__ void __launch_bounds__(256) arg_max(const float* x, u32* best, u32 width) {
    __shared__ float room[8];
    __shared__ u32 places[8];
    u64 row = blockIdx.x;
    Greatest found = greatest(x + row * width, width, room, places);
    if (threadIdx.x == 0) best[row] = found.place;
}
