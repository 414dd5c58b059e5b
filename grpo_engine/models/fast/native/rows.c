/* A layer's operations on single rows: norms, rotary positions, SwiGLU, and their gradients.

   Rows are read `stride` entries apart and written side by side. */

#include "numbers.h"

int version(void) { return 3; } /* of all arguments; __init__.py checks it */

INLINED void norm(const void *restrict x, const float *restrict weight, void *restrict y, long width,
                  float epsilon, int half) {
    float squares = 0;
    #pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += get(x, i, half) * get(x, i, half);
    float inverse = 1 / sqrtf(squares / width + epsilon);
    for (long i = 0; i < width; i++) put(y, i, get(x, i, half) * inverse * weight[i], half);
}

FOR_EACH_DTYPE(norm, (const void *x, const float *weight, void *y, long width, float epsilon), x, weight, y,
               width, epsilon)

/* x [B, heads, W], weight [W] for each head, `weight_stride` apart, y [B, heads, W]. */
void rms_norm(const void *x, long stride, const float *weight, long weight_stride, void *y, long rows,
              long heads, long width, float epsilon, int half, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long task = 0; task < rows * heads; task++) {
        long row = task / heads, head = task % heads;
        (half ? norm_half : norm_single)(past(x, row * stride + head * width, half),
                                         weight + head * weight_stride, past(y, task * width, half), width,
                                         epsilon);
    }
}

INLINED void turn(const void *restrict x, const void *restrict cosine, const void *restrict sine,
                  void *restrict y, long dim, int half) {
    #pragma omp simd simdlen(16)
    for (long i = 0; i < dim / 2; i++) {
        long j = i + dim / 2;
        float low = get(x, i, half), high = get(x, j, half);
        put(y, i, low * get(cosine, i, half) + high * get(sine, i, half), half);
        put(y, j, high * get(cosine, j, half) + low * get(sine, j, half), half);
    }
}

FOR_EACH_DTYPE(turn, (const void *x, const void *cosine, const void *sine, void *y, long dim), x, cosine,
               sine, y, dim)

/* x [B, heads, D], cosine and sine [B, D] as `kernels.rotated` takes them, y [B, heads, D]. */
void rotate(const void *x, long stride, const void *cosine, const void *sine, void *y, long rows, long heads,
            long dim, int half, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long task = 0; task < rows * heads; task++) {
        long row = task / heads, head = task % heads;
        (half ? turn_half : turn_single)(past(x, row * stride + head * dim, half),
                                         past(cosine, row * dim, half), past(sine, row * dim, half),
                                         past(y, task * dim, half), dim);
    }
}

INLINED void gated(const void *restrict gate, const void *restrict up, void *restrict y, long width,
                   int half) {
    for (long i = 0; i < width; i++) {
        float x = get(gate, i, half), small = exponential(-fabsf(x));
        put(y, i, x * (x < 0 ? small : 1) / (1 + small) * get(up, i, half), half);
    }
}

FOR_EACH_DTYPE(gated, (const void *gate, const void *up, void *y, long width), gate, up, y, width)

/* silu(gate) · up: both [B, W], y [B, W]. */
void swiglu(const void *gate, const void *up, long stride, void *y, long rows, long width, int half,
            int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++)
        (half ? gated_half : gated_single)(past(gate, row * stride, half), past(up, row * stride, half),
                                           past(y, row * width, half), width);
}

/* i (g - x i² mean(g x)) with g = dy w and i the inverse root. */
INLINED void norm_back(const void *restrict x, const float *restrict weight, const void *restrict grad,
                       void *restrict dx, long width, float epsilon, int half) {
    float squares = 0, along = 0;
    #pragma omp simd reduction(+ : squares, along)
    for (long i = 0; i < width; i++) {
        squares += get(x, i, half) * get(x, i, half);
        along += get(x, i, half) * get(grad, i, half) * weight[i];
    }
    float inverse = 1 / sqrtf(squares / width + epsilon), share = along / width * inverse * inverse;
    for (long i = 0; i < width; i++)
        put(dx, i, inverse * (get(grad, i, half) * weight[i] - get(x, i, half) * share), half);
}

FOR_EACH_DTYPE(norm_back,
               (const void *x, const float *weight, const void *grad, void *dx, long width, float epsilon), x,
               weight, grad, dx, width, epsilon)

/* Gradient of x: x and grad [B, heads, W], weight as above, dx [B, heads, W]. */
void rms_norm_back(const void *x, long stride, const float *weight, long weight_stride, const void *grad,
                   long grad_stride, void *dx, long rows, long heads, long width, float epsilon, int half,
                   int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long task = 0; task < rows * heads; task++) {
        long row = task / heads, head = task % heads, at = head * width;
        (half ? norm_back_half : norm_back_single)(
            past(x, row * stride + at, half), weight + head * weight_stride,
            past(grad, row * grad_stride + at, half), past(dx, task * width, half), width, epsilon);
    }
}

INLINED void gated_back(const void *restrict gate, const void *restrict up, const void *restrict grad,
                        void *restrict dgate, void *restrict dup, long width, int half) {
    for (long i = 0; i < width; i++) {
        float x = get(gate, i, half), dy = get(grad, i, half), small = exponential(-fabsf(x));
        float sigmoid = (x < 0 ? small : 1) / (1 + small);
        put(dgate, i, dy * get(up, i, half) * sigmoid * (1 + x * (1 - sigmoid)), half);
        put(dup, i, dy * x * sigmoid, half);
    }
}

FOR_EACH_DTYPE(gated_back,
               (const void *gate, const void *up, const void *grad, void *dgate, void *dup, long width), gate,
               up, grad, dgate, dup, width)

/* Gradients of gate and up, both [B, W]. */
void swiglu_back(const void *gate, const void *up, long stride, const void *grad, long grad_stride,
                 void *dgate, void *dup, long rows, long width, int half, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < rows; row++)
        (half ? gated_back_half : gated_back_single)(
            past(gate, row * stride, half), past(up, row * stride, half), past(grad, row * grad_stride, half),
            past(dgate, row * width, half), past(dup, row * width, half), width);
}
