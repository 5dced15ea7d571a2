// A strip of a matrix: 256 columns, of which each thread of a warp has eight side by side. Each warp of a block is a lane: of
// eight it has every eighth row.
//
// Order: the lanes from the first to the last. Does not know what is summed.

const u32 STRIP = 256;

// The columns of a thread in a strip: the first of them, and how many there are from it on, to the end of the row.
struct Columns {
    u32 first, count;
    __device__ Columns(u32 strip, u32 width) {
        first = strip + threadIdx.x % 32 * 8;
        count = first < width ? width - first : 0;
    }
};

// The sums of a strip by each lane, in shared memory.
template <u32 LANES = 8>
struct alignas(16) Lanes {
    float sums[LANES][STRIP];

    // Those of a thread.
    __device__ void put(const Eight& own) { own.write_wide(&sums[threadIdx.x / 32][threadIdx.x % 32 * 8]); }

    // The sum of a column, once all are there.
    __device__ float across(u32 column) const {
        float sum = sums[0][column];
        for (u32 lane = 1; lane < LANES; lane++) sum += sums[lane][column];
        return sum;
    }
};
