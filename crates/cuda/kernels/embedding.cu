// embedding: y[i] = table[ids[i]] + places[i % time]; places may be null.
// embedding_gradient: adds to the rows of dtable that an id names, over rows sorted by `embedding_order`; the others are not
// touched. To overwrite, fill all with zero first.
// places_gradient: dplaces.
//
// No atomics: a row of dtable belongs to one block.
//
// Order: rows of one id are added in their order to what is there, those of one place from zero: the CPU's bits.
// Launch: embedding any grid of 256 threads; embedding_gradient a block of 256 threads a row; places_gradient any grid of
// 256 threads, a loop over elements of dplaces. An id beyond the table gives NaN in embedding and is left out of the
// gradient: the host checks ids, a kernel cannot refuse.
// Does not know what an id stands for.

extern "C" __global__ void __launch_bounds__(256) NAME(embedding_, )(
    const u32* ids, const float* table, const float* places, Stored* y, u64 len, u32 width, u32 entries, u32 time) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        u64 row = i / width;
        u32 column = (u32)(i % width);
        float entry = ids[row] < entries ? table[(u64)ids[row] * width + column] : not_a_number();
        y[i] = places ? entry + places[row % time * width + column] : entry;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(embedding_gradient_, )(
    const u32* ids, const u32* order, const Stored* dy, float* dtable, u32 rows, u32 width, u32 entries) {
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

extern "C" __global__ void __launch_bounds__(256) NAME(places_gradient_, )(
    const Stored* dy, float* dplaces, u64 len, u32 rows, u32 width, u32 time) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float sum = 0.0f;
        for (u64 row = i / width; row < rows; row += time) sum = sum + dy[row * width + i % width];
        // Places from `time` on are never used.
        dplaces[i] = i / width < time ? sum : 0.0f;
    }
}
