/* An aggregator of one's own, as a plug-in: the mean of the share means, weighted by samples, after each value was
 * clipped to ±1, so that one broken worker can pull only so far.
 *   job file: parallel: {aggregate: plugin, aggregate_plugin: ./plugin_clipped_mean.so}
 *   build:    cc -std=c11 -O3 -ffp-contract=off -shared -fPIC -I common -o plugin_clipped_mean.so … */
#include "owner/aggregator.h"

static const float limit = 1.0f;

static double clip(float x)
{
    float clipped = x > limit ? limit : x < -limit ? -limit : x;

    return (double)(clipped + (x - x)); /* x - x: an infinite value must stay visible */
}

static void clipped_mean_combine(const struct aggregator_params *params, const float *const *shares,
                                 const double *weights, int shares_count, float *out, int64_t count)
{
    (void)params;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0.0, total = 0.0;
        for (int s = 0; s < shares_count; s++) {
            if (weights[s] <= 0.0)
                continue;
            sum += weights[s] * clip(shares[s][i]);
            total += weights[s];
        }
        out[i] = total > 0.0 ? (float)(sum / total) : 0.0f;
    }
}

extern const struct shoal_aggregator shoal_aggregator;
__attribute__((visibility("default"))) const struct shoal_aggregator shoal_aggregator = {
    .version = AGGREGATOR_VERSION,
    .name = "clipped_mean",
    .help = "mean of the share means clipped to ±1",
    .combine = clipped_mean_combine,
};
