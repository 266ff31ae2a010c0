/* Split, standardisation, synthetic data, and the transform as JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "fixture.h"

static void use_breast_cancer(struct fixture *f)
{
    free(real_file(BREAST_CANCER, "python3-sklearn", NULL));
    f->job.data.kind = JOB_DATA_CSV;
    f->job.data.train.file = BREAST_CANCER;
    f->job.data.header_lines = 1;
}

static void standardised_columns_have_mean_0_and_deviation_1(void **state)
{
    struct fixture *f = *state;
    use_breast_cancer(f);
    f->job.data.standardize = 1;
    load_ok(f);
    int64_t rows = dataset_rows(f->set.train), features = dataset_features(f->set.train);
    assert_int_equal(rows, 569);
    assert_int_equal(features, 30);
    float *x = read_all(f->set.train, NULL, NULL);
    for (int64_t j = 0; j < features; j++) {
        double sum = 0, squares = 0;
        for (int64_t r = 0; r < rows; r++) {
            sum += x[r * features + j];
            squares += (double)x[r * features + j] * x[r * features + j];
        }
        assert_true(fabs(sum / (double)rows) < 1e-6);
        assert_true(fabs(squares / (double)rows - 1) < 1e-6); /* population: n, not n - 1 */
    }
    free(x);
    assert_true(fabs(f->set.transform.mean[0] - 14.127291739894552) < 1e-12);
    assert_true(fabs(f->set.transform.deviation[0] - 3.520950760711062) < 1e-12);
}

static void constant_columns_become_zero(void **state)
{
    struct fixture *f = *state;
    f->job.data.standardize = 1;
    f->job.model.loss = JOB_LOSS_MSE;
    /* 0.1 summed and divided again is not 0.1 */
    use_text(f, JOB_DATA_CSV, "0.1,1,0\n0.1,2,0\n0.1,3,0\n0.1,2,0\n0.1,2,0\n0.1,2,0\n0.1,2,0\n");
    put_text(f, "test.txt", "0.6,2,0\n");
    f->job.data.test.file = "test.txt";
    load_ok(f);
    float *x = read_all(f->set.train, NULL, NULL);
    for (int r = 0; r < 7; r++)
        assert_true(x[2 * r] == 0);
    free(x);
    assert_true(f->set.transform.deviation[0] == 1);
    x = read_all(f->set.test, NULL, NULL);
    assert_true(x[0] == 0.5f && x[1] == 0);
    free(x);
}

static void bytes_are_standardised_after_division(void **state)
{
    struct fixture *f = *state;
    static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 9, 51, 9, 102, 9};
    static const unsigned char labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 9, 7};
    f->job.data.kind = JOB_DATA_IDX;
    put_file(f, "images", images, sizeof images);
    put_file(f, "labels", labels, sizeof labels);
    f->job.data.train.images = "images";
    f->job.data.train.labels = "labels";
    load_ok(f);
    float *x = read_all(f->set.train, NULL, NULL);
    assert_true(x[2] == 0.2f && x[4] == 0.4f && x[1] == (float)(9 / 255.0));
    free(x);
    f->job.data.scale_divide = 51;
    f->job.data.standardize = 1;
    load_ok(f);
    assert_true(f->set.transform.mean[0] == 1);
    x = read_all(f->set.train, NULL, NULL);
    float side = (float)(1 / sqrt(2.0 / 3));
    assert_memory_equal(x, ((float[]){-side, 0, 0, 0, side, 0}), 24);
    free(x);
    f->job.data.train.labels = "";
    load_fails(f, STATUS_INVALID, "no labels file", NULL);
    struct dataset *unlabelled;
    assert_int_equal(load(f), STATUS_INVALID);
    f->job.data.train.labels = "labels";
    load_ok(f);
    struct job_data_files files = f->job.data.train;
    files.labels = "";
    assert_int_equal(
        dataset_load_with(&unlabelled, &f->job, &files, f->folder, NULL, &f->set.transform, &f->account, &f->err),
        0);
    int32_t label[3];
    float target[3];
    assert_false(dataset_has_labels(unlabelled));
    x = read_all(unlabelled, label, target);
    assert_memory_equal(x, ((float[]){-side, 0, 0, 0, side, 0}), 24);
    assert_int_equal(label[0], -1);
    assert_true(isnan(target[0]));
    free(x);
    dataset_destroy(unlabelled);
}

