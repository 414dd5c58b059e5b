/* The input of a linear layer with an adapter: [x | x Aᵀ], of which one product with [W | B] makes the output.

   Each sum goes over a row's entries in order, so nothing depends on the other rows or on the number of
   threads. */

#include <stdlib.h>

#include "numbers.h"

#define TILE 4 /* rows at once, whose sums stay in registers */

typedef struct {
    long rows, width, rank; /* B, I, r */
    long stride; /* entries of x from row to row */
    const void *x; /* [B, I] */
    const float *down; /* Aᵀ [I, r rounded up to LANES] */
    void *out; /* [B, I + r] */
} Append;

/* x Aᵀ of `many` rows, whose entries are also in `wide` [many, I]. */
INLINED void append_low(const Append *c, const float *wide, void *out, int many, int half) {
    long columns = (c->rank + LANES - 1) / LANES * LANES;
    for (long first = 0; first < c->rank; first += LANES) {
        long end = c->rank - first < LANES ? c->rank - first : LANES;
        Lanes sums[TILE] = {0};
        for (long i = 0; i < c->width; i++) {
            Lanes weights;
            memcpy(&weights, c->down + i * columns + first, sizeof weights);
            for (int n = 0; n < many; n++) sums[n] += wide[n * c->width + i] * weights;
        }
        for (int n = 0; n < many; n++)
            for (long lane = 0; lane < end; lane++)
                put(out, n * (c->width + c->rank) + c->width + first + lane, sums[n][lane], half);
    }
}

INLINED void append_tile(const Append *c, long row, float *wide, int half) {
    long many = c->rows - row < TILE ? c->rows - row : TILE, length = c->width + c->rank;
    void *out = past(c->out, row * length, half);
    for (long n = 0; n < many; n++) {
        const void *x = past(c->x, (row + n) * c->stride, half);
        memcpy(past(out, n * length, half), x, c->width * (half ? 2 : 4));
        for (long i = 0; i < c->width; i++) wide[n * c->width + i] = get(x, i, half);
    }
    if (many == TILE) append_low(c, wide, out, TILE, half);
    else for (long n = 0; n < many; n++)
        append_low(c, wide + n * c->width, past(out, n * length, half), 1, half);
}

FOR_EACH_DTYPE(append_tile, (const Append *c, long row, float *wide), c, row, wide)

/* Returns a number other than 0 if there is no memory. */
int append_product(const Append *c, int half, int threads) {
    float *wide = malloc(sizeof(float) * TILE * c->width * threads);
    if (wide == NULL) return 1;
    long tiles = (c->rows + TILE - 1) / TILE;
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (long share = 0; share < threads; share++)
        for (long tile = share * tiles / threads; tile < (share + 1) * tiles / threads; tile++)
            (half ? append_tile_half : append_tile_single)(c, tile * TILE, wide + share * TILE * c->width);
    free(wide);
    return 0;
}
