// sum_tree: the sum of lists in an order that is given, written to one list or to several.
//
// The addition of the reduction tree between ranks. Leaves and targets are tables of addresses, low word first. Order: it
// is a program of a stack machine, one word a step: 0 pushes a leaf, 1 adds a leaf to the top, 2 adds the top to the
// value below it; the leaf is in the upper 30 bits. No addition is reassociated, so the bits are those of the program.
// All leaves of an element are read before its sum is written: a target may be a leaf.
//
// Launch: one loop over all elements, any grid of 256 threads. At most 32 values are on the stack. Does not know ranks.

enum { PUSH_LEAF = 0, ADD_LEAF = 1, DEPTH = 32 };

__device__ inline float* address(const u32* table, u32 at) {
    return (float*)((u64)table[2 * at] | (u64)table[2 * at + 1] << 32);
}

extern "C" __global__ void __launch_bounds__(256) sum_tree(
    const u32* leaves, const u32* steps, const u32* targets, u32 step_count, u32 target_count, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) {
        float below[DEPTH];
        float top = 0.0f;
        u32 depth = 0;
        for (u32 step = 0; step < step_count; step++) {
            u32 word = steps[step], leaf = word >> 2;
            if ((word & 3) == PUSH_LEAF) {
                if (depth > 0) below[depth - 1] = top;
                top = address(leaves, leaf)[i];
                depth++;
            } else if ((word & 3) == ADD_LEAF) {
                top = top + address(leaves, leaf)[i];
            } else {
                depth--;
                top = below[depth - 1] + top;
            }
        }
        for (u32 target = 0; target < target_count; target++) address(targets, target)[i] = top;
    }
}