static void a_fraction_is_split_off_by_the_seed(void **state)
{
    struct fixture *f = *state;
    char text[4000] = "";
    float train[90], validation[10], again[10];
    int seen[100] = {0};
    for (int i = 0; i < 100; i++)
        sprintf(text + strlen(text), "%d,%d\n", i, i);
    f->job.model.loss = JOB_LOSS_MSE;
    f->job.data.validation_fraction = 0.1;
    f->job.data.standardize = 1;
    use_text(f, JOB_DATA_CSV, text);
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 90);
    assert_int_equal(dataset_rows(f->set.validation), 10);
    free(read_all(f->set.train, NULL, train));
    free(read_all(f->set.validation, NULL, validation));
    double sum = 0;
    for (int i = 0; i < 90; i++) {
        seen[(int)train[i]]++;
        sum += train[i];
    }
    for (int i = 0; i < 10; i++)
        seen[(int)validation[i]]++;
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
    assert_true(fabs(f->set.transform.mean[0] - sum / 90) < 1e-12); /* of the rows that are left */
    load_ok(f);
    free(read_all(f->set.validation, NULL, again));
    assert_memory_equal(again, validation, sizeof again);
    f->job.seed = 2;
    load_ok(f);
    free(read_all(f->set.validation, NULL, again));
    assert_memory_not_equal(again, validation, sizeof again);
    f->job.data.validation_fraction = 0.999;
    load_fails(f, STATUS_RANGE, "data.validation.fraction", "leaves none", NULL);
    f->job.data.validation_fraction = 0.1;
    f->job.data.validation.file = "train.txt";
    load_fails(f, STATUS_INVALID, "not both", NULL);
    f->job.data.validation_fraction = 0;
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.validation), 100);
}

static void paths_are_relative_to_the_data_folder(void **state)
{
    struct fixture *f = *state;
    use_text(f, JOB_DATA_CSV, "1,0\n2,1\n");
    struct dataset_set set;
    assert_int_equal(dataset_load(&set, &f->job, "/nowhere", f->folder, NULL, NULL, 0, &f->err), 0);
    dataset_set_close(&set);
    assert_int_equal(dataset_load(&set, &f->job, "/nowhere", "", NULL, NULL, 0, &f->err), STATUS_IO);
    assert_non_null(strstr(f->err.text, "/nowhere/train.txt"));
    assert_int_equal(dataset_load(&set, &f->job, f->folder, "/nowhere", NULL, NULL, 0, NULL), STATUS_IO);
    f->job.data.kind = JOB_DATA_NONE;
    load_fails(f, STATUS_INVALID, "data.kind", NULL);
}

static void synthetic_clusters_depend_on_their_seed_alone(void **state)
{
    struct fixture *f = *state;
    f->job.data.kind = JOB_DATA_SYNTHETIC;
    f->job.data.synthetic.samples = 60;
    f->job.data.synthetic.features = 5;
    f->job.data.synthetic.classes = 3;
    f->job.data.synthetic.seed = 4;
    load_ok(f);
    assert_int_equal(f->set.transform.classes, 3);
    int32_t labels[60];
    float targets[60];
    float *first = read_all(f->set.train, labels, NULL);
    assert_int_equal(labels[4], 1);
    f->job.seed = 99;
    load_ok(f);
    float *second = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(first, second, 60 * 5 * sizeof(float));
    free(second);
    f->job.data.synthetic.seed = 5;
    load_ok(f);
    second = read_all(f->set.train, NULL, NULL);
    assert_memory_not_equal(first, second, 60 * 5 * sizeof(float));
    free(first);
    free(second);
    f->job.model.loss = JOB_LOSS_MSE;
    load_ok(f);
    free(read_all(f->set.train, NULL, targets));
    assert_true(targets[0] != targets[3]);
    f->job.data.synthetic.samples = 0;
    load_fails(f, STATUS_RANGE, "data.synthetic", NULL);
    f->job.data.synthetic.samples = f->job.data.synthetic.features = INT64_MAX / 3;
    load_fails(f, STATUS_RANGE, "too many", NULL);
}

