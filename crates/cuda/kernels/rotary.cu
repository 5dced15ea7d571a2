// rotary: packed queries, keys and values x [rows, heads + 2 kv_heads, head] to y [rows, 3, heads, head]: queries and keys
// turned by the angles of their places, keys and values there for each head of their group.
// rotary_gradient: dx of it.
//
// The elements i and i + head / 2 of a head are a point of plane i, which is turned by its place times its speed: of
// f = rate^i and s = slope f + shift, from 0 to 1, f (slowed + s (1 - slowed)). Row r has the place `first + r % time`.
// What is f64 is given by its bits.
//
// Launch: any grid, 256 threads; a loop over the planes of all rows. A thread finds the cosine and the sine of a plane once,
// for all heads. Order: the gradients of a group's heads are added in order, then turned; in f32 with the CPU's bits.
// Does not know attention.

// Cosine and sine, term by term as `cos_sin` of the CPU device (crates/engine/src/cpu/math.rs). Source: Cephes, cosf, sinf.
struct Angle {
    float cosine, sine;

    __device__ explicit Angle(double angle) {
        // Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits.
        const double ROUND = 6755399441055744.0;
        double t = fma(angle, 0.636619772367581343075535053490057448, ROUND);
        double quarters = t - ROUND;
        double rest = fma(quarters, -1.57079632679489661923132169163975144, angle);
        // What pi / 2 is more than its f64.
        float r = (float)fma(quarters, -6.123233995736766e-17, rest);
        float square = r * r;
        float s = fmaf(-1.9515296e-4f, square, 8.332161e-3f);
        s = fmaf(s, square, -1.6666655e-1f);
        s = fmaf(s * square, r, r);
        float c = fmaf(2.4433157e-5f, square, -1.3887316e-3f);
        c = fmaf(c, square, 4.1666646e-2f);
        c = fmaf(c * square, square, fmaf(-0.5f, square, 1.0f));
        u64 quarter = (u64)__double_as_longlong(t);
        cosine = quarter & 1 ? s : c;
        sine = quarter & 1 ? c : s;
        // Of the four quarters the cosine is below zero in the second and third, the sine in the third and fourth.
        if ((quarter + 1) & 2) cosine = -cosine;
        if (quarter & 2) sine = -sine;
    }
};

// How far planes turn a place.
struct Speeds {
    double rate, slowed, slope, shift;

    __device__ Speeds(u64 rate, u64 slowed, u64 slope, u64 shift)
        : rate(of_bits(rate)), slowed(of_bits(slowed)), slope(of_bits(slope)), shift(of_bits(shift)) {}

    __device__ static double of_bits(u64 bits) { return __longlong_as_double((long long)bits); }

    // A power of the rate, by its squares, and slowed down.
    __device__ double of(u32 plane) const {
        double speed = 1.0, square = rate;
        for (u32 rest = plane; rest != 0; rest >>= 1) {
            if (rest & 1) speed = speed * square;
            square = square * square;
        }
        double fast = slope * speed + shift;
        fast = fast < 0.0 ? 0.0 : fast > 1.0 ? 1.0 : fast;
        return speed * (slowed + fast * (1.0 - slowed));
    }
};

// A point of a plane, whose coordinates lie half a head apart.
struct Point {
    float a, b;

    __device__ static Point read(const Stored* from, u32 planes) { return {from[0], from[planes]}; }

    __device__ void write(Stored* to, u32 planes) const {
        to[0] = a;
        to[planes] = b;
    }

    __device__ void add(const Point& other) {
        a = a + other.a;
        b = b + other.b;
    }

    __device__ Point turned(const Angle& by) const {
        return {fmaf(a, by.cosine, -(b * by.sine)), fmaf(b, by.cosine, a * by.sine)};
    }

    __device__ Point turned_back(const Angle& by) const {
        return {fmaf(a, by.cosine, b * by.sine), fmaf(b, by.cosine, -(a * by.sine))};
    }
};

// The heads of a row of x: those of queries, then of keys, then of values.
struct Heads {
    u32 queries, keys, planes;

    __device__ u32 all() const { return queries + 2 * keys; }
    __device__ bool turns(u32 head) const { return head < queries + keys; }
    // How often one is there in y, and from which head on.
    __device__ u32 copies(u32 head) const { return head < queries ? 1 : queries / keys; }
    __device__ u32 spread(u32 head) const { return head < queries ? head : queries + (head - queries) * (queries / keys); }
    // Where a plane of a head lies, of those that begin there.
    __device__ u64 at(u32 head) const { return (u64)head * 2 * planes; }
};

// Heads whose points are on their way before one of them is there.
const u32 TOGETHER = 4;

// f(row, plane, angle) for each plane of all rows.
template <class F>
__device__ inline void over_planes(u64 points, u32 planes, u32 time, u32 first, const Speeds& speeds, F f) {
    for (u64 i = first_element(); i < points; i += next_element()) {
        u64 row = i / planes;
        u32 plane = (u32)(i % planes), place = first + (u32)(row % time);
        f(row, plane, Angle((double)place * speeds.of(plane)));
    }
}

extern "C" __global__ void __launch_bounds__(256) NAME(rotary_, )(
    const Stored* x, Stored* y, u64 points, u32 time, u32 first, u32 queries, u32 keys, u32 planes,
    u64 rate, u64 slowed, u64 slope, u64 shift) {
    Heads heads = {queries, keys, planes};
    Speeds speeds(rate, slowed, slope, shift);
    over_planes(points, planes, time, first, speeds, [&](u64 row, u32 plane, const Angle& angle) {
        const Stored* from = x + row * heads.at(heads.all()) + plane;
        Stored* to = y + row * heads.at(3 * queries) + plane;
        for (u32 head = 0; head < heads.all(); head += TOGETHER) {
            Point some[TOGETHER] = {};
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) {
                if (head + i < heads.all()) some[i] = Point::read(from + heads.at(head + i), planes);
            }
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) {
                u32 own = head + i;
                if (own >= heads.all()) continue;
                Point point = heads.turns(own) ? some[i].turned(angle) : some[i];
                u32 end = heads.spread(own) + heads.copies(own);
                for (u32 at = heads.spread(own); at < end; at++) point.write(to + heads.at(at), planes);
            }
        }
    });
}

extern "C" __global__ void __launch_bounds__(256) NAME(rotary_gradient_, )(
    const Stored* dy, Stored* dx, u64 points, u32 time, u32 first, u32 queries, u32 keys, u32 planes,
    u64 rate, u64 slowed, u64 slope, u64 shift) {
    Heads heads = {queries, keys, planes};
    Speeds speeds(rate, slowed, slope, shift);
    over_planes(points, planes, time, first, speeds, [&](u64 row, u32 plane, const Angle& angle) {
        const Stored* from = dy + row * heads.at(3 * queries) + plane;
        Stored* to = dx + row * heads.at(heads.all()) + plane;
        for (u32 head = 0; head < heads.all(); head += TOGETHER) {
            Point sums[TOGETHER] = {};
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) {
                if (head + i < heads.all()) sums[i] = Point::read(from + heads.at(heads.spread(head + i)), planes);
            }
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) {
                u32 own = head + i;
                if (own >= heads.all()) continue;
                u32 end = heads.spread(own) + heads.copies(own);
                for (u32 at = heads.spread(own) + 1; at < end; at++) {
                    sums[i].add(Point::read(from + heads.at(at), planes));
                }
                Point point = heads.turns(own) ? sums[i].turned_back(angle) : sums[i];
                point.write(to + heads.at(own), planes);
            }
        }
    });
}
