// Words that every kernel uses: it stands before each of them.
//
// Kernels are compiled without any header, by NVRTC for a GPU and by a C++ compiler over a small stand-in for tests, both
// without contraction of a product and a sum: a fused multiply-add stands only where `fmaf` is written. Nothing here
// knows a tensor.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// The first element of a thread in a loop over all elements, and how far it is to its next one. Such kernels do the same
// to every element, so their bits do not depend on the grid.
__device__ inline u64 first_element() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 next_element() { return (u64)gridDim.x * blockDim.x; }

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
__device__ inline float not_a_number() { return __uint_as_float(0x7fc00000u); }
__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u; }
// A number that is an argument, or lies in memory because a kernel has found it. Of an update that is not to be made it is none.
__device__ inline float number(float known, const float* found) { return found ? *found : known; }
__device__ inline bool is_none(float x) { return x != x; }

__device__ inline u32 least(u32 a, u32 b) { return a < b ? a : b; }
__device__ inline u32 parts_of(u32 all, u32 each) { return (all + each - 1) / each; }

// How a fused point-wise function is named in an argument.
enum { ACTIVATION_NONE = 0, ACTIVATION_RELU = 1 };

// NaN stays NaN, so that a broken pass is seen.
__device__ inline float activate(float x, u32 activation) {
    return activation == ACTIVATION_RELU && x <= 0.0f ? 0.0f : x;
}

// A pointer to where something begins of which there are `many`, at least one. Compilers that know from which argument a pointer
// comes add it up anew for each number that is read from there; one that may be null they keep.
template <class T>
__device__ inline const T* kept(u32 many, const T* start) {
    return many ? start : nullptr;
}

// Numbers that are read, or written, at once.
template <u32 N>
struct alignas(4 * N) Piece {
    float v[N];
};
typedef Piece<4> Four;
