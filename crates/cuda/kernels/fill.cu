// fill: y = value.
//
// Launch: any grid, 256 threads; a loop over elements. Order: none, every element stands alone.
// Does not know what the elements are.

extern "C" __global__ void __launch_bounds__(256) NAME(fill_, )(Stored* y, float value, u64 len) {
    for (u64 i = first_element(); i < len; i += next_element()) y[i] = value;
}
