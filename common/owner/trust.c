#include "owner/trust.h"

#include <math.h>

void trust_ratios(const struct keymap *map, const double *norms, double *ratios)
{
    for (int t = 0; t < map->table->tensor_count; t++) {
        ratios[t] = 1;
    }
    for (int64_t key = 0; key < map->keys_count;) {
        int tensor = map->keys[key].tensor;
        double w = 0;
        double u = 0;
        for (; key < map->keys_count && map->keys[key].tensor == tensor; key++) {
            for (int r = 0; r < map->keys[key].runs; r++) {
                w += norms[2 * (map->keys[key].run_first + r)];
                u += norms[2 * (map->keys[key].run_first + r) + 1];
            }
        }
        if (w > 0 && u > 0) {
            ratios[tensor] = sqrt(w) / sqrt(u);
        }
    }
}
