// Kernels of convolutions by tiles of H x W results, over D axes: of y and dx, and of dw, which wants other tiles.
//
//   y:  rows are output channels, columns are cells of all images, K is channel, then kernel depth, row and column.
//   dx: rows are input channels, columns are elements of all images, K is output channel, then the turned kernel's depth,
//       row and column. Where `x` is not null, it is what a ReLU gave, and what that does to gradients is done to dx.
//   dw: rows are output channels, columns are places in a kernel, K is cells of all images, cut into `splits` equal ranges
//       (a multiple of 16 cells each), a matrix of sums for each; `sum_parts` adds them.
//
// Order: see `tile`. y and dx have the CPU's order of K. Does not know which tiles there are.

#define CONV(D, H, W)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) conv##D##d_##H##x##W(                                              \
        const Stored* x, const Stored* w, const float* bias, Stored* y, Conv##D##d shape, u32 activation) {              \
        __shared__ Room<H, W> room;                                                                                      \
        convolve(room, x, w, bias, y, shape, activation);                                                                \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) conv##D##d_input_gradient_##H##x##W(                               \
        const Stored* w, const Stored* dy, const Stored* x, Stored* dx, Conv##D##d shape) {                              \
        __shared__ Room<H, W> room;                                                                                      \
        input_gradient(room, w, dy, x, dx, shape);                                                                       \
    }

#define WEIGHT_GRADIENT(D, H, W)                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) conv##D##d_weight_gradient_##H##x##W(                              \
        const Stored* x, const Stored* dy, float* parts, Conv##D##d shape, u32 splits) {                                 \
        __shared__ Room<H, W> room;                                                                                      \
        weight_gradient(room, x, dy, parts, shape, splits);                                                              \
    }
