// conv2d_bf16, conv3d_bf16 and the gradients of their inputs and weights: the convolutions of conv2d.cu and conv3d.cu on
// tensor cores. Operands and results are bf16, the bias and the gradient of the weights f32; those of conv2d_f16 and its
// like are f16.
//
//   The rows, columns and K of y, dx and dw are those of conv_tiles.cuh, with ranges of a multiple of 32 cells for dw.
//
// Order: see `tensor_tile`. Launch: ceil(rows / 64) x ceil(columns / 64) blocks of 128 threads, for dw times `splits`.
// Does not know batch norm or pooling, nor db: that is plane_parts.

extern "C" __global__ void __launch_bounds__(128) NAME(conv2d_, )(
    const Stored* x, const Stored* w, const float* bias, Stored* y, Conv2d shape, u32 activation) {
    __shared__ TileRoom room;
    convolve(room, x, w, bias, y, shape, activation);
}

extern "C" __global__ void __launch_bounds__(128) NAME(conv2d_, _input_gradient)(
    const Stored* w, const Stored* dy, const Stored* x, Stored* dx, Conv2d shape) {
    __shared__ TileRoom room;
    input_gradient(room, w, dy, x, dx, shape);
}

extern "C" __global__ void __launch_bounds__(128) NAME(conv2d_, _weight_gradient)(
    const Stored* x, const Stored* dy, float* parts, Conv2d shape, u32 splits) {
    __shared__ TileRoom room;
    weight_gradient(room, x, dy, parts, shape, splits);
}

extern "C" __global__ void __launch_bounds__(128) NAME(conv3d_, )(
    const Stored* x, const Stored* w, const float* bias, Stored* y, Conv3d shape, u32 activation) {
    __shared__ TileRoom room;
    convolve(room, x, w, bias, y, shape, activation);
}

extern "C" __global__ void __launch_bounds__(128) NAME(conv3d_, _input_gradient)(
    const Stored* w, const Stored* dy, const Stored* x, Stored* dx, Conv3d shape) {
    __shared__ TileRoom room;
    input_gradient(room, w, dy, x, dx, shape);
}

extern "C" __global__ void __launch_bounds__(128) NAME(conv3d_, _weight_gradient)(
    const Stored* x, const Stored* dy, float* parts, Conv3d shape, u32 splits) {
    __shared__ TileRoom room;
    weight_gradient(room, x, dy, parts, shape, splits);
}
