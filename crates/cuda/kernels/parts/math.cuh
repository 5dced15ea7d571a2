// Logarithm, hyperbolic tangent, normal distribution and sigmoid, term by term as the CPU device has them
// (crates/engine/src/cpu/math.rs). What they are made of is rounded exactly, as IEEE 754 says, but for exponentials and
// inverses, which are those of exact.cuh or of quick.cuh: behind the first they give the same bits on every GPU and on the
// CPU.

// ln x of a positive finite number in f64, within 1e-14 relative or so.
__device__ inline double logarithm(double x) {
    u64 bits = (u64)__double_as_longlong(x);
    int exponent = (int)((bits >> 52) & 0x7ff) - 1023;
    double mantissa = __longlong_as_double((long long)((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull));
    if (mantissa > 1.41421356237309504880) {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172: eleven terms reach 1e-16.
    double s = (mantissa - 1.0) / (mantissa + 1.0);
    double s2 = s * s;
    double series = 0.0;
    for (int i = 10; i >= 0; i--) series = series * s2 + 1.0 / (double)(2 * i + 1);
    return 2.0 * s * series + (double)exponent * 0.693147180559945309417;
}

// s = (1 + tanh u) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3), with 1 - s and 2 u'.
__device__ inline float half_of_tanh(float x, float& rest, float& twice_slope) {
    const float CUBIC = 0.044715f;
    const float TWICE = 1.5957692f;
    float square = x * x;
    float twice_u = TWICE * x * fmaf(square, CUBIC, 1.0f);
    float e = exponential_to_zero(-fabsf(twice_u));
    float greater = inverse(1.0f + e);
    float less = e * greater;
    twice_slope = TWICE * fmaf(square, 3.0f * CUBIC, 1.0f);
    rest = twice_u < 0.0f ? greater : less;
    return twice_u < 0.0f ? less : greater;
}

// The normal distribution and its density; see `normal` of the CPU device for the fit. Source: Abramowitz and Stegun
// 7.1.26 with a polynomial of degree 7.
__device__ inline float normal(float x, float& density) {
    float z = fabsf(x) * 0.707106781186547524400844362104849039f;
    // e^(-x^2/2), with what the square loses added back, for the tail's sake.
    float h = -0.5f * x;
    float square = h * x;
    float lost = fmaf(h, x, -square);
    float e = exponential_to_zero(square);
    e = e > 0.0f ? fmaf(lost, e, e) : e;
    float t = inverse(fmaf(z, 0.3275911f, 1.0f));
    float p = -0.14434367f;
    p = fmaf(p, t, 0.5103817f);
    p = fmaf(p, t, -0.4301599f);
    p = fmaf(p, t, 0.4763607f);
    p = fmaf(p, t, 0.012647813f);
    p = fmaf(p, t, 0.20998192f);
    p = fmaf(p, t, 0.18002899f);
    p = fmaf(p, t, 0.1851024f);
    float tail = 0.5f * (p * t) * e;
    density = e * 0.3989423f;
    return x < 0.0f ? tail : 1.0f - tail;
}

__device__ inline float exact_gelu(float x) {
    float density;
    return x * normal(x, density);
}

__device__ inline float tanh_gelu(float x) {
    float rest, twice_slope;
    return x * half_of_tanh(x, rest, twice_slope);
}

// What `exact_gelu` and `tanh_gelu` rise by.
__device__ inline float slope_of_gelu(float x) {
    float density;
    float distribution = normal(x, density);
    return fmaf(x, density, distribution);
}

__device__ inline float slope_of_tanh_gelu(float x) {
    float rest, twice_slope;
    float s = half_of_tanh(x, rest, twice_slope);
    float bend = s * rest;
    float slope = fmaf(x * bend, twice_slope, s);
    // Where it is flat, its slope may be beyond the range.
    return bend == 0.0f ? s : slope;
}

// 1 / (1 + e^-x), by the exponential that is never great.
__device__ inline float sigmoid(float x) {
    float e = exponential_to_zero(-fabsf(x));
    float greater = inverse(1.0f + e);
    return x < 0.0f ? e * greater : greater;
}
