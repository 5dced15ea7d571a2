// Eight numbers side by side, as floats: what a thread reads or writes at once.
//
// By 16 bytes at a time where they lie on 16 bytes, one by one where they do not or where there are fewer: the numbers are
// the same, and so is everything that is made of them. Does not know a kernel.

struct alignas(16) Quad {
    u32 words[4];
};

// Whether a list, and all that is a multiple of eight elements from its start, lies on 16 bytes.
template <class T>
__device__ inline bool lies_wide(const T* list) { return (u64)list % 16 == 0; }

// Whether all rows of a matrix do, which lie `pitch` apart.
template <class T>
__device__ inline bool rows_lie_wide(const T* rows, u32 pitch) {
    return lies_wide(rows) && (u64)pitch * sizeof(T) % 16 == 0;
}

struct Eight {
    float v[8];

    __device__ void read_wide(const float* from) {
        Quad low = ((const Quad*)from)[0], high = ((const Quad*)from)[1];
        for (u32 i = 0; i < 4; i++) {
            v[i] = __uint_as_float(low.words[i]);
            v[4 + i] = __uint_as_float(high.words[i]);
        }
    }

    template <class Half>
    __device__ void read_wide(const Half* from) {
        Quad all = *(const Quad*)from;
        for (u32 i = 0; i < 4; i++) Half::both(all.words[i], v[2 * i], v[2 * i + 1]);
    }

    __device__ void write_wide(float* to) const {
        Quad low, high;
        for (u32 i = 0; i < 4; i++) {
            low.words[i] = __float_as_uint(v[i]);
            high.words[i] = __float_as_uint(v[4 + i]);
        }
        ((Quad*)to)[0] = low;
        ((Quad*)to)[1] = high;
    }

    template <class Half>
    __device__ void write_wide(Half* to) const {
        Quad all;
        for (u32 i = 0; i < 4; i++) all.words[i] = Half::both(v[2 * i], v[2 * i + 1]);
        *(Quad*)to = all;
    }

    __device__ void add(const Eight& other) {
        for (u32 i = 0; i < 8; i++) v[i] = v[i] + other.v[i];
    }

    // Each as it is when it is stored.
    template <class T>
    __device__ void round_as(const T*) {
        for (u32 i = 0; i < 4; i++) T::both(T::both(v[2 * i], v[2 * i + 1]), v[2 * i], v[2 * i + 1]);
    }
    __device__ void round_as(const float*) {}

    // The first `count` of those that begin at `from`; in place of the others stands `rest`.
    template <class T>
    __device__ void read(const T* from, u32 count, bool wide, float rest) {
        if (wide && count >= 8) {
            read_wide(from);
        } else {
            for (u32 i = 0; i < 8; i++) v[i] = i < count ? (float)from[i] : rest;
        }
    }

    // The same places of two lists, both on their way before one is there. They are `wide` together.
    template <class T>
    __device__ static void read_both(Eight& a, const T* from_a, Eight& b, const T* from_b, u32 count, bool wide) {
        if (wide && count >= 8) {
            a.read_wide(from_a);
            b.read_wide(from_b);
        } else {
            a.read(from_a, count, false, 0.0f);
            b.read(from_b, count, false, 0.0f);
        }
    }

    template <class T>
    __device__ void write(T* to, u32 count, bool wide) const {
        if (wide && count >= 8) {
            write_wide(to);
        } else {
            for (u32 i = 0; i < 8; i++) {
                if (i < count) to[i] = v[i];
            }
        }
    }
};

// f(first, count) for each eight of `len` elements, the last of which may be fewer: a thread takes one, then the next of its own.
template <class F>
__device__ inline void over_eights(u64 len, F f) {
    for (u64 i = first_element(); 8 * i < len; i += next_element()) f(8 * i, len - 8 * i < 8 ? (u32)(len - 8 * i) : 8);
}

// Eight numbers as they lie in memory: of halves in half as many registers.
template <class T>
struct Packed {
    Quad quads[sizeof(T) / 2];

    __device__ static Packed of(const Eight& x) {
        Packed packed = {};
        x.write_wide((T*)packed.quads);
        return packed;
    }

    // As `Eight::read`; nothing waits for them here.
    __device__ static Packed read(const T* from, u32 count, bool wide, float rest) {
        if (wide && count >= 8) return *(const Packed*)from;
        Eight x = {};
        x.read(from, count, false, rest);
        return of(x);
    }

    __device__ Eight eight() const {
        Eight x = {};
        x.read_wide((const T*)quads);
        return x;
    }
};
