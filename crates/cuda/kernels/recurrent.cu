// lstm_cells, gru_cells: one step of recurrent cells; lstm_gradient, gru_gradient: back through it.
//
// Gates lie as [rows, time, 4, hidden], outputs and states as [rows, time, hidden]; a step is at one place of `time`.
// Forward the gates hold sums of products, and become gates; backward gradients of those sums are written. Gates and states
// are f32, outputs and the gradients of sums numbers between layers. What goes past the weights is added to `dy` of the
// place before.
//
// Launch: a thread for each element of an output at that place, 256 a block. Order: none, every element stands alone, in
// f32 with the CPU's bits (crates/engine/src/cpu/recurrent.rs).
// Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; Cho et al., 2014, in the form of PyTorch.
// Does not know the products around it.

// tanh x; see the CPU device for the fit.
__device__ inline float hyperbolic_tangent(float x) {
    float square = x * x;
    float p = -5.7049887e-3f;
    p = fmaf(p, square, 2.0639088e-2f);
    p = fmaf(p, square, -5.3739715e-2f);
    p = fmaf(p, square, 1.3331442e-1f);
    p = fmaf(p, square, -3.333328e-1f);
    float near = fmaf(p * square, x, x);
    float z = fabsf(x);
    float far = 1.0f - 2.0f / (exponential(z + z) + 1.0f);
    return z < 0.625f ? near : x < 0.0f ? -far : far;
}

// An element of an output, at a place of a sequence.
struct Cell {
    bool is_there, is_first;
    u32 i;         // which of the output
    u64 own;       // in outputs and states
    u64 gates;     // the first of its gates
    u64 of_state;  // in what has one place a sequence

    __device__ Cell(u32 rows, u32 time, u32 at, u32 hidden) {
        u32 each = blockIdx.x * 256 + threadIdx.x, row = each / hidden;
        is_there = row < rows;
        is_first = at == 0;
        i = each % hidden;
        u64 place = (u64)row * time + at;
        own = place * hidden + i;
        gates = place * 4 * hidden + i;
        of_state = each;
    }
};

extern "C" __global__ void __launch_bounds__(256) NAME(lstm_cells_, )(
    const float* bias_in, const float* bias_out, float* gates, float* states, Stored* y, u32 rows, u32 time, u32 at,
    u32 hidden) {
    Cell cell(rows, time, at, hidden);
    if (!cell.is_there) return;
    float gate[4];
#pragma unroll
    for (u32 g = 0; g < 4; g++) {
        u32 bias = g * hidden + cell.i;
        float x = gates[cell.gates + g * hidden] + (bias_in[bias] + bias_out[bias]);
        gate[g] = g == 2 ? hyperbolic_tangent(x) : sigmoid(x);
        gates[cell.gates + g * hidden] = gate[g];
    }
    float before = cell.is_first ? 0.0f : states[cell.own - hidden];
    float state = fmaf(gate[1], before, gate[0] * gate[2]);
    states[cell.own] = state;
    y[cell.own] = gate[3] * hyperbolic_tangent(state);
}

extern "C" __global__ void __launch_bounds__(256) NAME(gru_cells_, )(
    const float* bias_in, const float* bias_out, float* gates, Stored* y, u32 rows, u32 time, u32 at, u32 hidden) {
    Cell cell(rows, time, at, hidden);
    if (!cell.is_there) return;
    float* own = gates + cell.gates;
    const float *a = bias_in + cell.i, *b = bias_out + cell.i;
    float reset = sigmoid(own[0] + (a[0] + b[0]));
    float update = sigmoid(own[hidden] + (a[hidden] + b[hidden]));
    float inner = own[3 * hidden] + b[2 * hidden];
    float candidate = hyperbolic_tangent(fmaf(reset, inner, own[2 * hidden] + a[2 * hidden]));
    own[0] = reset;
    own[hidden] = update;
    own[2 * hidden] = candidate;
    own[3 * hidden] = inner;
    float before = cell.is_first ? 0.0f : (float)y[cell.own - hidden];
    y[cell.own] = fmaf(update, before - candidate, candidate);
}

extern "C" __global__ void __launch_bounds__(256) NAME(lstm_gradient_, )(
    const float* gates, const float* states, const Stored* dy, float* dstates, Stored* dgates, u32 rows, u32 time, u32 at,
    u32 hidden) {
    Cell cell(rows, time, at, hidden);
    if (!cell.is_there) return;
    const float* own = gates + cell.gates;
    float input = own[0], forget = own[hidden], candidate = own[2 * hidden], output = own[3 * hidden];
    float before = cell.is_first ? 0.0f : states[cell.own - hidden];
    float squashed = hyperbolic_tangent(states[cell.own]), each = dy[cell.own];
    float through = each * output;
    float d = fmaf(through * squashed, -squashed, through) + dstates[cell.of_state];
    Stored* to = dgates + cell.gates;
    to[3 * hidden] = each * squashed * (output * (1.0f - output));
    to[0] = d * candidate * (input * (1.0f - input));
    to[hidden] = d * before * (forget * (1.0f - forget));
    to[2 * hidden] = d * input * (1.0f - candidate * candidate);
    dstates[cell.of_state] = d * forget;
}

extern "C" __global__ void __launch_bounds__(256) NAME(gru_gradient_, )(
    const float* gates, const Stored* y, Stored* dy, Stored* dgates, u32 rows, u32 time, u32 at, u32 hidden) {
    Cell cell(rows, time, at, hidden);
    if (!cell.is_there) return;
    const float* own = gates + cell.gates;
    float reset = own[0], update = own[hidden], candidate = own[2 * hidden], inner = own[3 * hidden];
    float before = cell.is_first ? 0.0f : (float)y[cell.own - hidden], each = dy[cell.own];
    float d = each * (1.0f - update) * (1.0f - candidate * candidate);
    Stored* to = dgates + cell.gates;
    to[2 * hidden] = d;
    to[3 * hidden] = d * reset;
    to[0] = d * inner * (reset * (1.0f - reset));
    to[hidden] = each * (before - candidate) * (update * (1.0f - update));
    if (!cell.is_first) dy[cell.own - hidden] = fmaf(each, update, (float)dy[cell.own - hidden]);
}
