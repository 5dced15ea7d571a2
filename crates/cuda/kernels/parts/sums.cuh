// Sums, maxima and minima over the lanes of a warp and the warps of a block: eight, or as many as a call says.
//
// Order: lanes in pairs 16, 8, 4, 2, 1 apart, then the warps from the first to the last. Every thread gets the result.
// A block's room has to be an element of shared memory for each warp; it may be used again at once.

const u32 WHOLE_WARP = 0xffffffffu;

struct Plus {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};

// The greater one. A NaN on the right is passed over.
struct Greater {
    __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

struct Smaller {
    __device__ u32 operator()(u32 a, u32 b) const { return b < a ? b : a; }
};

template <class T, class F>
__device__ inline T across_warp(T v, F join) {
    for (int apart = 16; apart > 0; apart >>= 1) v = join(v, __shfl_xor_sync(WHOLE_WARP, v, apart));
    return v;
}

template <u32 WARPS = 8, class T, class F>
__device__ inline T across_block(T v, T* room, F join) {
    v = across_warp(v, join);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    T all = room[0];
    for (u32 warp = 1; warp < WARPS; warp++) all = join(all, room[warp]);
    __syncthreads();
    return all;
}
