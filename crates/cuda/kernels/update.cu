// adamw, lion, sgd, sgd_momentum, along: one update of parameters in place. Where `rounded` is not null, it is their copy in
// halves, which products read.
//
// Plain products, sums, roots and quotients without a fused multiply-add, in the CPU's order: the CPU's bits.
//
// `found` is null, or has what gradients are multiplied by in place of `scale`: not a number where nothing is to be changed.
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know schedules, or which parameters decay.

extern "C" __global__ void __launch_bounds__(256) NAME(adamw_, )(
    const float* g, float* p, float* m, float* v, Stored* rounded, u64 len, float scale, float step_size,
    float root_correction, float decay, float beta1, float beta2, float epsilon, const float* found) {
    scale = number(scale, found);
    if (is_none(scale)) return;
    float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float d = g[i] * scale;
        float first = beta1 * m[i] + rest1 * d;
        float second = beta2 * v[i] + rest2 * (d * d);
        float root = sqrtf(second) * root_correction + epsilon;
        m[i] = first;
        v[i] = second;
        float next = p[i] * decay - step_size * first / root;
        p[i] = next;
        if (rounded) rounded[i] = next;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(lion_, )(
    const float* g, float* p, float* m, Stored* rounded, u64 len, float scale, float lr, float decay, float beta1,
    float beta2, const float* found) {
    scale = number(scale, found);
    if (is_none(scale)) return;
    float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float d = g[i] * scale;
        float way = beta1 * m[i] + rest1 * d;
        m[i] = beta2 * m[i] + rest2 * d;
        float next = p[i] * decay - (way < 0.0f ? -lr : way > 0.0f ? lr : 0.0f);
        p[i] = next;
        if (rounded) rounded[i] = next;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(sgd_, )(
    const float* g, float* p, Stored* rounded, u64 len, float scale, float lr, float weight_decay,
    const float* found) {
    scale = number(scale, found);
    if (is_none(scale)) return;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float next = p[i] - lr * (g[i] * scale + weight_decay * p[i]);
        p[i] = next;
        if (rounded) rounded[i] = next;
    }
}

// In the first step the old momentum counts for nothing, whatever it holds.
extern "C" __global__ void __launch_bounds__(256) NAME(sgd_momentum_, )(
    const float* g, float* p, float* m, Stored* rounded, u64 len, float scale, float lr, float weight_decay,
    float momentum, u32 nesterov, u32 first, const float* found) {
    scale = number(scale, found);
    if (is_none(scale)) return;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float d = g[i] * scale + weight_decay * p[i];
        float kept = first ? 0.0f + d : momentum * m[i] + d;
        m[i] = kept;
        float next = p[i] - lr * (nesterov ? d + momentum * kept : kept);
        p[i] = next;
        if (rounded) rounded[i] = next;
    }
}

// A step along a way that was found of a whole matrix.
extern "C" __global__ void __launch_bounds__(256) NAME(along_, )(
    const Stored* way, float* p, Stored* rounded, u64 len, float scale, float decay, float step, const float* found) {
    if (is_none(number(scale, found))) return;
    for (u64 i = first_element(); i < len; i += next_element()) {
        float next = p[i] * decay - step * (float)way[i];
        p[i] = next;
        if (rounded) rounded[i] = next;
    }
}
