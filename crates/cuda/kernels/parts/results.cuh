// What tiles share: room for what all threads are told, and what `each_result` is given where there is nothing to say. Does not
// know which tile.

// Room for what belongs to a place in K.
struct alignas(16) Shared {
    u32 words[8];
};

// Of a column nothing but itself.
struct Itself {
    __device__ u32 operator()(u32 column) const { return column; }
};

// With a result nothing.
struct Nothing {
    template <class Place>
    __device__ u32 operator()(u32 row, const Place& place) const { return 0; }
};
