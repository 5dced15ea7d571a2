// A strip of a matrix, by a block of 256 threads: 256 columns, of which each thread of a warp has eight side by side, and
// each warp is a lane: it has every eighth row.
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

// Shared memory for the sums of a strip.
struct alignas(16) Lanes {
    float sums[8][STRIP];
};

// The sums of a strip from those of the warps: thread i gets that of column i. The room may be used again behind a barrier.
__device__ inline float across_lanes(const Eight& sums, Lanes& room) {
    sums.write_wide(&room.sums[threadIdx.x / 32][threadIdx.x % 32 * 8]);
    __syncthreads();
    float sum = room.sums[0][threadIdx.x];
    for (u32 lane = 1; lane < 8; lane++) sum += room.sums[lane][threadIdx.x];
    return sum;
}
