// loss_sums: the sums over rows of what `losses.cu` says of each.
//
// Launch: one block of 256 threads. Order: thread i adds rows i, i + 256, ... in order, then the threads as `sums` says, in
// f64.
// Does not know batches or means.

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
