// dropout: y = x * keep where the element's number is kept, else 0.
//
// A thread draws a block of Philox 4x32-10 for four elements, with the counters of dtrain_types::Key: the block's index,
// then the three words of the call site. An element is dropped when its word without the low 8 bits is below `bar`, the
// rate times 2^24 rounded up. So it drops what the CPU drops.
//
// Launch: any grid, 256 threads; a loop over elements, 16 bytes at a time. Order: none, every element stands alone.
// Does not know seeds or steps.

__device__ inline void philox(u32 (&counter)[4], u32 key0, u32 key1) {
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)counter[0] * 0xD2511F53u;
        u64 p1 = (u64)counter[2] * 0xCD9E8D57u;
        counter[0] = (u32)(p1 >> 32) ^ counter[1] ^ key0;
        counter[1] = (u32)p1;
        counter[2] = (u32)(p0 >> 32) ^ counter[3] ^ key1;
        counter[3] = (u32)p0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(dropout_, )(
    const Stored* x, Stored* y, u64 len, u32 key0, u32 key1, u32 place0, u32 place1, u32 place2, u32 bar, float keep) {
    bool wide = lies_wide(x) && lies_wide(y);
    const u32 N = Wide<Stored>::COUNT;
    over<N>(len, [&](u64 first, u32 count) {
        Wide<Stored> some;
        some.read(x + first, count, wide, 0.0f);
        for (u32 block = 0; block < N / 4; block++) {
            u32 words[4] = {(u32)(first / 4) + block, place0, place1, place2};
            philox(words, key0, key1);
            for (u32 k = 0; k < 4; k++) {
                float& v = some.v[block * 4 + k];
                v = words[k] >> 8 < bar ? 0.0f : v * keep;
            }
        }
        some.write(y + first, count, wide);
    });
}
