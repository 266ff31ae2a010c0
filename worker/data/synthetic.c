/* Gaussian clusters for tries and benchmarks without a file: class centres N(0, 4), samples around them N(0, 1),
 * row i of class i mod classes. For regression the target is a fixed random combination of the features plus N(0,
 * 0.01). Made from data.synthetic.seed alone. */
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/rng.h"
#include "base/status.h"
#include "worker/data/loader.h"

enum { SITE_CENTRE = RNG_SITE_SYNTHETIC, SITE_NOISE, SITE_TARGET, SITE_TARGET_NOISE };

static int synthetic_load(const struct loader_input *input, struct loader_rows *rows, struct errbuf *err)
{
    const int64_t samples = input->job->data.synthetic.samples, features = input->job->data.synthetic.features;
    const int64_t classes = input->job->data.synthetic.classes;
    const uint64_t seed = input->job->data.synthetic.seed;
    int64_t cells, bytes, centre_cells;
    if (samples < 1 || features < 1 || (input->classification && classes < 1))
        return errbuf_set(err, STATUS_RANGE,
                          "data.synthetic: samples %lld, features %lld, classes %lld must be at least 1",
                          (long long)samples, (long long)features, (long long)classes);
    if (__builtin_mul_overflow(samples, features, &cells) || __builtin_mul_overflow(cells, 8, &bytes) ||
        __builtin_mul_overflow(classes, features, &centre_cells))
        return errbuf_set(err, STATUS_RANGE, "data.synthetic: %lld samples of %lld features are too many",
                          (long long)samples, (long long)features);
    rows->dense = malloc((size_t)bytes);
    rows->labels = malloc((size_t)samples * sizeof *rows->labels);
    rows->label_file = strdup("data.synthetic");
    if (!rows->dense || !rows->labels || !rows->label_file)
        return errbuf_set(err, STATUS_NOMEM, "data.synthetic: no memory for %lld bytes", (long long)bytes);
    rows->rows = samples;
    rows->features = features;
    for (int64_t i = 0; i < samples; i++) {
        double target = 0.1 * rng_normal(seed, SITE_TARGET_NOISE, 0, (uint64_t)i);
        int64_t class = input->classification ? i % classes : 0;
        for (int64_t j = 0; j < features; j++) {
            double value = rng_normal(seed, SITE_NOISE, 0, (uint64_t)(i * features + j));
            if (input->classification)
                value += 2 * rng_normal(seed, SITE_CENTRE, 0, (uint64_t)(class * features + j));
            else
                target += value * rng_normal(seed, SITE_TARGET, 0, (uint64_t)j);
            rows->dense[i * features + j] = value;
        }
        rows->labels[i] = input->classification ? (double)class : target;
    }
    return 0;
}

const struct loader_ops loader_synthetic = {
    .name = "synthetic", .divide_default = 1, .is_given = NULL, .load = synthetic_load};
