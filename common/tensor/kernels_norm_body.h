/* See kernels_table_body.h. Loops run over a tile of features inside a loop over rows, so that the doubles of a
 * tile stay in the first cache and every feature sees its rows in order. */

enum { NORM_TILE = 128 };

static int64_t norm_tile_width(int64_t first, int64_t features)
{
    return features - first < NORM_TILE ? features - first : NORM_TILE;
}

static void kernel_norm_moments(const float *x, int64_t rows, int64_t features, double *mean, double *m2)
{
    for (int64_t first = 0; first < features; first += NORM_TILE) {
        int64_t width = norm_tile_width(first, features);
        double sum[NORM_TILE] = {0}, square[NORM_TILE] = {0};
        for (int64_t r = 0; r < rows; r++) {
            const float *row = x + r * features + first;
            for (int64_t j = 0; j < width; j++)
                sum[j] += (double)row[j];
        }
        for (int64_t j = 0; rows > 0 && j < width; j++)
            sum[j] /= (double)rows;
        for (int64_t r = 0; r < rows; r++) {
            const float *row = x + r * features + first;
            for (int64_t j = 0; j < width; j++) {
                double deviation = (double)row[j] - sum[j];
                square[j] += deviation * deviation;
            }
        }
        memcpy(mean + first, sum, (size_t)width * sizeof *mean);
        memcpy(m2 + first, square, (size_t)width * sizeof *m2);
    }
}

static void kernel_norm_forward(const float *x, const double *mean, const double *rstd, const float *gamma,
                                const float *beta, float *y, float *xhat, int64_t rows, int64_t features)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * features;
        if (xhat != NULL) {
            KERNEL_LOOP
            for (int64_t j = 0; j < features; j++) {
                double normal = ((double)x[at + j] - mean[j]) * rstd[j];
                xhat[at + j] = (float)normal;
                y[at + j] = (float)(normal * (double)gamma[j] + (double)beta[j]);
            }
        } else {
            KERNEL_LOOP
            for (int64_t j = 0; j < features; j++) {
                double normal = ((double)x[at + j] - mean[j]) * rstd[j];
                y[at + j] = (float)(normal * (double)gamma[j] + (double)beta[j]);
            }
        }
    }
}

static void kernel_norm_backward_sums(const float *dy, const float *xhat, int64_t rows, int64_t features,
                                      double *sums)
{
    for (int64_t first = 0; first < features; first += NORM_TILE) {
        int64_t width = norm_tile_width(first, features);
        double sum[NORM_TILE] = {0}, product[NORM_TILE] = {0};
        for (int64_t r = 0; r < rows; r++) {
            const float *dy_row = dy + r * features + first, *xhat_row = xhat + r * features + first;
            for (int64_t j = 0; j < width; j++) {
                sum[j] += (double)dy_row[j];
                product[j] += (double)dy_row[j] * (double)xhat_row[j];
            }
        }
        memcpy(sums + first, sum, (size_t)width * sizeof *sums);
        memcpy(sums + features + first, product, (size_t)width * sizeof *sums);
    }
}

static void kernel_norm_backward(const float *dy, const float *xhat, const double *rstd, const float *gamma,
                                 const double *sums, double n, float *dx, int64_t rows, int64_t features)
{
    for (int64_t first = 0; first < features; first += NORM_TILE) {
        int64_t width = norm_tile_width(first, features);
        double factor[NORM_TILE], mean_dy[NORM_TILE], mean_product[NORM_TILE];
        for (int64_t j = 0; j < width; j++) {
            factor[j] = (double)gamma[first + j] * rstd[first + j];
            mean_dy[j] = sums[first + j] / n;
            mean_product[j] = sums[features + first + j] / n;
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * features + first;
            KERNEL_LOOP
            for (int64_t j = 0; j < width; j++) {
                double centred = (double)dy[at + j] - mean_dy[j] - (double)xhat[at + j] * mean_product[j];
                dx[at + j] = (float)(factor[j] * centred);
            }
        }
    }
}
