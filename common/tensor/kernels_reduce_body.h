/* See kernels_table_body.h. */

KERNEL_STREAM static void kernel_reduce_add(float *acc, const float *x, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] += x[i];
}

KERNEL_STREAM static void add_2(float *acc, const float *a, const float *b, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] = (acc[i] + a[i]) + b[i];
}

KERNEL_STREAM static void add_4(float *acc, const float *const *s, int64_t at, int64_t count)
{
    const float *a = s[0] + at, *b = s[1] + at, *c = s[2] + at, *d = s[3] + at;
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] = (((acc[i] + a[i]) + b[i]) + c[i]) + d[i];
}

/* acc = a + b: saves reading acc back when the first source is copied. */
KERNEL_STREAM static void set_2(float *acc, const float *a, const float *b, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] = a[i] + b[i];
}

KERNEL_STREAM static void set_4(float *acc, const float *const *s, int64_t at, int64_t count)
{
    const float *a = s[0] + at, *b = s[1] + at, *c = s[2] + at, *d = s[3] + at;
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] = ((a[i] + b[i]) + c[i]) + d[i];
}

/* Leaves the number of sources used. */
KERNEL_STREAM static int set_tile(float *acc, const float *const *sources, int sources_count, int64_t at,
                                  int64_t count)
{
    if (sources_count >= 4) {
        set_4(acc, sources, at, count);
        return 4;
    }
    if (sources_count >= 2) {
        set_2(acc, sources[0] + at, sources[1] + at, count);
        return 2;
    }
    memcpy(acc, sources[0] + at, (size_t)count * sizeof *acc);
    return 1;
}

enum { REDUCE_TILE = 4096 }; /* floats of acc that stay in the first cache while all sources pass */

KERNEL_STREAM static void kernel_reduce_add_many(float *acc, const float *const *sources, int sources_count,
                                                 int first, int64_t count)
{
    if (sources_count == 0)
        return;
    for (int64_t at = 0; at < count; at += REDUCE_TILE) {
        int64_t width = count - at < REDUCE_TILE ? count - at : REDUCE_TILE;
        int s = first ? set_tile(acc + at, sources, sources_count, at, width) : 0;
        for (; s + 4 <= sources_count; s += 4)
            add_4(acc + at, sources + s, at, width);
        for (; s + 2 <= sources_count; s += 2)
            add_2(acc + at, sources[s] + at, sources[s + 1] + at, width);
        if (s < sources_count)
            kernel_reduce_add(acc + at, sources[s] + at, width);
    }
}

KERNEL_STREAM static void set_3(float *out, const float *a, const float *b, const float *c, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        out[i] = (a[i] + b[i]) + c[i];
}

/* Each source is read at i before out[i] is written, or into a tile beside: out may be one of them. */
KERNEL_STREAM static void kernel_reduce_sum_to(float *out, const float *const *sources, int sources_count,
                                               int64_t count)
{
    float tile[REDUCE_TILE];

    if (sources_count == 1 && out != sources[0])
        memcpy(out, sources[0], (size_t)count * sizeof *out);
    else if (sources_count == 2)
        set_2(out, sources[0], sources[1], count);
    else if (sources_count == 3)
        set_3(out, sources[0], sources[1], sources[2], count);
    else if (sources_count == 4)
        set_4(out, sources, 0, count);
    for (int64_t at = 0; at < count && sources_count > 4; at += REDUCE_TILE) {
        int64_t width = count - at < REDUCE_TILE ? count - at : REDUCE_TILE;
        int s = 4, last = sources_count - 1;
        set_4(tile, sources, at, width);
        for (; s + 2 <= last; s += 2)
            add_2(tile, sources[s] + at, sources[s + 1] + at, width);
        if (s < last)
            kernel_reduce_add(tile, sources[s] + at, width);
        set_2(out + at, tile, sources[last] + at, width);
    }
}

KERNEL_STREAM static void kernel_reduce_scale(float *acc, float factor, int64_t count)
{
    KERNEL_LOOP
    for (int64_t i = 0; i < count; i++)
        acc[i] *= factor;
}

static double add_lanes(const double lanes[KERNEL_LANES])
{
    double sum = lanes[0];
    for (int l = 1; l < KERNEL_LANES; l++)
        sum += lanes[l];
    return sum;
}

static double kernel_reduce_norm_squared(const float *x, int64_t count)
{
    double lanes[KERNEL_LANES] = {0};
    int64_t i = 0;
    for (; i + KERNEL_LANES <= count; i += KERNEL_LANES)
        for (int l = 0; l < KERNEL_LANES; l++)
            lanes[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; i + l < count; l++)
        lanes[l] += (double)x[i + l] * (double)x[i + l];
    return add_lanes(lanes);
}

static double kernel_reduce_sum(const float *x, int64_t count)
{
    double lanes[KERNEL_LANES] = {0};
    int64_t i = 0;
    for (; i + KERNEL_LANES <= count; i += KERNEL_LANES)
        for (int l = 0; l < KERNEL_LANES; l++)
            lanes[l] += (double)x[i + l];
    for (int l = 0; i + l < count; l++)
        lanes[l] += (double)x[i + l];
    return add_lanes(lanes);
}

static float kernel_row_maximum(const float *x, int64_t n)
{
    float lanes[KERNEL_LANES];
    for (int l = 0; l < KERNEL_LANES; l++)
        lanes[l] = -INFINITY;
    int64_t i = 0;
    for (; i + KERNEL_LANES <= n; i += KERNEL_LANES)
        for (int l = 0; l < KERNEL_LANES; l++)
            lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    for (int l = 0; i + l < n; l++)
        lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    float maximum = lanes[0];
    for (int l = 1; l < KERNEL_LANES; l++)
        maximum = lanes[l] > maximum ? lanes[l] : maximum;
    return maximum;
}

static double kernel_row_exp_sum(const float *x, double maximum, int64_t n)
{
    double lanes[KERNEL_LANES] = {0};
    int64_t i = 0;
    for (; i + KERNEL_LANES <= n; i += KERNEL_LANES)
        for (int l = 0; l < KERNEL_LANES; l++)
            lanes[l] += vector_exp((double)x[i + l] - maximum);
    for (int l = 0; i + l < n; l++)
        lanes[l] += vector_exp((double)x[i + l] - maximum);
    return add_lanes(lanes);
}

static void kernel_row_exp_scale(const float *x, double maximum, double factor, float *y, int64_t n)
{
    KERNEL_LOOP
    for (int64_t j = 0; j < n; j++)
        y[j] = (float)(vector_exp((double)x[j] - maximum) * factor);
}
