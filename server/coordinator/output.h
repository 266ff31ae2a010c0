/* What a person sees and what the metrics file gets: the live line or plain lines, other lines between. One thread. */
#ifndef SHOAL_COORDINATOR_OUTPUT_H
#define SHOAL_COORDINATOR_OUTPUT_H

#include <stdint.h>
#include <stdio.h>

#include "server/coordinator/coordinator_core.h"

enum { OUTPUT_LINE = 192 };

struct output {
    int fd; /* -1: nowhere */
    int live; /* 1: a line that is written over */
    int shown;
    FILE *metrics;
    char metrics_path[512]; /* for people; cut when longer */
    int64_t window_ns, window_samples, drawn_ns; /* samples since the rate was last taken */
    uint64_t window_step;
    double samples_per_s, steps_per_s;
    char last[OUTPUT_LINE];
};

void output_init(struct output *output, int fd, int live);
/* A job begins: rates and the last line start anew, its metrics file ("" or NULL: none) is opened. appending: a resumed
 * run's lines follow those of the run before. STATUS_IO with path and errno text. */
int output_job_begins(struct output *output, const char *path, int appending, struct errbuf *err);
void output_close(struct output *output);
void output_say(struct output *output, const char *line);
/* The first line that cannot be written is said, and no other follows it: training goes on. */
void output_metrics(struct output *output, const char *json_line);
void output_progress(struct output *output, const struct coordinator_progress *progress);
/* "step 120/2345  loss 0.412  lr 8.1e-4  11,200 samples/s  eta 0:21" */
void output_progress_text(const struct coordinator_progress *progress, double samples_per_s, double steps_per_s,
                          char out[OUTPUT_LINE]);

#endif
