// embedding: y[i] = table[ids[i]] + places[i % time]; places may be null.
// embedding_order: the rows sorted by id, equal ids in the order of rows.
// embedding_gradient: adds to the rows of dtable that an id names, over sorted rows; the others are not touched. To
// overwrite, fill all with zero first.
// places_gradient: dplaces.
//
// No atomics: a row of dtable belongs to one block. embedding_order counts for each row how many come before it, which is
// rows^2 comparisons; at 16 384 rows that is less than reading the gradient.
//
// Order: rows of one id are added in their order to what is there, those of one place from zero: the CPU's bits.
// Launch: embedding any grid of 256 threads; embedding_order one thread a row in blocks of 256; embedding_gradient a block
// of 256 threads a row; places_gradient any grid of 256 threads, a loop over elements of dplaces. An id beyond the table
// gives NaN in embedding and is left out of the gradient: the host checks ids, a kernel cannot refuse.
// Does not know what an id stands for.

extern "C" __global__ void __launch_bounds__(256) embedding(
    const u32* ids, const float* table, const float* places, float* y, u64 len, u32 width, u32 entries, u32 time) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        u64 row = i / width;
        u32 column = (u32)(i % width);
        float entry = ids[row] < entries ? table[(u64)ids[row] * width + column] : not_a_number();
        y[i] = places ? entry + places[row % time * width + column] : entry;
    }
}

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

extern "C" __global__ void __launch_bounds__(256) embedding_gradient(
    const u32* ids, const u32* order, const float* dy, float* dtable, u32 rows, u32 width, u32 entries) {
    __shared__ u32 found;
    u32 start = blockIdx.x, id = ids[order[start]];
    bool first = start == 0 || ids[order[start - 1]] != id;
    if (!first || id >= entries) return;
    // One thread meets the last row of this id. Knowing the end, the loop below has its loads in flight together.
    for (u32 i = start + threadIdx.x; i < rows && ids[order[i]] == id; i += 256) {
        if (i + 1 == rows || ids[order[i + 1]] != id) found = i + 1;
    }
    __syncthreads();
    u32 end = found;
    for (u32 column = threadIdx.x; column < width; column += 256) {
        float sum = dtable[(u64)id * width + column];
#pragma unroll 8
        for (u32 i = start; i < end; i++) sum = sum + dy[(u64)order[i] * width + column];
        dtable[(u64)id * width + column] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) places_gradient(
    const float* dy, float* dplaces, u64 len, u32 rows, u32 width, u32 time) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float sum = 0.0f;
        for (u64 row = i / width; row < rows; row += time) sum = sum + dy[row * width + i % width];
        // Places from `time` on are never used.
        dplaces[i] = i / width < time ? sum : 0.0f;
    }
}
