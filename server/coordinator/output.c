#include "server/coordinator/output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"

static const int64_t redraw_ns = 100000000, window_ns = 1000000000;

void output_init(struct output *output, int fd, int live)
{
    memset(output, 0, sizeof *output);
    output->fd = fd;
    output->live = live;
}

/* A line that a crash cut off is ended, so that the next one is whole. */
static void end_torn_line(FILE *file)
{
    if (fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n') {
        fseek(file, 0, SEEK_END);
        fputc('\n', file);
    }
    fseek(file, 0, SEEK_END);
}

int output_job_begins(struct output *output, const char *path, int appending, struct errbuf *err)
{
    if (output->metrics != NULL)
        fclose(output->metrics);
    output->metrics = NULL;
    output->window_ns = 0;
    output->last[0] = '\0';
    output->samples_per_s = output->steps_per_s = 0;
    if (path == NULL || *path == '\0')
        return 0;
    snprintf(output->metrics_path, sizeof output->metrics_path, "%s", path);
    output->metrics = fopen(path, appending ? "a+" : "w");
    if (output->metrics == NULL)
        return errbuf_set(err, STATUS_IO, "metrics file %s: %s", path, strerror(errno));
    if (appending)
        end_torn_line(output->metrics);
    return 0;
}

static void write_all(const struct output *output, const char *text, size_t bytes)
{
    while (output->fd >= 0 && bytes > 0) {
        ssize_t wrote = write(output->fd, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return;
        text += wrote;
        bytes -= (size_t)wrote;
    }
}

static void put(const struct output *output, const char *text)
{
    write_all(output, text, strlen(text));
}

static void wipe(struct output *output)
{
    if (output->shown)
        put(output, "\r\033[K");
    output->shown = 0;
}

void output_say(struct output *output, const char *line)
{
    char text[2048];
    wipe(output);
    snprintf(text, sizeof text, "%s\n", line);
    put(output, text);
}

void output_metrics(struct output *output, const char *json_line)
{
    if (output->metrics == NULL)
        return;
    fputs(json_line, output->metrics);
    fputc('\n', output->metrics);
    if (fflush(output->metrics) == 0)
        return;
    char text[sizeof output->metrics_path + 128];
    snprintf(text, sizeof text, "warning: metrics file %s: %s; it ends here, training goes on", output->metrics_path,
             strerror(errno));
    fclose(output->metrics);
    output->metrics = NULL;
    output_say(output, text);
}

void output_close(struct output *output)
{
    if (output->shown)
        put(output, "\n");
    output->shown = 0;
    if (output->metrics != NULL)
        fclose(output->metrics);
    output->metrics = NULL;
}

static void rate_text(double value, char *out, size_t bytes)
{
    long long whole = (long long)(value + 0.5);
    if (whole < 1000)
        snprintf(out, bytes, "%.3g", value);
    else if (whole < 1000000)
        snprintf(out, bytes, "%lld,%03lld", whole / 1000, whole % 1000);
    else
        snprintf(out, bytes, "%lld,%03lld,%03lld", whole / 1000000, whole / 1000 % 1000, whole % 1000);
}

void output_progress_text(const struct coordinator_progress *progress, double samples_per_s, double steps_per_s,
                          char out[OUTPUT_LINE])
{
    char step[48], rate[48], eta[32] = "";
    rate_text(samples_per_s, rate, sizeof rate);
    if (progress->total_steps > 0)
        snprintf(step, sizeof step, "%llu/%llu", (unsigned long long)progress->step,
                 (unsigned long long)progress->total_steps);
    else
        snprintf(step, sizeof step, "%llu", (unsigned long long)progress->step);
    if (steps_per_s > 0 && progress->total_steps >= progress->step) {
        double left = (double)(progress->total_steps - progress->step) / steps_per_s;
        long long seconds = left < 1e9 ? (long long)(left + 0.5) : 0;
        snprintf(eta, sizeof eta, "  eta %lld:%02lld", seconds / 60, seconds % 60);
    }
    snprintf(out, OUTPUT_LINE, "step %s  loss %.4g  lr %.3g  %s samples/s%s", step, progress->loss, progress->lr, rate,
             eta);
}

static void measure(struct output *output, const struct coordinator_progress *progress)
{
    if (output->window_ns == 0) {
        output->window_ns = progress->now_ns;
        output->window_step = progress->step;
        output->window_samples = 0;
        return;
    }
    output->window_samples += progress->samples;
    int64_t passed = progress->now_ns - output->window_ns;
    if (passed <= 0 || (passed < window_ns && output->samples_per_s > 0 && !progress->last))
        return;
    output->samples_per_s = (double)output->window_samples / ((double)passed / 1e9);
    output->steps_per_s = (double)(progress->step - output->window_step) / ((double)passed / 1e9);
    if (passed < window_ns)
        return; /* too short to start anew */
    output->window_ns = progress->now_ns;
    output->window_step = progress->step;
    output->window_samples = 0;
}

void output_progress(struct output *output, const struct coordinator_progress *progress)
{
    measure(output, progress);
    output_progress_text(progress, output->samples_per_s, output->steps_per_s, output->last);
    if (!output->live) {
        int64_t every = progress->job->log_every;
        if (progress->last || (every > 0 && progress->step % (uint64_t)every == 0))
            output_say(output, output->last);
        return;
    }
    if (!progress->last && progress->now_ns - output->drawn_ns < redraw_ns)
        return;
    output->drawn_ns = progress->now_ns;
    wipe(output);
    put(output, output->last);
    output->shown = 1;
    if (progress->last) {
        put(output, "\n");
        output->shown = 0;
    }
}
