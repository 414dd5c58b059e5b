/* Attention of one new token a row to its prompt, which its group shares, and to its own tokens before.

   Keys and values are read in the order in which they lie. Each key head of each row is a task of its own, so
   that nothing depends on the other rows or on the number of threads. */

#include <stdlib.h>

#include "numbers.h"

#define MOST_PARTS 16 /* of LANES in a head */

typedef struct {
    long rows, heads, shared, dim; /* B, Hkv, Hq / Hkv, D */
    long query_stride, key_stride, value_stride, bias_stride; /* entries from row to row */
    long capacity, length, before; /* columns of the buffers, of them in use, of a prompt */
    float scale;
    const void *query, *key, *value; /* [B, Hq, D], [B, Hkv, D] */
    void *keys, *values; /* [B, Hkv, capacity, D]: the new token's go to column length - 1 */
    const void *bias; /* [B, capacity] */
    const void *prompt_keys, *prompt_values, *prompt_bias; /* [P, Hkv, before, D], [P, before] */
    const long *prompt_of_row; /* [B]; these four only where before > 0 */
    void *out; /* [B, Hq, D] */
} Call;

INLINED void score(const Lanes *query, const void *keys, const void *bias, long count, long parts,
                   float *scores, int half) {
    for (long t = 0; t < count; t++)
        scores[t] = product(query, past(keys, t * parts * LANES, half), parts, half) + get(bias, t, half);
}

INLINED void mix(const float *weights, const void *values, long count, long parts, Lanes *mixed, int half) {
    for (long t = 0; t < count; t++) {
        const void *value = past(values, t * parts * LANES, half);
        for (long p = 0; p < parts; p++) mixed[p] += weights[t] * part(value, p, half);
    }
}

INLINED void softmax(float *scores, long count) {
    float most = -INFINITY, total = 0;
    #pragma omp simd reduction(max : most)
    for (long t = 0; t < count; t++) most = scores[t] > most ? scores[t] : most;
    #pragma omp simd reduction(+ : total)
    for (long t = 0; t < count; t++) total += scores[t] = exponential(scores[t] - most);
    for (long t = 0; t < count; t++) scores[t] /= total;
}

/* All query heads of one key head of one row; `scores` has room for before + length. */
INLINED void attend_head(const Call *c, long row, long head, float *scores, long parts, int half) {
    long dim = parts * LANES, size = dim * (half ? 2 : 4), before = c->before, length = c->length;
    long own = (row * c->heads + head) * c->capacity * dim, newest = own + (length - 1) * dim;
    long prompt = before ? c->prompt_of_row[row] : 0, at_prompt = (prompt * c->heads + head) * before * dim;
    memcpy(past(c->keys, newest, half), past(c->key, row * c->key_stride + head * dim, half), size);
    memcpy(past(c->values, newest, half), past(c->value, row * c->value_stride + head * dim, half), size);
    const void *keys = past(c->keys, own, half), *values = past(c->values, own, half);
    const void *prompt_bias = past(c->prompt_bias, prompt * before, half);
    for (long number = head * c->shared; number < (head + 1) * c->shared; number++) {
        const void *from = past(c->query, row * c->query_stride + number * dim, half);
        Lanes query[MOST_PARTS], mixed[MOST_PARTS];
        for (long p = 0; p < parts; p++) query[p] = part(from, p, half) * c->scale, mixed[p] = (Lanes){0};
        score(query, past(c->prompt_keys, at_prompt, half), prompt_bias, before, parts, scores, half);
        score(query, keys, past(c->bias, row * c->bias_stride, half), length, parts, scores + before, half);
        softmax(scores, before + length);
        mix(scores, past(c->prompt_values, at_prompt, half), before, parts, mixed, half);
        mix(scores + before, values, length, parts, mixed, half);
        write_parts(past(c->out, (row * c->heads * c->shared + number) * dim, half), mixed, parts, half);
    }
}

/* The usual sizes of a head are known to the compiler, which keeps them in registers. */
INLINED void attend_task(const Call *c, long row, long head, float *scores, int half) {
    switch (c->dim / LANES) {
    case 2: attend_head(c, row, head, scores, 2, half); break;
    case 4: attend_head(c, row, head, scores, 4, half); break;
    case 8: attend_head(c, row, head, scores, 8, half); break;
    default: attend_head(c, row, head, scores, c->dim / LANES, half);
    }
}

FOR_EACH_DTYPE(attend_task, (const Call *c, long row, long head, float *scores), c, row, head, scores)

/* D a multiple of 16, in bfloat16 of 32, and at most 256. Not 0 where there is no memory. */
int attend(const Call *c, int half, int threads) {
    long tasks = c->rows * c->heads, width = c->before + c->length;
    float *scores = malloc(sizeof(float) * width * threads);
    if (scores == NULL) return 1;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long share = 0; share < threads; share++)
        for (long task = share * tasks / threads; task < (share + 1) * tasks / threads; task++)
            (half ? attend_task_half : attend_task_single)(c, task / c->heads, task % c->heads,
                                                           scores + share * width);
    free(scores);
    return 0;
}
