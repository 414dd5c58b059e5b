/* Operations on each row's logits: draw its token, or compute a token's log-probability and its slope.

   Sums over a vocabulary are in float32 within a block and in float64 over the blocks. */

#include <stdlib.h>

#include "numbers.h"

#define BLOCK 128 /* tokens in a block; only one block is searched token by token */

INLINED float largest(const void *x, long vocab, int half) {
    float most = -INFINITY;
    #pragma omp simd reduction(max : most)
    for (long v = 0; v < vocab; v++) most = get(x, v, half) > most ? get(x, v, half) : most;
    return most;
}

/* shares[v] = e^((x[v] - most) / temperature); their sums by block, and the sum of all. */
INLINED double shares_of(const void *x, long vocab, float most, float temperature, float *shares,
                         float *blocks, int half) {
    double total = 0;
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

/* The first index at which the sum, starting from `*before`, exceeds the target, or the last one that adds to
it. `*before` becomes the sum before that index. */
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
    double total = shares_of(x, vocab, largest(x, vocab, half), temperature, shares, blocks, half);
    double target = uniform * total, before = 0;
    long first = first_beyond(blocks, (vocab + BLOCK - 1) / BLOCK, target, &before) * BLOCK;
    long count = vocab - first < BLOCK ? vocab - first : BLOCK;
    long token = first + first_beyond(shares + first, count, target, &before);
    *drawn = (Drawn){token, logf((float)(shares[token] / total))};
}

FOR_EACH_DTYPE(draw_row,
               (const void *x, long vocab, float uniform, float temperature, float *room, Drawn *drawn), x,
               vocab, uniform, temperature, room, drawn)

/* Logits [B, V] and a uniform number each -> tokens, log-probabilities [B]. Not 0 if there is no memory. */
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

#define LEAST (-1e4f) /* replaces minus infinity in an entropy, because 0 times infinity is not a number */

/* x becomes p - 1{target}, rounded once: the slope of -log p by the logits, times the temperature. */
INLINED void slope_row(void *x, long vocab, long target, float temperature, float *room, float *logprob,
                       float *entropy, int half) {
    float *shares = room, *blocks = room + vocab;
    float most = largest(x, vocab, half), chosen = get(x, target, half);
    double total = shares_of(x, vocab, most, temperature, shares, blocks, half);
    float log_total = (float)log(total), inverse = (float)(1 / total), surprise = 0;
    #pragma omp simd reduction(+ : surprise)
    for (long v = 0; v < vocab; v++) {
        float logit = (get(x, v, half) - most) / temperature;
        surprise += shares[v] * (logit > LEAST ? logit : LEAST);
        put(x, v, shares[v] * inverse, half);
    }
    put(x, target, shares[target] * inverse - 1, half);
    *logprob = (chosen - most) / temperature - log_total;
    *entropy = log_total - surprise * inverse;
}

FOR_EACH_DTYPE(slope_row,
               (void *x, long vocab, long target, float temperature, float *room, float *logprob,
                float *entropy),
               x, vocab, target, temperature, room, logprob, entropy)

/* Logits [N, V], changed in place, and targets [N] -> log-probabilities and entropies [N]. */
int logprobs(void *x, const long *targets, float temperature, float *chosen, float *entropies, long rows,
             long vocab, int half, int threads) {
    long each = vocab + (vocab + BLOCK - 1) / BLOCK;
    float *room = malloc(sizeof(float) * each * threads);
    if (room == NULL) return 1;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long share = 0; share < threads; share++)
        for (long row = share * rows / threads; row < (share + 1) * rows / threads; row++)
            (half ? slope_row_half : slope_row_single)(past(x, row * vocab, half), vocab, targets[row],
                                                       temperature, room + share * each, chosen + row,
                                                       entropies + row);
    free(room);
    return 0;
}
