// A strip of a matrix: of its columns each thread of a warp has eight side by side, or as many as a call says. Each warp of a block
// is a lane: of eight it has every eighth row.
//
// Order: the lanes from the first to the last. Does not know what is summed.

const u32 STRIP = 256;

// The columns of a thread in a strip: the first of them, and how many there are from it on, to the end of the row.
template <u32 N>
struct Columns {
    u32 first, count;
    __device__ Columns(u32 strip, u32 width) {
        first = strip + threadIdx.x % 32 * N;
        count = first < width ? width - first : 0;
    }
};

// The sums of a strip by each lane, in shared memory.
template <u32 LANES = 8, u32 N = 8>
struct alignas(16) Lanes {
    float sums[LANES][32 * N];

    // Those of a thread.
    __device__ void put(const Numbers<N>& own) { own.write_wide(&sums[threadIdx.x / 32][threadIdx.x % 32 * N]); }

    // The sum of a column, once all are there.
    __device__ float across(u32 column) const {
        float sum = sums[0][column];
        for (u32 lane = 1; lane < LANES; lane++) sum += sums[lane][column];
        return sum;
    }
};

// Columns of which each thread has 16 bytes.
template <class T>
struct WideStrip {
    static constexpr u32 N = Wide<T>::COUNT, WIDTH = 32 * N;
    typedef Columns<N> Own;
    typedef Lanes<8, N> Room;
};
