/* What a step computes for each row by itself: norms, rotary positions, SwiGLU, and the draw of its token.

   Rows are `stride` entries apart where they are read, side by side where they are written. */

#include <stdlib.h>

#include "numbers.h"

int version(void) { return 1; } /* of all arguments; __init__.py asks for it */

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

/* x [B, heads, W], weight [heads, W], y [B, heads, W]. */
void rms_norm(const void *x, long stride, const float *weight, void *y, long rows, long heads, long width,
              float epsilon, int half, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long task = 0; task < rows * heads; task++) {
        long row = task / heads, head = task % heads;
        (half ? norm_half : norm_single)(past(x, row * stride + head * width, half), weight + head * width,
                                         past(y, task * width, half), width, epsilon);
    }
}

INLINED void turn(const void *restrict x, const void *restrict cosine, const void *restrict sine,
                  void *restrict y, long dim, int half) {
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

#define BLOCK 128 /* tokens whose shares are summed together: only one block is searched token by token */

/* shares[v] = e^((x[v] - max x) / temperature); their sums by block, and the sum of all. */
INLINED double shares_of(const void *x, long vocab, float temperature, float *shares, float *blocks,
                         int half) {
    float most = -INFINITY;
    double total = 0;
    #pragma omp simd reduction(max : most)
    for (long v = 0; v < vocab; v++) most = get(x, v, half) > most ? get(x, v, half) : most;
    for (long first = 0, block = 0; first < vocab; first += BLOCK, block++) {
        long last = first + BLOCK < vocab ? first + BLOCK : vocab;
        float part = 0;
        #pragma omp simd reduction(+ : part)
        for (long v = first; v < last; v++)
            part += shares[v] = exponential((get(x, v, half) - most) / temperature);
        blocks[block] = part;
        total += part;
    }
    return total;
}

/* Where the sum from `*before` on first exceeds the target, or the last that adds to it; `*before` becomes
   the sum until there. */
INLINED long first_beyond(const float *parts, long count, double target, double *before) {
    double sum = *before;
    long found = 0;
    for (long i = 0; i < count && sum <= target; i++)
        if (parts[i] > 0) found = i, *before = sum, sum += parts[i];
    return found;
}

typedef struct {
    long token;
    float logprob;
} Drawn;

/* The first token whose cumulative share exceeds uniform · total. */
INLINED void draw_row(const void *x, long vocab, float uniform, float temperature, float *room,
                      Drawn *drawn, int half) {
    float *shares = room, *blocks = room + vocab;
    double total = shares_of(x, vocab, temperature, shares, blocks, half), target = uniform * total;
    double before = 0;
    long first = first_beyond(blocks, (vocab + BLOCK - 1) / BLOCK, target, &before) * BLOCK;
    long count = vocab - first < BLOCK ? vocab - first : BLOCK;
    long token = first + first_beyond(shares + first, count, target, &before);
    *drawn = (Drawn){token, logf((float)(shares[token] / total))};
}

FOR_EACH_DTYPE(draw_row,
               (const void *x, long vocab, float uniform, float temperature, float *room, Drawn *drawn), x,
               vocab, uniform, temperature, room, drawn)

/* Logits [B, V] and a uniform number each -> tokens, log-probabilities [B]. Not 0 without memory. */
int draw(const void *x, long stride, const float *uniforms, float temperature, long *tokens, float *logprobs,
         long rows, long vocab, int half, int threads) {
    long each = vocab + (vocab + BLOCK - 1) / BLOCK;
    float *room = malloc(sizeof(float) * each * threads);
    if (room == NULL) return 1;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long share = 0; share < threads; share++)
        for (long row = share * rows / threads; row < (share + 1) * rows / threads; row++) {
            Drawn drawn;
            (half ? draw_row_half : draw_row_single)(past(x, row * stride, half), vocab, uniforms[row],
                                                     temperature, room + share * each, &drawn);
            tokens[row] = drawn.token, logprobs[row] = drawn.logprob;
        }
    free(room);
    return 0;
}