static void the_transform_comes_back_from_json_with_its_bits(void **state)
{
    struct fixture *f = *state;
    char *names[] = {"malign", "benign \"ok\" \xc3\xa9"};
    use_breast_cancer(f);
    f->job.data.standardize = 1;
    f->job.data.class_names = (struct job_strings){names, 2};
    load_ok(f);
    char *json = dataset_transform_to_json(&f->set.transform);
    struct dataset_transform back;
    assert_non_null(json);
    assert_int_equal(dataset_transform_from_json(&back, json, &f->err), 0);
    assert_int_equal(back.features, 30);
    assert_int_equal(back.classes, 2);
    assert_int_equal(back.index_base, 1);
    assert_true(back.divide == 1);
    assert_memory_equal(back.mean, f->set.transform.mean, 30 * sizeof(double));
    assert_memory_equal(back.deviation, f->set.transform.deviation, 30 * sizeof(double));
    assert_memory_equal(back.class_values, f->set.transform.class_values, 2 * sizeof(double));
    assert_string_equal(back.class_names[1], names[1]);
    char *again = dataset_transform_to_json(&back);
    assert_string_equal(again, json);
    free(again);
    free(json);
    struct dataset *same;
    assert_int_equal(dataset_load_with(&same, &f->job, &f->job.data.train, NULL, NULL, &back, &f->account, &f->err),
                     0);
    int32_t labels[569], same_labels[569];
    float *x = read_all(f->set.train, labels, NULL), *y = read_all(same, same_labels, NULL);
    assert_memory_equal(x, y, 569 * 30 * sizeof *x);
    assert_memory_equal(labels, same_labels, sizeof labels);
    free(x);
    free(y);
    dataset_destroy(same);
    dataset_transform_close(&back);
}

static void a_bad_transform_is_refused(void **state)
{
    struct fixture *f = *state;
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"features\":0,\"index_base\":1,\"classes\":0,\"divide\":1}",
        "{\"features\":2,\"index_base\":2,\"classes\":0,\"divide\":1}",
        "{\"features\":2,\"index_base\":1,\"classes\":-1,\"divide\":1}",
        "{\"features\":2,\"index_base\":1,\"classes\":2,\"divide\":1}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":0}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":\"1\"}",
        "{\"features\":2,\"index_base\":1,\"classes\":2,\"divide\":1,\"class_values\":[1,0]}",
        "{\"features\":2,\"index_base\":1,\"classes\":2,\"divide\":1,\"class_values\":[1]}",
        "{\"features\":2,\"index_base\":1,\"classes\":2,\"divide\":1,\"class_names\":[\"a\",1]}",
        "{\"features\":2,\"index_base\":1,\"classes\":2,\"divide\":1,\"class_names\":[\"a\"]}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":1,\"mean\":[1]}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":1,\"mean\":[1,\"x\"]}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":1,\"deviation\":[1,1]}",
        "{\"features\":2,\"index_base\":1,\"classes\":0,\"divide\":1,\"mean\":[1,1],\"deviation\":[1,0]}",
        "{\"features\":2,\"features\":3,\"index_base\":1,\"classes\":0,\"divide\":1}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dataset_transform transform;
        errbuf_init(&f->err);
        if (dataset_transform_from_json(&transform, bad[i], &f->err) != STATUS_FORMAT)
            fail_msg("taken: %s", bad[i]);
        assert_true(f->err.text[0] != '\0');
    }
}

static void values_that_overflow_by_scaling_are_refused(void **state)
{
    struct fixture *f = *state;
    f->job.model.loss = JOB_LOSS_MSE;
    f->job.data.scale_divide = 1e-20;
    use_text(f, JOB_DATA_CSV, "1,2,0\n1,1e30,0\n");
    load_fails(f, STATUS_RANGE, "train.txt: line 2: feature 2", "too large", NULL);
    use_text(f, JOB_DATA_LIBSVM, "1 1:1\n0 3:1e30\n");
    load_fails(f, STATUS_RANGE, "train.txt: line 2: feature 3", "too large", NULL);
}

