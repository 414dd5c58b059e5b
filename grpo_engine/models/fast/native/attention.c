/* Attention of one new token per row to its prompt, which its group shares, and to the row's earlier tokens.

   Keys and values are read in the order of memory. Each key head of each row is a separate task, so
   that nothing depends on the other rows or on the number of threads. */

#include <stdlib.h>

#include "numbers.h"

#define MOST_PARTS 16 /* parts of LANES entries in a head */
#define MOST_QUERIES 4 /* queries at once, whose sums stay in registers */

typedef struct {
    long rows, heads, shared, dim; /* B, Hkv, Hq / Hkv, D */
    long query_stride, key_stride, value_stride, bias_stride; /* entries from row to row */
    long capacity, length, before; /* columns of the buffers, those in use, and those of a prompt */
    float scale;
    const void *query, *key, *value; /* [B, Hq, D], [B, Hkv, D] */
    void *keys, *values; /* [B, Hkv, capacity, D]: the new token's go to column length - 1 */
    const void *bias; /* [B, capacity] */
    const void *prompt_keys, *prompt_values, *prompt_bias; /* [P, Hkv, before, D], [P, before] */
    const long *prompt_of_row; /* [B]; these four are read only if before > 0 */
    void *out; /* [B, Hq, D] */
} Call;

/* Scores of `many` queries at once, so that a key is read and widened only once; they are `width` apart.
   Queries are one array: GCC would unroll up to 16 parts of an array of arrays, whose size it knows. */
INLINED void score(const Lanes *query, int many, const void *keys, const void *bias, long count,
                   long parts, float *scores, long width, int half) {
    for (long t = 0; t < count; t++) {
        const void *key = past(keys, t * parts * LANES, half);
        Lanes products[MOST_QUERIES] = {0};
        for (long p = 0; p < parts; p++) {
            Lanes read = part(key, p, half);
            for (int n = 0; n < many; n++) products[n] += query[n * parts + p] * read;
        }
        for (int n = 0; n < many; n++) scores[n * width + t] = sum(products[n]) + get(bias, t, half);
    }
}

INLINED void mix(const float *weights, long width, int many, const void *values, long count, long parts,
                 Lanes *mixed, int half) {
    for (long t = 0; t < count; t++) {
        const void *value = past(values, t * parts * LANES, half);
        for (long p = 0; p < parts; p++) {
            Lanes read = part(value, p, half);
            for (int n = 0; n < many; n++) mixed[n * parts + p] += weights[n * width + t] * read;
        }
    }
}

INLINED void softmax(float *scores, long count) {
    float most = -INFINITY;
    int64_t units = 0; /* of 2^-30; a sum of integers depends neither on the order nor on masked keys */
    #pragma omp simd reduction(max : most)
    for (long t = 0; t < count; t++) most = scores[t] > most ? scores[t] : most;
    for (long t = 0; t < count; t++) {
        scores[t] = exponential(scores[t] - most);
        units += (int32_t)(scores[t] * 0x1p30f + 0.5f);
    }
    float total = (float)(units * 0x1p-30);
    for (long t = 0; t < count; t++) scores[t] /= total;
}

/* `many` query heads of one row and key head, from `first` on; `scores` has room for before + length each. */
INLINED void attend_queries(const Call *c, long row, long head, long first, int many, float *scores,
                            long parts, int half) {
    long dim = parts * LANES, before = c->before, length = c->length, width = before + length;
    long own = (row * c->heads + head) * c->capacity * dim, prompt = before ? c->prompt_of_row[row] : 0;
    long at_prompt = (prompt * c->heads + head) * before * dim;
    Lanes query[MOST_QUERIES * MOST_PARTS], mixed[MOST_QUERIES * MOST_PARTS];
    for (int n = 0; n < many; n++)
        for (long p = 0; p < parts; p++) {
            const void *from = past(c->query, row * c->query_stride + (first + n) * dim, half);
            query[n * parts + p] = part(from, p, half) * c->scale, mixed[n * parts + p] = (Lanes){0};
        }
    score(query, many, past(c->prompt_keys, at_prompt, half), past(c->prompt_bias, prompt * before, half),
          before, parts, scores, width, half);
    score(query, many, past(c->keys, own, half), past(c->bias, row * c->bias_stride, half), length, parts,
          scores + before, width, half);
    for (int n = 0; n < many; n++) softmax(scores + n * width, width);
    mix(scores, width, many, past(c->prompt_values, at_prompt, half), before, parts, mixed, half);
    mix(scores + before, width, many, past(c->values, own, half), length, parts, mixed, half);
    void *out = past(c->out, (row * c->heads * c->shared + first) * dim, half);
    for (int n = 0; n < many; n++) write_parts(past(out, n * dim, half), mixed + n * parts, parts, half);
}

INLINED void attend_head(const Call *c, long row, long head, float *scores, long parts, int half) {
    long dim = parts * LANES, size = dim * (half ? 2 : 4);
    long newest = ((row * c->heads + head) * c->capacity + c->length - 1) * dim;
    memcpy(past(c->keys, newest, half), past(c->key, row * c->key_stride + head * dim, half), size);
    memcpy(past(c->values, newest, half), past(c->value, row * c->value_stride + head * dim, half), size);
    long first = head * c->shared, end = first + c->shared;
    for (; first + MOST_QUERIES <= end; first += MOST_QUERIES)
        attend_queries(c, row, head, first, MOST_QUERIES, scores, parts, half);
    for (; first + 2 <= end; first += 2) attend_queries(c, row, head, first, 2, scores, parts, half);
    for (; first < end; first++) attend_queries(c, row, head, first, 1, scores, parts, half);
}

/* The compiler knows the usual sizes of a head, so it can keep such heads in registers. Each size has its own
   functions, because GCC takes a minute for one that contains them all. */
#define FOR_SIZE(name, parts) \
    INLINED void name(const Call *c, long row, long head, float *scores, int half) { \
        attend_head(c, row, head, scores, parts, half); \
    } \
    FOR_EACH_DTYPE(name, (const Call *c, long row, long head, float *scores), c, row, head, scores)

FOR_SIZE(attend_head_of_32, 2)
FOR_SIZE(attend_head_of_64, 4)
FOR_SIZE(attend_head_of_128, 8)
FOR_SIZE(attend_head_of_any, c->dim / LANES)

typedef void Task(const Call *c, long row, long head, float *scores);

static Task *task_for(long dim, int half) {
    switch (dim) {
    case 32: return half ? attend_head_of_32_half : attend_head_of_32_single;
    case 64: return half ? attend_head_of_64_half : attend_head_of_64_single;
    case 128: return half ? attend_head_of_128_half : attend_head_of_128_single;
    default: return half ? attend_head_of_any_half : attend_head_of_any_single;
    }
}

/* D: a multiple of 16 (bfloat16: of 32), at most 256. Returns a number other than 0 if there is no memory. */
int attend(const Call *c, int half, int threads) {
    long tasks = c->rows * c->heads, width = (c->before + c->length) * MOST_QUERIES;
    float *scores = malloc(sizeof(float) * width * threads);
    if (scores == NULL) return 1;
    Task *attend_task = task_for(c->dim, half);
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long share = 0; share < threads; share++)
        for (long task = share * tasks / threads; task < (share + 1) * tasks / threads; task++)
            attend_task(c, task / c->heads, task % c->heads, scores + share * width);
    free(scores);
    return 0;
}
