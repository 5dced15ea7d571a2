// Elements of planes of channels, [images, channels, area], 16 bytes at a time, and which channel each is of. Rows of a matrix are
// planes of one element.
//
// Every element stands alone. Does not know what a channel has.

// Where an element is.
struct Place {
    u32 channel, inside;

    __device__ Place(u64 at, u32 channels, u32 area) : channel((u32)(at / area % channels)), inside((u32)(at % area)) {}

    // As many elements further on as `step` is from the first.
    __device__ void go(const Place& step, u32 channels, u32 area) {
        inside += step.inside;
        channel += step.channel;
        if (inside >= area) {
            inside -= area;
            channel++;
        }
        if (channel >= channels) channel -= channels;
    }

    __device__ void go_on(u32 channels, u32 area) {
        if (++inside < area) return;
        inside = 0;
        if (++channel == channels) channel = 0;
    }
};

// f(first, count, place) for each 16 bytes of `len` elements, the last of which may be fewer.
template <class F>
__device__ inline void over_channels(u64 len, u32 channels, u32 area, F f) {
    const u32 N = Wide<Stored>::COUNT;
    Place place(N * first_element(), channels, area), step(N * next_element(), channels, area);
    over<N>(len, [&](u64 first, u32 count) {
        f(first, count, place);
        place.go(step, channels, area);
    });
}

// f(i, of) for each element of 16 bytes from a place on, `of` what the channel of element `i` has: channel(c), asked for again
// where it is another one.
template <class Channel, class F>
__device__ inline void with_channels(Place place, u32 channels, u32 area, Channel channel, F f) {
    const u32 N = Wide<Stored>::COUNT;
    auto of = channel(place.channel);
    if (area - place.inside >= N) {
        for (u32 i = 0; i < N; i++) f(i, of);
        return;
    }
    for (u32 i = 0; i < N; i++) {
        f(i, of);
        u32 before = place.channel;
        place.go_on(channels, area);
        if (place.channel != before) of = channel(place.channel);
    }
}
