// What `each_result` of a tile is given where there is nothing to say. Does not know which tile.

// Of a column nothing but itself.
struct Itself {
    __device__ u32 operator()(u32 column) const { return column; }
};

// With a result nothing.
struct Nothing {
    template <class Place>
    __device__ u32 operator()(u32 row, const Place& place) const { return 0; }
};
