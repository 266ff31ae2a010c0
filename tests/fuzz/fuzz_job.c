/* Any bytes as a job file: refused in one line, or loaded, and then the YAML it is sent as reads back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "config/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_back(const struct job *job, enum job_need need)
{
    char *yaml = job_to_yaml(job), *config = job_print_config(job);
    struct job *back = NULL;
    struct errbuf err;
    errbuf_init(&err);
    const struct job_source source = {.text = yaml, .need = need};
    if (!yaml || !config || job_load(&back, &source, &err) != 0 || job_hash(job) != job_hash(back) ||
        job_check_resume(job, back, &err) != 0) {
        abort();
    }
    char *again = job_to_yaml(back);
    if (!again || strcmp(yaml, again) != 0) {
        abort();
    }
    free(again);
    free(config);
    free(yaml);
    job_destroy(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (!text) {
        return 0;
    }
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (int need = JOB_NEED_TRAINING; need <= JOB_NEED_NOTHING; need++) {
        struct job *job = NULL;
        struct errbuf err;
        errbuf_init(&err);
        const struct job_source source = {.text = text, .need = (enum job_need)need};
        if (job_load(&job, &source, &err) == 0) {
            read_back(job, source.need);
            job_destroy(job);
        } else if (err.text[0] == '\0' || strchr(err.text, '\n')) {
            abort();
        }
    }
    free(text);
    return 0;
}
