// What IEEE 754 says of float and double, whatever options a module is compiled with. CuPy has all modules compiled
// with -ftz=true, by which plain C++ takes a float below 2^-126 for zero; the host does not. And no product is fused
// with a sum. Tests on machines without a device put their own version in its place.
#pragma once

namespace exact {

__device__ __forceinline__ float add(float a, float b)
{
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

__device__ __forceinline__ double add(double a, double b)
{
    double sum;
    asm("add.rn.f64 %0, %1, %2;" : "=d"(sum) : "d"(a), "d"(b));
    return sum;
}

__device__ __forceinline__ float subtract(float a, float b)
{
    float difference;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));
    return difference;
}

__device__ __forceinline__ double subtract(double a, double b)
{
    double difference;
    asm("sub.rn.f64 %0, %1, %2;" : "=d"(difference) : "d"(a), "d"(b));
    return difference;
}

__device__ __forceinline__ float multiply(float a, float b)
{
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

__device__ __forceinline__ double multiply(double a, double b)
{
    double product;
    asm("mul.rn.f64 %0, %1, %2;" : "=d"(product) : "d"(a), "d"(b));
    return product;
}

__device__ __forceinline__ float divide(float a, float b)
{
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
}

__device__ __forceinline__ double divide(double a, double b)
{
    double quotient;
    asm("div.rn.f64 %0, %1, %2;" : "=d"(quotient) : "d"(a), "d"(b));
    return quotient;
}

__device__ __forceinline__ float square_root(float x)
{
    float root;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ __forceinline__ double square_root(double x)
{
    double root;
    asm("sqrt.rn.f64 %0, %1;" : "=d"(root) : "d"(x));
    return root;
}

// Also of a NaN, and of zero. Done by bits, compilers would see through it.
__device__ __forceinline__ float negate(float x)
{
    float negative;
    asm("neg.f32 %0, %1;" : "=f"(negative) : "f"(x));
    return negative;
}

__device__ __forceinline__ float absolute(float x)
{
    float positive;
    asm("abs.f32 %0, %1;" : "=f"(positive) : "f"(x));
    return positive;
}

// Comparisons: false where one of the two is NaN.
__device__ __forceinline__ bool less(float a, float b)
{
    u32 holds;
    asm("{ .reg .pred p; setp.lt.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(holds) : "f"(a), "f"(b));
    return holds != 0;
}

__device__ __forceinline__ bool less_equal(float a, float b)
{
    u32 holds;
    asm("{ .reg .pred p; setp.le.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(holds) : "f"(a), "f"(b));
    return holds != 0;
}

__device__ __forceinline__ bool equal(float a, float b)
{
    u32 holds;
    asm("{ .reg .pred p; setp.eq.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(holds) : "f"(a), "f"(b));
    return holds != 0;
}

__device__ __forceinline__ double widen(float x)
{
    double wide;
    asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
    return wide;
}

__device__ __forceinline__ float narrow(double x)
{
    float single;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(single) : "d"(x));
    return single;
}

__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ u32 bits_of(float x) { return __float_as_uint(x); }

__device__ __forceinline__ double double_of(u64 bits) { return __longlong_as_double(static_cast<long long>(bits)); }

__device__ __forceinline__ u64 bits_of(double x) { return static_cast<u64>(__double_as_longlong(x)); }

// What a division leaves, with the sign of ``a``; exact.
__device__ __forceinline__ double remainder_of(double a, double b) { return fmod(a, b); }

__device__ __forceinline__ double floor_of(double x) { return floor(x); }

}  // namespace exact
