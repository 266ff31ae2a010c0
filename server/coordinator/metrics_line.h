/* Lines of the metrics file: JSON, one object a line, floats with 9 significant digits. JSON has no word for what is not
 * finite; such a number is the text "NaN", "Infinity" or "-Infinity". Pure; any thread. */
#ifndef SHOAL_COORDINATOR_METRICS_LINE_H
#define SHOAL_COORDINATOR_METRICS_LINE_H

#include <stdint.h>

enum { METRICS_LINE = 512, METRICS_NUMBER = 32 };

struct metrics_step {
    uint64_t step;
    double loss, lr, grad_norm, step_s;
    int64_t samples;
    int skipped;
};

void metrics_line_number(double value, char out[METRICS_NUMBER]);
void metrics_line_step(const struct metrics_step *step, char out[METRICS_LINE]);
void metrics_line_eval(const char *set, uint64_t step, double loss, double accuracy, char out[METRICS_LINE]);

#endif
