// Exponential and inverse for results that are rounded to halves: one instruction of a GPU each, which are the same on every GPU
// of one kind. The stand-in of the tests has bodies of its own (tests/shim/tensor.h). exact.cuh has the same words.

#ifndef STAND_IN
// 2^x within 2 ulp; subnormal results are zero.
__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x within 1 ulp; what is subnormal, or comes to be, is zero.
__device__ inline float quick_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// e^x of what is not above zero, or is NaN: within 2 ulp and what the argument's rounding makes, 2^-24 |x|; 0 below -87.3 or so.
__device__ inline float exponential_to_zero(float x) { return power_of_two(x * 1.44269504088896340736f); }

// 1 / x of a number from 1 to 2^126.
__device__ inline float inverse(float x) { return quick_inverse(x); }
