/* What the tests of common/config share: cmocka's headers and loading a job from text. */
#ifndef SHOAL_TESTS_CONFIG_TEST_H
#define SHOAL_TESTS_CONFIG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"

/* A complete job; tests add lines, or keys by --set. */
#define CONFIG_TEST_JOB                                                                                            \
    "epochs: 5\n"                                                                                                  \
    "batch_size: 128\n"                                                                                            \
    "data: {kind: idx, train: {images: A, labels: B}}\n"                                                           \
    "model: {kind: mlp, hidden: [512, 256]}\n"                                                                     \
    "optimizer: {kind: adam}\n"

/* Loads `text` as the file job.yaml under the given --set values (NULL-terminated). */
static inline int config_test_load(struct job **job, const char *text, const char *const *sets, struct errbuf *err)
{
    struct job_source source = {.text = text, .text_name = "job.yaml", .sets = sets};
    while (sets && sets[source.sets_count]) {
        source.sets_count++;
    }
    *job = NULL;
    errbuf_init(err);
    return job_load(job, &source, err);
}

static inline struct job *config_test_good(const char *text, const char *const *sets)
{
    struct job *job;
    struct errbuf err;
    if (config_test_load(&job, text, sets, &err) != 0) {
        fail_msg("job_load: %s", err.text);
    }
    return job;
}

/* The text is refused with exactly this line. */
static inline void config_test_refused(const char *text, const char *set, const char *message)
{
    const char *sets[] = {set, NULL};
    struct job *job;
    struct errbuf err;
    assert_int_not_equal(config_test_load(&job, text, sets, &err), 0);
    assert_null(job);
    assert_string_equal(err.text, message);
}

#endif
