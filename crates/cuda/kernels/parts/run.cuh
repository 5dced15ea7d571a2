// A run of the values of a channel, over all images: what a block of the kernels of batch norm sums.
//
// Does not know what is summed.

const u32 RUN = 4096;

// The values of a run: its first one and the one after its last.
struct Run {
    u64 start, end;
    __device__ Run(u32 run, u32 images, u32 area) {
        u64 all = (u64)images * area;
        start = (u64)run * RUN;
        end = all < start + RUN ? all : start + RUN;
    }
};
