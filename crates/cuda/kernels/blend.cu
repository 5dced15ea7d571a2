// blend: running statistics, and moving averages of parameters. Where `rounded` is not null, it is their copy in halves.
//
// Plain products and sums without a fused multiply-add, in the CPU's order: the CPU's bits.
// `found` as in `update.cu`.
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know what is averaged.

extern "C" __global__ void __launch_bounds__(256) NAME(blend_, )(
    const float* sums, float* running, Stored* rounded, u64 len, float momentum, float scale,
    const float* found) {
    scale = number(scale, found);
    if (is_none(scale)) return;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float next = (1.0f - momentum) * running[i] + momentum * (sums[i] * scale);
        running[i] = next;
        if (rounded) rounded[i] = next;
    }
}
