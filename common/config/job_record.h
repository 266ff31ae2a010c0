/* Where each value of a job came from, and what was warned about. Inside common/config only; one thread while the
 * job is built, constant afterwards. */
#ifndef SHOAL_CONFIG_JOB_RECORD_H
#define SHOAL_CONFIG_JOB_RECORD_H

#include "config/job.h"
#include "config/option_table.h"

enum job_origin_kind {
    JOB_ORIGIN_NONE, /* not given, and there is no default */
    JOB_ORIGIN_DEFAULT,
    JOB_ORIGIN_FILE,
    JOB_ORIGIN_ENVIRONMENT,
    JOB_ORIGIN_SET,
    JOB_ORIGIN_OVERRIDE
};

struct job_value_origin {
    enum job_origin_kind kind;
    int line;      /* JOB_ORIGIN_FILE */
    char name[32]; /* JOB_ORIGIN_OVERRIDE: "--workers" */
};

struct job_record {
    char *source_name; /* of the file or text */
    struct job_strings warnings;
    struct job_value_origin origins[]; /* option_count() of them */
};

/* The field's origin; a job without a record has none. */
const struct job_value_origin *job_record_origin(const struct job *job, const struct option *option);
/* 1 when a person gave the value. */
int job_record_is_given(const struct job *job, const struct option *option);
void job_record_text(const struct job *job, const struct option *option, char *out, size_t out_bytes);

/* job_check.c: defaults that depend on other values, what is missing, what cannot go together, warnings. */
int job_check_resolve(struct job *job, struct errbuf *err);
int job_check_needs(const struct job *job, struct errbuf *err);
int job_check_combinations(const struct job *job, enum job_need need, struct errbuf *err);
int job_check_warn(struct job *job, struct errbuf *err);

#endif
