// embedding_order: the rows sorted by id, equal ids in the order of rows.
//
// It counts for each row how many come before it, which is rows^2 comparisons: one each, since of the rows of another block
// all or none come first where ids are equal. Launch: one thread a row, blocks of 256. Order: no sum.
// Does not know what an id stands for.

struct alignas(16) Some {
    u32 ids[256];
};

extern "C" __global__ void __launch_bounds__(256) embedding_order(const u32* ids, u32* order, u32 rows) {
    __shared__ Some some;
    u32 own = blockIdx.x * 256, row = own + threadIdx.x;
    u32 id = row < rows ? ids[row] : 0;
    u32 before = 0;
    for (u32 start = 0; start < rows; start += 256) {
        // What is not there comes after all.
        some.ids[threadIdx.x] = start + threadIdx.x < rows ? ids[start + threadIdx.x] : 0xffffffffu;
        __syncthreads();
        if (start < own) {
#pragma unroll 32
            for (u32 i = 0; i < 256; i++) before += some.ids[i] <= id;
        } else if (start > own) {
#pragma unroll 32
            for (u32 i = 0; i < 256; i++) before += some.ids[i] < id;
        } else {
            for (u32 i = 0; i < 256; i++) before += some.ids[i] < id || (some.ids[i] == id && start + i < row);
        }
        __syncthreads();
    }
    if (row < rows) order[before] = row;
}
