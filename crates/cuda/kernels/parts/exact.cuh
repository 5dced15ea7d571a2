// Exponential and inverse for results in f32: operations that IEEE 754 rounds exactly, term by term as the CPU device has them
// (crates/engine/src/cpu/math.rs). So they give the same bits on every GPU and on the CPU. quick.cuh has the same words.

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

// 1 / x.
__device__ inline float inverse(float x) { return 1.0f / x; }
