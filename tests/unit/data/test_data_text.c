/* csv and libsvm beyond the named cases. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "fixture.h"

static void csv_reads_quotes_crlf_and_blank_lines(void **state)
{
    struct fixture *f = *state;
    f->job.model.loss = JOB_LOSS_MSE;
    use_text(f, JOB_DATA_CSV, "\"1\", 2,\"3.5\"\r\n\r\n4,5,6\r\n \n7,8,9");
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 3);
    assert_int_equal(dataset_features(f->set.train), 2);
    float targets[3];
    float *x = read_all(f->set.train, NULL, targets);
    const float expected_x[] = {1, 2, 4, 5, 7, 8}, expected_targets[] = {3.5f, 6, 9};
    assert_memory_equal(x, expected_x, sizeof expected_x);
    assert_memory_equal(targets, expected_targets, sizeof expected_targets);
    free(x);
}

static void csv_label_may_be_any_column(void **state)
{
    struct fixture *f = *state;
    float targets[2];
    f->job.model.loss = JOB_LOSS_MSE;
    use_text(f, JOB_DATA_CSV, "1,2,3\n4,5,6\n");
    for (int64_t column = -3; column <= 2; column++) {
        f->job.data.label_column = column;
        load_ok(f);
        free(read_all(f->set.train, NULL, targets));
        assert_true(targets[0] == (float)((column + 3) % 3 + 1));
    }
    f->job.data.label_column = 3;
    load_fails(f, STATUS_RANGE, "train.txt", "label_column 3", "3 columns", NULL);
    f->job.data.label_column = -4;
    load_fails(f, STATUS_RANGE, "label_column -4", NULL);
}

static void csv_labels_may_be_text(void **state)
{
    struct fixture *f = *state;
    int32_t labels[4];
    use_text(f, JOB_DATA_CSV, "1,dog\n2,\"cat, big\"\n3,dog\n4,7\n");
    put_text(f, "test.txt", "1,dog\n2,7\n");
    f->job.data.test.file = "test.txt";
    load_ok(f);
    free(read_all(f->set.train, labels, NULL));
    assert_memory_equal(labels, ((int32_t[]){2, 1, 2, 0}), sizeof labels);
    assert_non_null(strstr(f->note, "labels 7, cat, big, dog become classes 0..2"));
    assert_null(f->set.transform.class_values);
    assert_string_equal(f->set.transform.class_names[2], "dog");
    free(read_all(f->set.test, labels, NULL));
    assert_int_equal(labels[0], 2);
    assert_int_equal(labels[1], 0);
    put_text(f, "test.txt", "1,dog\n2,cow\n");
    load_fails(f, STATUS_RANGE, "test.txt: line 2", "cow", "cat, big, dog", NULL);
    char *names[] = {"dog", "7", "cat, big"};
    f->job.data.class_names = (struct job_strings){names, 3};
    f->job.data.test.file = "";
    load_ok(f); /* the job says the order */
    free(read_all(f->set.train, labels, NULL));
    assert_memory_equal(labels, ((int32_t[]){0, 2, 0, 1}), sizeof labels);
    f->job.data.class_names.count = 2;
    load_fails(f, STATUS_RANGE, "line 2", "cat, big", NULL);
    f->job.data.class_names.count = 0;
    f->job.model.loss = JOB_LOSS_MSE;
    load_fails(f, STATUS_FORMAT, "line 1, column 2", "\"dog\" is not a number", NULL);
    f->job.model.loss = JOB_LOSS_SOFTMAX_CROSS_ENTROPY;
    use_text(f, JOB_DATA_CSV, "1,dog\n2,c\xff\n");
    load_fails(f, STATUS_RANGE, "line 2", "UTF-8", NULL);
}

static void csv_structure_errors_have_their_place(void **state)
{
    struct fixture *f = *state;
    use_text(f, JOB_DATA_CSV, "1,2,0\n1,\"2,1\n");
    load_fails(f, STATUS_FORMAT, "line 2, column 2", "not closed", NULL);
    use_text(f, JOB_DATA_CSV, "1,2,0\n1,\"2\"x,1\n");
    load_fails(f, STATUS_FORMAT, "line 2, column 2", "after a closing quote", NULL);
    use_text(f, JOB_DATA_CSV, "1;2;0\n1;2;1\n");
    load_fails(f, STATUS_FORMAT, "line 1", "one cell", "commas", NULL);
    use_text(f, JOB_DATA_CSV, "");
    load_fails(f, STATUS_FORMAT, "no rows", NULL);
    f->job.data.header_lines = 5;
    use_text(f, JOB_DATA_CSV, "a,b\n1,2\n");
    load_fails(f, STATUS_FORMAT, "no rows", "header_lines 5", NULL);
    f->job.data.header_lines = 0;
    use_text(f, JOB_DATA_CSV,
             "\xff\xfe"
             "1,2\n");
    load_fails(f, STATUS_FORMAT, "UTF-16", NULL);
    use_text(f, JOB_DATA_CSV, "1,2,0\n1,2,\n");
    load_fails(f, STATUS_FORMAT, "line 2, column 3 of 3", "empty label", NULL);
    f->job.data.train.file = "absent.csv";
    load_fails(f, STATUS_IO, "absent.csv", "No such file", NULL);
    f->job.data.train.file = f->folder;
    load_fails(f, STATUS_IO, "a folder", NULL);
    f->job.data.train.file = "";
    load_fails(f, STATUS_INVALID, "data.train", "csv", NULL);
}

