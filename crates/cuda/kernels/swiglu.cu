// swiglu: y[r, i] = a sigmoid(a) b, a = x[r, i], b = x[r, width + i].   swiglu_gradient: dx of it, from x and dy.
//
// Launch: any grid, 256 threads; a loop over elements of y, 16 bytes at a time. Order: none, every element stands alone, in
// f32 with the CPU's bits.
// Does not know layers.

// Where the gate of an element of y lies, in rows of both halves. What it lets through is a width further on.
__device__ inline u64 gate_of(const Place& place, u32 width) { return (u64)place.channel * 2 * width + place.inside; }

__device__ inline float let_through(float gate, float x) { return gate * sigmoid(gate) * x; }

// What let_through rises by with the gate, and with what is let through, both times dy.
__device__ inline void slopes(float gate, float x, float dy, float& dgate, float& dx) {
    float s = sigmoid(gate);
    dgate = dy * x * (s * fmaf(gate, 1.0f - s, 1.0f));
    dx = dy * (gate * s);
}

extern "C" __global__ void __launch_bounds__(256) NAME(swiglu_, )(
    const Stored* x, Stored* y, u64 len, u32 rows, u32 width) {
    // Then no 16 bytes are of two rows.
    bool wide = rows_lie_wide(x, width) && lies_wide(y);
    over_channels(len, rows, width, [&](u64 first, u32 count, Place place) {
        if (wide) {
            const Stored* own = x + gate_of(place, width);
            Wide<Stored> gate, some;
            gate.read_wide(own);
            some.read_wide(own + width);
            for (u32 i = 0; i < some.COUNT; i++) some.v[i] = let_through(gate.v[i], some.v[i]);
            some.write_wide(y + first);
            return;
        }
        for (u32 i = 0; i < count; i++) {
            const Stored* own = x + gate_of(place, width);
            y[first + i] = let_through(own[0], own[width]);
            place.go_on(rows, width);
        }
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(swiglu_gradient_, )(
    const Stored* x, const Stored* dy, Stored* dx, u64 len, u32 rows, u32 width) {
    bool wide = rows_lie_wide(x, width) && lies_wide(dy) && lies_wide(dx);
    over_channels(len, rows, width, [&](u64 first, u32 count, Place place) {
        if (wide) {
            u64 at = gate_of(place, width);
            Wide<Stored> gate, some, d;
            gate.read_wide(x + at);
            some.read_wide(x + at + width);
            d.read_wide(dy + first);
            for (u32 i = 0; i < d.COUNT; i++) slopes(gate.v[i], some.v[i], d.v[i], gate.v[i], some.v[i]);
            gate.write_wide(dx + at);
            some.write_wide(dx + at + width);
            return;
        }
        for (u32 i = 0; i < count; i++) {
            u64 at = gate_of(place, width);
            float dgate, d;
            slopes(x[at], x[at + width], dy[first + i], dgate, d);
            dx[at] = dgate;
            dx[at + width] = d;
            place.go_on(rows, width);
        }
    });
}
