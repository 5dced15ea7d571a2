// Exponential, logarithm, hyperbolic tangent and normal distribution, term by term as the CPU device has them (crates/engine/src/cpu/math.rs),
// from operations that IEEE 754 rounds exactly. So they give the same bits on every GPU and on the CPU.

// e^x from -87.3 to 88.7, within 1 ulp or so. What comes of other numbers, or of NaN, is any number. Source: Cephes, expf.
__device__ inline float exponential_in_range(float x) {
    const float ROUND = 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits
    float t = fmaf(x, 1.44269504088896340736f, ROUND);
    float n = t - ROUND;
    float r = fmaf(n, -0.69314575f, x);
    r = fmaf(n, -1.4286068e-6f, r);
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    float y = fmaf(p * r, r, r) + 1.0f;
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(t) << 23));
}

// e^x; 0 below -87.3 and infinity above 88.7; NaN stays NaN, whose bits must not go the way of a number's.
__device__ inline float exponential(float x) {
    float scaled = exponential_in_range(x);
    float low = x < -87.3f ? 0.0f : scaled;
    return x <= 88.7f ? low : x + infinity();
}

// The same of what is not above zero, or is NaN.
__device__ inline float exponential_to_zero(float x) {
    float scaled = exponential_in_range(x);
    float low = x < -87.3f ? 0.0f : scaled;
    return x <= 0.0f ? low : x;
}

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
    float greater = 1.0f / (1.0f + e);
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
    float t = 1.0f / fmaf(z, 0.3275911f, 1.0f);
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
