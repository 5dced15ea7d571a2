// Numbers between layers that lie in memory as floats, and how kernels of them are called. bf16.cuh and f16.cuh have the
// same words for those that lie there as halves: a kernel is written once.
//
// Does not know a kernel.

// A kernel's name has the kind in its middle.
#define NAME(before, after) before##f32##after

typedef float Stored;
