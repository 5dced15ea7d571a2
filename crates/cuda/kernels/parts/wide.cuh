// Numbers side by side, as floats: what a thread reads or writes at once.
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

template <u32 N>
struct Numbers {
    static constexpr u32 COUNT = N;
    float v[N];

    __device__ void read_wide(const float* from) {
        for (u32 q = 0; q < N / 4; q++) {
            Quad four = ((const Quad*)from)[q];
            for (u32 i = 0; i < 4; i++) v[4 * q + i] = __uint_as_float(four.words[i]);
        }
    }

    template <class Half>
    __device__ void read_wide(const Half* from) {
        for (u32 q = 0; q < N / 8; q++) {
            Quad eight = ((const Quad*)from)[q];
            for (u32 i = 0; i < 4; i++) Half::both(eight.words[i], v[8 * q + 2 * i], v[8 * q + 2 * i + 1]);
        }
    }

    __device__ void write_wide(float* to) const {
        for (u32 q = 0; q < N / 4; q++) {
            Quad four;
            for (u32 i = 0; i < 4; i++) four.words[i] = __float_as_uint(v[4 * q + i]);
            ((Quad*)to)[q] = four;
        }
    }

    template <class Half>
    __device__ void write_wide(Half* to) const {
        for (u32 q = 0; q < N / 8; q++) {
            Quad eight;
            for (u32 i = 0; i < 4; i++) eight.words[i] = Half::both(v[8 * q + 2 * i], v[8 * q + 2 * i + 1]);
            ((Quad*)to)[q] = eight;
        }
    }

    __device__ void add(const Numbers& other) {
        for (u32 i = 0; i < N; i++) v[i] = v[i] + other.v[i];
    }

    // Each as it is when it is stored.
    template <class T>
    __device__ void round_as(const T*) {
        for (u32 i = 0; i < N; i += 2) T::both(T::both(v[i], v[i + 1]), v[i], v[i + 1]);
    }
    __device__ void round_as(const float*) {}

    // The first `count` of those that begin at `from`; in place of the others stands `rest`.
    template <class T>
    __device__ void read(const T* from, u32 count, bool wide, float rest) {
        if (wide && count >= N) {
            read_wide(from);
        } else {
            for (u32 i = 0; i < N; i++) v[i] = i < count ? (float)from[i] : rest;
        }
    }

    // The same places of two lists, both on their way before one is there. They are `wide` together.
    template <class T>
    __device__ static void read_both(Numbers& a, const T* from_a, Numbers& b, const T* from_b, u32 count, bool wide) {
        if (wide && count >= N) {
            a.read_wide(from_a);
            b.read_wide(from_b);
        } else {
            a.read(from_a, count, false, 0.0f);
            b.read(from_b, count, false, 0.0f);
        }
    }

    template <class T>
    __device__ void write(T* to, u32 count, bool wide) const {
        if (wide && count >= N) {
            write_wide(to);
        } else {
            for (u32 i = 0; i < N; i++) {
                if (i < count) to[i] = v[i];
            }
        }
    }
};

typedef Numbers<8> Eight;

// As many of a list as 16 bytes hold: so what the threads of a warp ask for at once lies together.
template <class T>
using Wide = Numbers<16 / sizeof(T)>;

// f(first, count) for each `N` of `len` elements, the last of which may be fewer: a thread takes some, then the next of its own.
template <u32 N, class F>
__device__ inline void over(u64 len, F f) {
    for (u64 i = first_element(); N * i < len; i += next_element()) f(N * i, len - N * i < N ? (u32)(len - N * i) : N);
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
