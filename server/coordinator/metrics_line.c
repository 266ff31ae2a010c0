#include "server/coordinator/metrics_line.h"

#include <math.h>
#include <stdio.h>

void metrics_line_number(double value, char out[METRICS_NUMBER])
{
    if (isnan(value))
        snprintf(out, METRICS_NUMBER, "\"NaN\"");
    else if (isinf(value))
        snprintf(out, METRICS_NUMBER, value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    else
        snprintf(out, METRICS_NUMBER, "%.9g", value);
}

void metrics_line_step(const struct metrics_step *step, char out[METRICS_LINE])
{
    char loss[METRICS_NUMBER], lr[METRICS_NUMBER], norm[METRICS_NUMBER], seconds[METRICS_NUMBER];
    metrics_line_number(step->loss, loss);
    metrics_line_number(step->lr, lr);
    metrics_line_number(step->grad_norm, norm);
    metrics_line_number(step->step_s, seconds);
    snprintf(out, METRICS_LINE,
             "{\"event\":\"step\",\"step\":%llu,\"loss\":%s,\"lr\":%s,\"grad_norm\":%s,\"samples\":%lld,"
             "\"step_s\":%s%s}",
             (unsigned long long)step->step, loss, lr, norm, (long long)step->samples, seconds,
             step->skipped ? ",\"skipped\":true" : "");
}

void metrics_line_eval(const char *set, uint64_t step, double loss, double accuracy, char out[METRICS_LINE])
{
    char loss_text[METRICS_NUMBER], accuracy_text[METRICS_NUMBER];
    metrics_line_number(loss, loss_text);
    metrics_line_number(accuracy, accuracy_text);
    snprintf(out, METRICS_LINE, "{\"event\":\"eval\",\"step\":%llu,\"loss\":%s,\"accuracy\":%s,\"set\":\"%.15s\"}",
             (unsigned long long)step, loss_text, accuracy_text, set);
}
