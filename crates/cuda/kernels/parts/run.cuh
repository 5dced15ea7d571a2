// A run of the values of a channel, over all images: what a block of 256 threads sums, each every 256th.
//
// Does not know what is summed.

const u32 RUN = 4096;

// A walk over every 256th value of a channel, without a division on the way.
struct Walk {
    u64 at;
    u32 inside, area, step_inside;
    u64 step, jump;

    // From value `first` of the channel on.
    __device__ Walk(u64 first, u32 channel, u32 channels, u32 area)
        : at((first / area * channels + channel) * area + first % area), inside((u32)(first % area)), area(area),
          step_inside(256 % area), step((u64)(256 / area) * channels * area + 256 % area), jump((u64)(channels - 1) * area) {}

    // Where the value at hand lies; then the one 256 further on is at hand.
    __device__ u64 next() {
        u64 here = at;
        inside += step_inside;
        at += step;
        if (inside >= area) {
            inside -= area;
            at += jump;
        }
        return here;
    }
};

// The values of a run: its first one and the one after its last.
struct Run {
    u64 start, end;
    __device__ Run(u32 run, u32 images, u32 area) {
        u64 all = (u64)images * area;
        start = (u64)run * RUN;
        end = all < start + RUN ? all : start + RUN;
    }

    // How many of them a thread of 256 has.
    __device__ u32 own() const {
        u32 count = (u32)(end - start);
        return threadIdx.x < count ? parts_of(count - threadIdx.x, 256) : 0;
    }

    // From the first that a thread has on.
    __device__ Walk walk(u32 channel, u32 channels, u32 area) const {
        return Walk(start + threadIdx.x, channel, channels, area);
    }
};