/* A version 1.0 .npy file of a C-order array. */
static void put_npy(struct fixture *f, const char *name, const char *dtype, const char *shape, const void *data,
                    size_t bytes)
{
    char out[1024];
    memset(out, ' ', 128);
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10); /* 0x76 + 10 = 128 bytes of header */
    int used = sprintf(out + 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", dtype, shape);
    out[10 + used] = ' ';
    out[127] = '\n';
    memcpy(out + 128, data, bytes);
    put_file(f, name, out, 128 + bytes);
}

static void npy_arrays_are_read_whatever_their_type(void **state)
{
    struct fixture *f = *state;
    static const float features[] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int64_t labels[] = {5, 3};
    static const uint8_t bytes[] = {0, 51, 255};
    int32_t classes[3];
    put_npy(f, "x.npy", "<f4", "(2, 2, 2)", features, sizeof features);
    put_npy(f, "y.npy", "<i8", "(2,)", labels, sizeof labels);
    f->job.data.kind = JOB_DATA_NPY;
    f->job.data.train.features = "x.npy";
    f->job.data.train.labels = "y.npy";
    load_ok(f);
    assert_int_equal(dataset_features(f->set.train), 4);
    float *x = read_all(f->set.train, classes, NULL);
    assert_memory_equal(x, features, sizeof features);
    assert_int_equal(classes[0], 1);
    assert_non_null(strstr(f->note, "labels 3, 5 become classes 0..1"));
    free(x);

    put_npy(f, "x.npy", "|u1", "(3,)", bytes, sizeof bytes);
    load_fails(f, STATUS_SHAPE, "y.npy: 2 labels for 3 rows", NULL);
    put_npy(f, "y.npy", "<f8", "(3, 1)", (double[]){0, 1, 1}, 24);
    f->job.data.scale_divide = 255;
    load_ok(f);
    assert_int_equal(f->account.bytes[ACCOUNT_DATA], 3 + 3 * 4); /* bytes stay bytes */
    x = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(x, ((float[]){0, 0.2f, 1}), 12);
    free(x);
    put_npy(f, "y.npy", "<f8", "(3, 1)", (double[]){0, NAN, 1}, 24);
    load_fails(f, STATUS_FORMAT, "y.npy: row 2", "not a finite label", NULL);
    put_npy(f, "y.npy", "<f8", "(3, 1)", (double[]){0, 1.5, 1}, 24);
    load_fails(f, STATUS_RANGE, "y.npy: row 2: label 1.5 is not a whole number", NULL);
    put_npy(f, "y.npy", "<f8", "(1, 3)", (double[]){0, 1, 1}, 24);
    load_fails(f, STATUS_SHAPE, "y.npy: 3 numbers a row", NULL);
    put_npy(f, "x.npy", "<f4", "(2, 2)", (float[]){1, 2, INFINITY, 4}, 16);
    load_fails(f, STATUS_FORMAT, "x.npy: row 2, column 1 (from 1): inf", NULL);
    put_npy(f, "x.npy", "<f4", "(2, 2)", features, 12);
    load_fails(f, STATUS_FORMAT, "x.npy", NULL);
    f->job.data.train.labels = "";
    load_fails(f, STATUS_INVALID, "no labels file", NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(standardised_columns_have_mean_0_and_deviation_1),
        TEST(constant_columns_become_zero),
        TEST(bytes_are_standardised_after_division),
        TEST(a_fraction_is_split_off_by_the_seed),
        TEST(paths_are_relative_to_the_data_folder),
        TEST(synthetic_clusters_depend_on_their_seed_alone),
        TEST(the_transform_comes_back_from_json_with_its_bits),
        TEST(a_bad_transform_is_refused),
        TEST(npy_arrays_are_read_whatever_their_type),
        TEST(values_that_overflow_by_scaling_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
