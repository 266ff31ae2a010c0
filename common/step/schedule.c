#include "step/schedule.h"

#include "config/job.h"

static int divides(int64_t every, uint64_t step)
{
    return every > 0 && step % (uint64_t)every == 0;
}

int schedule_evaluates(const struct job *job, uint64_t step, int last, int stopped)
{
    return divides(job->evaluate.every, step) || (last && !stopped);
}

int schedule_saves(const struct job *job, uint64_t step, int last)
{
    const char *dir = job->snapshot.dir;
    return dir != NULL && *dir != '\0' && (last || divides(job->snapshot.every, step));
}

int schedule_writes(const struct job *job, int rank)
{
    return rank == 0 || job->parallel.data != JOB_DDP;
}
