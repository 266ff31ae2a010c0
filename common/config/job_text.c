#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job_record.h"
#include "config/option_value.h"

/* 1 when there is a value to write: one without a default that nobody gave would not read back. */
static int has_value(const struct job *job, const struct option *option)
{
    return !job->record || job_record_origin(job, option)->kind != JOB_ORIGIN_NONE;
}

/* Runs `write` into a growing text, with a point in its numbers whatever the program's locale. */
static char *text_of(const struct job *job, void (*write)(const struct job *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (numbers == (locale_t)0) {
        return NULL;
    }
    locale_t before = uselocale(numbers);
    FILE *out = open_memstream(&text, &bytes);
    if (out) {
        write(job, out);
        int failed = ferror(out);
        if (fclose(out) != 0 || failed) {
            free(text);
            text = NULL;
        }
    }
    uselocale(before);
    freelocale(numbers);
    return text;
}

/* Opens the mappings of `path` that `previous` was not in, one a line, and returns the depth of the key itself. */
static int open_mappings(const char *previous, const char *path, FILE *out)
{
    int depth = 0;
    int same = 1;
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1, depth++) {
        size_t length = (size_t)(dot - path);
        if (same && strncmp(previous, path, length + 1) == 0) {
            previous += length + 1;
            continue;
        }
        same = 0;
        fprintf(out, "%*s%.*s:\n", 2 * depth, "", (int)length, path);
    }
    return depth;
}

static void write_yaml(const struct job *job, FILE *out)
{
    char previous[OPTION_PATH_MAX] = "", path[OPTION_PATH_MAX];
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        if (!has_value(job, option)) {
            continue;
        }
        option_path(option, path);
        int depth = open_mappings(previous, path, out);
        const char *dot = strrchr(path, '.');
        fprintf(out, "%*s%s: ", 2 * depth, "", dot ? dot + 1 : path);
        option_write(job, option, out);
        fputc('\n', out);
        memcpy(previous, path, sizeof previous);
    }
}

char *job_to_yaml(const struct job *job)
{
    return text_of(job, write_yaml);
}

static void write_config(const struct job *job, FILE *out)
{
    char path[OPTION_PATH_MAX], where[256];
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        option_path(option, path);
        job_record_text(job, option, where, sizeof where);
        fprintf(out, "%s:", path);
        if (has_value(job, option)) {
            fputc(' ', out);
            option_write(job, option, out);
        }
        fprintf(out, "  # %s\n", where);
    }
}

char *job_print_config(const struct job *job)
{
    return text_of(job, write_config);
}

void job_batch_text(const struct job *job, int64_t workers, char *out, size_t out_bytes)
{
    workers = workers > 0 ? workers : 1;
    int64_t share = job->batch_size / workers, more = job->batch_size % workers, accumulate = job->accumulate;
    char rest[96] = "";
    if (more > 0) {
        snprintf(rest, sizeof rest, " + %" PRId64 " worker%s x %" PRId64, workers - more,
                 workers - more > 1 ? "s" : "", share);
        workers = more;
        share++;
    } else if (accumulate > 1 && share % accumulate == 0) {
        snprintf(rest, sizeof rest, " x %" PRId64, share / accumulate);
    }
    const char *micro = more == 0 && rest[0] ? " accumulate" : "";
    snprintf(out, out_bytes, "%" PRId64 " = %" PRId64 " worker%s x %" PRId64 "%s%s", job->batch_size, workers,
             workers > 1 ? "s" : "", micro[0] ? accumulate : share, micro, rest);
}

static void write_fixed(const struct job *job, FILE *out)
{
    char path[OPTION_PATH_MAX];
    for (int i = 0; i < option_count(); i++) {
        if (option_at(i)->flags & OPTION_RESUME_FIXED) {
            option_path(option_at(i), path);
            fprintf(out, "%s=", path);
            option_write(job, option_at(i), out);
            fputc('\n', out);
        }
    }
}

/* FNV-1a, 64 bits. */
uint64_t job_hash(const struct job *job)
{
    char *text = text_of(job, write_fixed);
    uint64_t hash = 14695981039346656037u;
    for (const char *c = text; c && *c; c++) {
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    }
    free(text);
    return hash;
}

int job_check_resume(const struct job *saved, const struct job *now, struct errbuf *err)
{
    char *before = text_of(saved, write_fixed), *after = text_of(now, write_fixed);
    int status = 0;
    if (!before || !after) {
        status = errbuf_set(err, STATUS_NOMEM, "job: out of memory");
    }
    const char *a = before, *b = after;
    while (status == 0 && *a && *b) {
        size_t a_length = strcspn(a, "\n"), b_length = strcspn(b, "\n");
        if (a_length != b_length || memcmp(a, b, a_length) != 0) {
            int key = (int)strcspn(b, "=");
            status = errbuf_set(err, STATUS_INVALID,
                                "%.*s: found %.*s, expected %.*s as in the snapshot; a resume may not "
                                "change it",
                                key, b, (int)b_length - key - 1, b + key + 1, (int)a_length - key - 1, a + key + 1);
        }
        a += a_length + (a[a_length] == '\n');
        b += b_length + (b[b_length] == '\n');
    }
    free(before);
    free(after);
    return status;
}
