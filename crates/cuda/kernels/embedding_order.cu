// embedding_order: the rows sorted by id, equal ids in the order of rows.
//
// It counts for each row how many come before it, which is rows^2 comparisons; at 16 384 rows that is less than reading the
// gradient. Launch: one thread a row, blocks of 256. Order: no sum. Does not know what an id stands for.

extern "C" __global__ void __launch_bounds__(256) embedding_order(const u32* ids, u32* order, u32 rows) {
    __shared__ u32 some[256];
    u32 row = blockIdx.x * 256 + threadIdx.x;
    u32 id = row < rows ? ids[row] : 0;
    u32 before = 0;
    for (u32 start = 0; start < rows; start += 256) {
        u32 here = least(256, rows - start);
        if (threadIdx.x < here) some[threadIdx.x] = ids[start + threadIdx.x];
        __syncthreads();
        for (u32 i = 0; i < here; i++) before += some[i] < id || (some[i] == id && start + i < row);
        __syncthreads();
    }
    if (row < rows) order[before] = row;
}
