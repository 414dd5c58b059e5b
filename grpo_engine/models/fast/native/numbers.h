/* Numbers of the compiled operations: rows are float32 or bfloat16 (`half`), everything between is float32.

   Boundary: C11 of GCC and Clang; nothing from torch or Python. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Compiled for several kinds of processors; the right one is chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINED static inline __attribute__((always_inline))

/* Defines name_half and name_single by an inlined name(…, half). */
#define FOR_EACH_DTYPE(name, parameters, ...) \
    FOR_EACH_PROCESSOR static void name##_half parameters { name(__VA_ARGS__, 1); } \
    FOR_EACH_PROCESSOR static void name##_single parameters { name(__VA_ARGS__, 0); }

typedef union {
    float number;
    uint32_t bits;
} Word;

INLINED float widened(uint16_t half) { return (Word){.bits = (uint32_t)half << 16}.number; }

/* Rounds to the nearest number, ties to even; a NaN from arithmetic stays one. */
INLINED uint16_t narrowed(float number) {
    uint32_t bits = (Word){.number = number}.bits;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINED float get(const void *from, long i, int half) {
    return half ? widened(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

INLINED void put(void *to, long i, float number, int half) {
    if (half) ((uint16_t *)to)[i] = narrowed(number);
    else ((float *)to)[i] = number;
}

INLINED void *past(const void *from, long entries, int half) {
    return (char *)from + entries * (half ? 2 : 4);
}

/* e^x of x <= 0 to a relative 2e-7, 0 below e^-87: 2^n e^r with |r| < 0.35, and e^r by Taylor's series. */
INLINED float exponential(float x) {
    int is_none = x < -87.0f;
    x = is_none ? 0 : x;
    float n = floorf(x * 1.44269504f + 0.5f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 1.0f / 2;
    return is_none ? 0 : (series * r * r + r + 1) * (Word){.bits = (uint32_t)((int32_t)n + 127) << 23}.number;
}

/* ---- sixteen at once ---- */

#define LANES 16
typedef float Lanes __attribute__((vector_size(64)));
typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes4 __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(64)));

/* Part p of a vector. In bfloat16, part 2i has the even entries of two parts and part 2i + 1 the odd ones, as
words hold them. So reading them takes one operation, and products of vectors do not change. */
INLINED Lanes part(const void *from, long p, int half) {
    Lanes made;
    Bits both;
    if (!half) return memcpy(&made, (const float *)from + p * LANES, sizeof made), made;
    memcpy(&both, (const uint16_t *)from + (p & ~1L) * LANES, sizeof both);
    return (Lanes)(p & 1 ? both & 0xffff0000 : both << 16);
}

INLINED Bits nearest(Lanes x) {
    Bits bits = (Bits)x;
    return bits + 0x7fff + (bits >> 16 & 1);
}

/* Writes the parts of a vector to where `part` would read them. */
INLINED void write_parts(void *to, const Lanes *x, long parts, int half) {
    if (!half) memcpy(to, x, parts * sizeof *x);
    else
        for (long p = 0; p < parts; p += 2) {
            Bits both = nearest(x[p]) >> 16 | (nearest(x[p + 1]) & 0xffff0000);
            memcpy((uint16_t *)to + p * LANES, &both, sizeof both);
        }
}

INLINED float sum(Lanes x) {
    Lanes8 y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
        + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    Lanes4 z = __builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7);
    z += __builtin_shufflevector(z, z, 2, 3, 0, 1);
    return z[0] + z[1];
}
