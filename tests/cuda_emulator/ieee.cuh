// Stands in for compute/device/ieee.cuh where kernels run on the emulated device: the same functions.

namespace exact {

inline float add(float a, float b) { return a + b; }
inline double add(double a, double b) { return a + b; }
inline float subtract(float a, float b) { return a - b; }
inline double subtract(double a, double b) { return a - b; }
inline float multiply(float a, float b) { return a * b; }
inline double multiply(double a, double b) { return a * b; }
inline float divide(float a, float b) { return a / b; }
inline double divide(double a, double b) { return a / b; }
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline double square_root(double x) { return __builtin_sqrt(x); }
inline float negate(float x) { return -x; }
inline float absolute(float x) { return __builtin_fabsf(x); }
inline bool less(float a, float b) { return a < b; }
inline bool less_equal(float a, float b) { return a <= b; }
inline bool equal(float a, float b) { return a == b; }
inline double widen(float x) { return x; }
inline float narrow(double x) { return static_cast<float>(x); }
inline float float_of(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
inline u32 bits_of(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
inline double double_of(u64 bits) { double x; memcpy(&x, &bits, 8); return x; }
inline u64 bits_of(double x) { u64 bits; memcpy(&bits, &x, 8); return bits; }
inline double remainder_of(double a, double b) { return __builtin_fmod(a, b); }
inline double floor_of(double x) { return __builtin_floor(x); }

}  // namespace exact
