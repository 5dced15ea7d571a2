// The shape of attention, as its kernels are given it, and which keys a query sees.
//
// Does not know how rows are fetched, nor which tile is computed at once.

struct Shape {
    u32 time, heads, head;
    u32 reach;  // how many keys behind its own a query sees: none, or `time`, which is all
    float scale;

    __device__ u64 wide() const { return (u64)heads * head; }
    __device__ u32 last_key(u32 query) const { return least(time - 1, query + reach); }
    // The first query of those from `first` on, and of all before, that sees key `first`.
    __device__ u32 first_query(u32 first) const { return first - least(first, reach); }
};
