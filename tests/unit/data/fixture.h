/* A job for data tests, a folder for their files, and real data sets. One test at a time. */
#ifndef SHOAL_TEST_DATA_FIXTURE_H
#define SHOAL_TEST_DATA_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "config/job.h"
#include "worker/data/dataset.h"

#define FASHION "/usr/share/datasets/fashion-mnist"
#define HEART_SCALE "/usr/share/doc/liblinear-tools/examples/heart_scale"
#define SKLEARN "/usr/lib/python3/dist-packages/sklearn/datasets/"
#define IRIS SKLEARN "data/iris.csv"
#define BOSTON SKLEARN "data/boston_house_prices.csv"
#define BREAST_CANCER SKLEARN "data/breast_cancer.csv"
#define DIGITS SKLEARN "data/digits.csv.gz"
#define SVMLIGHT SKLEARN "tests/data/svmlight_classification.txt"

struct fixture {
    struct job job;
    char folder[64]; /* made by setup, removed with its files by teardown */
    struct account account;
    struct errbuf err;
    char note[512];
    struct dataset_set set;
};

/* cmocka setup and teardown: *state is the fixture. */
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* The package's file, or a failed test that names the package. */
char *real_file(const char *path, const char *package, size_t *bytes);
/* Writes a file into the folder; the returned path is good until the next two calls. */
char *put_file(struct fixture *f, const char *name, const void *bytes, size_t count);
char *put_text(struct fixture *f, const char *name, const char *text);
char *put_gzip(struct fixture *f, const char *name, const void *bytes, size_t count);
/* Loads f->job's data (closing what was loaded before) from the folder; the status. */
int load(struct fixture *f);
void load_ok(struct fixture *f);
/* Fails unless loading ends with `status` and each text (up to NULL) is in the message. */
void load_fails(struct fixture *f, int status, ...);
/* One file of text as the training file of csv or libsvm. */
void use_text(struct fixture *f, enum job_data_kind kind, const char *text);
/* All rows of a data set: x (rows, features) owned by the caller. labels or targets may be NULL. */
float *read_all(const struct dataset *dataset, int32_t *labels, float *targets);

#endif
