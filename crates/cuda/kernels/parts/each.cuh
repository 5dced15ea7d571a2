// The same for every element of lists: by 16 bytes where all of them lie on 16 bytes, one by one where they do not, and for what
// is left of less than 16 bytes.
//
// Every element stands alone, so it has the same bits either way. A list that is read may be the one that is written: a thread
// reads all that it changes before it does. Does not know a kernel.

// y[i] = f(x[i])
template <class F>
__device__ inline void each(const Stored* x, Stored* y, u64 len, F f) {
    const u32 N = Wide<Stored>::COUNT;
    u64 wides = lies_wide(x) && lies_wide(y) ? len / N : 0;
    for (u64 i = first_element(); i < wides; i += next_element()) {
        Wide<Stored> some;
        some.read_wide(x + N * i);
        for (u32 k = 0; k < N; k++) some.v[k] = f(some.v[k]);
        some.write_wide(y + N * i);
    }
    for (u64 i = N * wides + first_element(); i < len; i += next_element()) y[i] = f(x[i]);
}

// y[i] = f(a[i], b[i])
template <class F>
__device__ inline void each(const Stored* a, const Stored* b, Stored* y, u64 len, F f) {
    const u32 N = Wide<Stored>::COUNT;
    u64 wides = lies_wide(a) && lies_wide(b) && lies_wide(y) ? len / N : 0;
    for (u64 i = first_element(); i < wides; i += next_element()) {
        Wide<Stored> some, other;
        some.read_wide(a + N * i);
        other.read_wide(b + N * i);
        for (u32 k = 0; k < N; k++) some.v[k] = f(some.v[k], other.v[k]);
        some.write_wide(y + N * i);
    }
    for (u64 i = N * wides + first_element(); i < len; i += next_element()) y[i] = f(a[i], b[i]);
}
