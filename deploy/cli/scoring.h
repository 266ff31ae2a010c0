/* What predict and evaluate share: an exported model, a data set under the transform it was trained with, and the
 * rows' logits block after block. One thread; kernels spread over a pool. */
#ifndef SHOAL_CLI_SCORING_H
#define SHOAL_CLI_SCORING_H

#include <stdint.h>

#include "base/account.h"
#include "config/job.h"
#include "daemon/args.h"
#include "worker/data/dataset.h"

struct errbuf;
struct model;
struct pool;

struct scoring_args {
    struct args_list data; /* files, or "kind=csv,file=F,…" */
    struct args_list sets;
    const char *job, *data_dir, *format;
    int threads;
};
#define SCORING_ARG_ROWS(type, field)                                                                              \
    {"data",                                                                                                       \
     ARG_LIST,                                                                                                     \
     offsetof(struct type, field.data),                                                                            \
     "FILE",                                                                                                       \
     "csv, libsvm (.svm, .libsvm), npy, idx file; give it again for labels in a file of their own; or "            \
     "kind=K,images=F,labels=F,KEY=VALUE with the keys of a job's data section",                                   \
     0,                                                                                                            \
     0},                                                                                                           \
        {"job", ARG_TEXT, offsetof(struct type, field.job), "JOB.yaml", "take the job's test set", 0, 0},          \
        {"data-dir",                                                                                               \
         ARG_TEXT,                                                                                                 \
         offsetof(struct type, field.data_dir),                                                                    \
         "DIR",                                                                                                    \
         "the job's paths start here; default: at the job file",                                                   \
         0,                                                                                                        \
         0},                                                                                                       \
        {"set", ARG_LIST, offsetof(struct type, field.sets), "KEY=VALUE", "set an option, as data.header_lines=1", \
         0,     0},                                                                                                \
    {                                                                                                              \
        "threads", ARG_NUMBER, offsetof(struct type, field.threads), "N", "default: the processors", 1, 4096       \
    }

enum { SCORING_ROWS = 256 }; /* a block, as in training */

struct scoring {
    struct account account;
    struct pool *pool;
    struct model *model;
    float *w;
    enum job_loss loss;
    int64_t outputs;
    struct dataset_transform transform;
    struct job *job;
    char *job_dir;
    struct dataset *data;
    /* The block that was computed last. */
    float *x, *targets;
    int32_t *labels;
    int64_t indices[SCORING_ROWS];
    int64_t rows;
    const float *logits; /* (rows, outputs) */
    double loss_sum;
    int64_t counted, correct;
};

/* STATUS_INVALID for arguments that cannot be used, else what files and model say. scoring_close also after errors.
 */
int scoring_open(struct scoring *scoring, const char *model_path, const struct scoring_args *args,
                 struct errbuf *err);
int scoring_block(struct scoring *scoring, int64_t first,
                  struct errbuf *err); /* rows [first, first + SCORING_ROWS) */
void scoring_close(struct scoring *scoring);
int scoring_is_classes(const struct scoring *scoring);
/* Largest logit, ties to the lowest class; of one logit: class 1 above 0. */
int scoring_class(const struct scoring *scoring, const float *logits);
/* How a person knows a class: its name, the file's label, or its number. */
void scoring_class_text(const struct scoring *scoring, int class_number, char *out, size_t out_bytes);

/* Files and pairs to "data.kind=…" settings; owned by the list, for scoring_sets_close. For tests. */
struct scoring_sets {
    char **items;
    int count;
};
int scoring_sets_make(struct scoring_sets *sets, const struct args_list *data, struct errbuf *err);
void scoring_sets_close(struct scoring_sets *sets);

#endif
