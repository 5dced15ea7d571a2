// conv3d_T and the gradients of its inputs and weights: convolutions over volumes, as products whose operand is the volume
// itself.
//
// Order: see conv_tiles.cuh and `tile`. A block has a tile of T results. Launch: ceil(rows / rows of T) x
// ceil(columns / columns of T) blocks of 256 threads, for dw times `splits`. Does not know batch norm or pooling, nor db:
// that is plane_parts.

CONV(3, 64, 64)
CONV(3, 32, 256)
CONV(3, 64, 128)
CONV(3, 128, 128)
WEIGHT_GRADIENT(3, 32, 64)
WEIGHT_GRADIENT(3, 64, 64)
WEIGHT_GRADIENT(3, 128, 128)
