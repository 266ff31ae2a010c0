#include "optim/optimizer.h"

#include "config/job.h"

#include <math.h>

double lr_schedule_at(const struct job *job, int64_t t, int64_t total)
{
    const double pi = 3.14159265358979323846;
    const double lr = job->optimizer.lr, min = job->lr_schedule.min_lr;
    const int64_t warmup = job->lr_schedule.warmup_steps;
    const int64_t end = job->lr_schedule.total_steps > 0 ? job->lr_schedule.total_steps : total;

    if (t <= warmup)
        return lr * (double)t / (double)warmup;
    if (job->lr_schedule.kind == JOB_LR_CONSTANT)
        return lr;
    if (t >= end)
        return min;
    double p = (double)(t - warmup) / (double)(end - warmup);
    if (job->lr_schedule.kind == JOB_LR_COSINE)
        return min + 0.5 * (lr - min) * (1.0 + cos(pi * p));
    return lr - (lr - min) * p;
}