static void csv_empty_cells_may_be_zero_or_the_mean(void **state)
{
    struct fixture *f = *state;
    f->job.model.loss = JOB_LOSS_MSE;
    use_text(f, JOB_DATA_CSV, "1,,0\n3,4,0\n,8,0\n");
    put_text(f, "test.txt", ",,0\n");
    f->job.data.test.file = "test.txt";
    load_fails(f, STATUS_FORMAT, "line 1, column 2 of 3", "empty cell", NULL);
    f->job.data.missing = JOB_MISSING_ZERO;
    load_ok(f);
    float *x = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(x, ((float[]){1, 0, 3, 4, 0, 8}), 24);
    free(x);
    f->job.data.missing = JOB_MISSING_MEAN;
    load_ok(f);
    x = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(x, ((float[]){1, 6, 3, 4, 2, 8}), 24);
    free(x);
    x = read_all(f->set.test, NULL, NULL);
    assert_memory_equal(x, ((float[]){2, 6}), 8);
    free(x);
    f->job.data.standardize = 1;
    load_ok(f);
    x = read_all(f->set.test, NULL, NULL);
    assert_memory_equal(x, ((float[]){0, 0}), 8);
    free(x);
    use_text(f, JOB_DATA_CSV, "1,,0\n3,,0\n");
    load_fails(f, STATUS_FORMAT, "feature 2", "empty in every training row", NULL);
    use_text(f, JOB_DATA_CSV, "1,nan,0\n3,,0\n");
    load_fails(f, STATUS_FORMAT, "\"nan\" is not a number", NULL); /* only empty cells are missing */
}

static void libsvm_refuses_what_it_cannot_mean(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *text, *says;
    } bad[] = {{"1 1:1\n-1 5:2.5 2:-5.2\n", "line 2: index 2 after 5"},
               {"1 1:1\n-1 2:1 2:1\n", "index 2 after 2"},
               {"python 2:2.5\n", "line 1: \"python\" as a label"},
               {"1,0 2:2.5\n", "\"1,0\" as a label"},
               {" 2:3.5 11:26\n", "\"2:3.5\" as a label"},
               {"1 a:3\n", "\"a:3\" is not index:value"},
               {"1 3\n", "\"3\" is not index:value"},
               {"1 :3\n", "\":3\""},
               {"1 -1:3\n", "\"-1:3\""},
               {"1 99999999999999999999:3\n", "index"},
               {"1 2147483648:3\n", "below 2147483647"},
               {"1 3:\n", "\"3:\" has no value"},
               {"1 3:nan\n", "\"3:nan\" is not a number"},
               {"1 3:0x1\n", "is not a number"},
               {"1 3:1e99\n", "too large"},
               {"nan 3:1\n", "\"nan\" as a label"},
               {"1 qid:x 3:1\n", "qid"},
               {"1\n0\n", "without a feature"},
               {"# nothing\n", "no rows"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        use_text(f, JOB_DATA_LIBSVM, bad[i].text);
        int rc = load(f);
        if (rc == 0 || !strstr(f->err.text, bad[i].says))
            fail_msg("%s gave %d: %s", bad[i].text, rc, f->err.text);
    }
}

static void libsvm_width_may_be_given(void **state)
{
    struct fixture *f = *state;
    f->job.data.features_max = 5;
    use_text(f, JOB_DATA_LIBSVM, "1 1:1\n0 3:1\n");
    load_ok(f);
    assert_int_equal(dataset_features(f->set.train), 5);
    use_text(f, JOB_DATA_LIBSVM, "1 1:1\n0 6:1\n");
    load_fails(f, STATUS_RANGE, "line 2: index 6", "5 features (1..5)", NULL);
}

static void libsvm_standardises_the_zeros_too(void **state)
{
    struct fixture *f = *state;
    f->job.data.standardize = 1;
    use_text(f, JOB_DATA_LIBSVM, "1 1:2 3:5\n0 3:5\n");
    load_ok(f);
    float *x = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(x, ((float[]){1, 0, 0, -1, 0, 0}), 24);
    free(x);
}

static void gzip_text_is_found_by_content(void **state)
{
    struct fixture *f = *state;
    const char text[] = "1 1:1\n0 2:1\n";
    put_gzip(f, "packed.txt", text, sizeof text - 1);
    f->job.data.kind = JOB_DATA_LIBSVM;
    f->job.data.train.file = "packed.txt";
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 2);
    f->job.data.kind = JOB_DATA_CSV;
    free(real_file(DIGITS, "python3-sklearn", NULL));
    f->job.data.train.file = DIGITS;
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 1797);
    assert_int_equal(dataset_features(f->set.train), 64);
    assert_int_equal(f->set.transform.classes, 10);
    assert_string_equal(f->note, "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(csv_reads_quotes_crlf_and_blank_lines),
        TEST(csv_label_may_be_any_column),
        TEST(csv_labels_may_be_text),
        TEST(csv_structure_errors_have_their_place),
        TEST(csv_empty_cells_may_be_zero_or_the_mean),
        TEST(libsvm_refuses_what_it_cannot_mean),
        TEST(libsvm_width_may_be_given),
        TEST(libsvm_standardises_the_zeros_too),
        TEST(gzip_text_is_found_by_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
