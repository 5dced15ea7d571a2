// conv2d, conv3d and the gradients of their inputs and weights: convolutions as products whose operand is the image itself,
// or the volume.
//
//   y:  rows are output channels, columns are cells of all images, K is channel, then kernel depth, row and column.
//   dx: rows are input channels, columns are elements of all images, K is output channel, then the turned kernel's depth,
//       row and column. Where `x` is not null, it is what a ReLU gave, and what that does to gradients is done to dx.
//   dw: rows are output channels, columns are places in a kernel, K is cells of all images, cut into `splits` equal ranges
//       (a multiple of 16 cells each), a matrix of sums for each; `sum_parts` adds them.
//
// Order: see `tile`. y and dx have the CPU's order of K. Launch: ceil(rows / 64) x ceil(columns / 64) blocks of 256
// threads, for dw times `splits`. Does not know batch norm or pooling, nor db: that is plane_parts.

extern "C" __global__ void __launch_bounds__(256) conv2d(
    const Stored* x, const Stored* w, const float* bias, Stored* y, Conv2d shape, u32 activation) {
    __shared__ TileRoom room;
    convolve(room, x, w, bias, y, shape, activation);
}

extern "C" __global__ void __launch_bounds__(256) conv2d_input_gradient(
    const Stored* w, const Stored* dy, const Stored* x, Stored* dx, Conv2d shape) {
    __shared__ TileRoom room;
    input_gradient(room, w, dy, x, dx, shape);
}

extern "C" __global__ void __launch_bounds__(256) conv2d_weight_gradient(
    const Stored* x, const Stored* dy, float* parts, Conv2d shape, u32 splits) {
    __shared__ TileRoom room;
    weight_gradient(room, x, dy, parts, shape, splits);
}

extern "C" __global__ void __launch_bounds__(256) conv3d(
    const Stored* x, const Stored* w, const float* bias, Stored* y, Conv3d shape, u32 activation) {
    __shared__ TileRoom room;
    convolve(room, x, w, bias, y, shape, activation);
}

extern "C" __global__ void __launch_bounds__(256) conv3d_input_gradient(
    const Stored* w, const Stored* dy, const Stored* x, Stored* dx, Conv3d shape) {
    __shared__ TileRoom room;
    input_gradient(room, w, dy, x, dx, shape);
}

extern "C" __global__ void __launch_bounds__(256) conv3d_weight_gradient(
    const Stored* x, const Stored* dy, float* parts, Conv3d shape, u32 splits) {
    __shared__ TileRoom room;
    weight_gradient(room, x, dy, parts, shape, splits);
}
