// What the two functions of a path program are printed upon (functor.py): numbers as Numba computes with them on the
// host, to the bit but for a NaN's payload, and values as the halves of a program's words.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#include "ieee.cuh"

namespace exact {

// -- whole numbers: sums, differences and products of 64 bits, the others wrapping ------------------------------

__device__ __forceinline__ u64 add(u64 a, u64 b) { return a + b; }
__device__ __forceinline__ i64 add(i64 a, i64 b) { return i64(u64(a) + u64(b)); }
__device__ __forceinline__ u64 subtract(u64 a, u64 b) { return a - b; }
__device__ __forceinline__ i64 subtract(i64 a, i64 b) { return i64(u64(a) - u64(b)); }
__device__ __forceinline__ u64 multiply(u64 a, u64 b) { return a * b; }
__device__ __forceinline__ i64 multiply(i64 a, i64 b) { return i64(u64(a) * u64(b)); }

// Whether the quotient of two numbers is none: Numba then gives zero, as here.
__device__ __forceinline__ bool has_no_quotient(i64 a, i64 b) { return b == 0 || (b == -1 && a == i64(1ull << 63)); }

// Division that rounds down, as Python's; the remainder has the sign of the divisor.
__device__ __forceinline__ u64 floor_divide(u64 a, u64 b) { return b == 0 ? 0 : a / b; }
__device__ __forceinline__ u64 modulo(u64 a, u64 b) { return b == 0 ? 0 : a % b; }
__device__ __forceinline__ i64 floor_divide(i64 a, i64 b)
{
    if (has_no_quotient(a, b)) return 0;
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}
__device__ __forceinline__ i64 modulo(i64 a, i64 b)
{
    if (has_no_quotient(a, b)) return 0;
    return a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
}

__device__ __forceinline__ i64 negate(i64 x) { return i64(0 - u64(x)); }
__device__ __forceinline__ i64 absolute(i64 x) { return x < 0 ? negate(x) : x; }

// -- floats -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ bool less(double a, double b) { return a < b; }
__device__ __forceinline__ bool less_equal(double a, double b) { return a <= b; }
__device__ __forceinline__ bool equal(double a, double b) { return a == b; }

__device__ __forceinline__ double negate(double x) { return double_of(bits_of(x) ^ 1ull << 63); }
__device__ __forceinline__ double absolute(double x) { return double_of(bits_of(x) & ~(1ull << 63)); }

__device__ __forceinline__ bool is_nan(float x) { return bits_of(absolute(x)) > 0x7f800000u; }
__device__ __forceinline__ bool is_nan(double x) { return bits_of(absolute(x)) > 0x7ff0000000000000ull; }
__device__ __forceinline__ bool is_inf(float x) { return bits_of(absolute(x)) == 0x7f800000u; }
__device__ __forceinline__ bool is_inf(double x) { return bits_of(absolute(x)) == 0x7ff0000000000000ull; }

// As Python's // and %, in double or float (Numba's ``real_divmod``): where ``b`` is zero, as / and fmod.
__device__ __forceinline__ double remainder_of(float a, float b) { return remainder_of(widen(a), widen(b)); }
__device__ __forceinline__ float like(float, double x) { return narrow(x); }
__device__ __forceinline__ double like(double, double x) { return x; }
__device__ __forceinline__ double wide(float x) { return widen(x); }
__device__ __forceinline__ double wide(double x) { return x; }

template <class Real> __device__ __forceinline__ Real real_modulo(Real a, Real b)
{
    const Real zero = like(a, 0.0), rest = like(a, remainder_of(a, b));
    if (equal(b, zero)) return rest;
    if (equal(rest, zero)) return less(b, zero) ? negate(zero) : zero;
    return less(b, zero) == less(rest, zero) ? rest : add(rest, b);
}

template <class Real> __device__ __forceinline__ Real real_floor_divide(Real a, Real b)
{
    const Real zero = like(a, 0.0), one = like(a, 1.0), rest = like(a, remainder_of(a, b));
    if (equal(b, zero)) return divide(a, b);
    Real quotient = divide(subtract(a, rest), b);
    if (!equal(rest, zero) && less(b, zero) != less(rest, zero)) quotient = subtract(quotient, one);
    if (is_nan(quotient)) return quotient;
    if (equal(quotient, zero)) return divide(multiply(multiply(quotient, quotient), a), b);
    const Real below = like(a, floor_of(wide(quotient)));
    return less(like(a, 0.5), subtract(quotient, below)) ? add(below, one) : below;
}

__device__ __forceinline__ float modulo(float a, float b) { return real_modulo(a, b); }
__device__ __forceinline__ double modulo(double a, double b) { return real_modulo(a, b); }
__device__ __forceinline__ float floor_divide(float a, float b) { return real_floor_divide(a, b); }
__device__ __forceinline__ double floor_divide(double a, double b) { return real_floor_divide(a, b); }

// A float without its fraction, where the type of whole numbers holds it; elsewhere no result is defined, on the
// host neither.
template <class Whole> __device__ __forceinline__ Whole whole(double x)
{
    if (x >= 9223372036854775808.0) return x < 18446744073709551616.0 ? Whole(u64(x)) : Whole(1ull << 63);
    return x >= -9223372036854775808.0 ? Whole(i64(x)) : Whole(1ull << 63);
}

template <class Whole> __device__ __forceinline__ Whole whole(float x) { return whole<Whole>(widen(x)); }

}  // namespace exact

// -- values in words --------------------------------------------------------------------------------------------

constexpr u32 NOTHING = 0xffffffffu;  // the bits of no value; as an offer: none

// The bits of a value. A NaN is no offer, and minus zero is zero, as in ``encode_float`` (paths/mend.py).
__device__ __forceinline__ u32 encode(u32 value) { return value; }
__device__ __forceinline__ u32 encode(float value)
{
    if (exact::is_nan(value)) return NOTHING;
    const u32 bits = exact::bits_of(value);
    return bits == 1u << 31 ? 0 : bits;
}
