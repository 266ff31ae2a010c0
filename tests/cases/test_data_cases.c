/* Cases D01 to D06 and the sampler's part of N02: data files as users have them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zlib.h>

#include <cmocka.h>

#include "base/status.h"
#include "unit/data/fixture.h"
#include "worker/data/sampler.h"

enum { IMAGES_BYTES = 47040016 };

static void use_images(struct fixture *f, const char *images)
{
    f->job.data.kind = JOB_DATA_IDX;
    f->job.data.train.images = (char *)images;
    f->job.data.train.labels = FASHION "/train-labels-idx1-ubyte.gz";
}

static void d01_an_impossible_header_allocates_nothing(void **state)
{
    struct fixture *f = *state;
    static const unsigned char header[] = {0, 0, 8, 3, 255, 255, 255, 255, 0, 0, 0, 28, 0, 0, 0, 28};
    static const unsigned char overflow[] = {0,   0,   8,   4,   255, 255, 255, 255, 255, 255,
                                             255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    struct rusage before, after;
    free(real_file(FASHION "/train-labels-idx1-ubyte.gz", "dataset-fashion-mnist", NULL));
    getrusage(RUSAGE_SELF, &before);
    put_file(f, "images", header, sizeof header);
    use_images(f, "images");
    load_fails(f, STATUS_FORMAT, "images", "needs 3367254359296 bytes", "has 16", NULL);
    put_gzip(f, "images", header, sizeof header);
    load_fails(f, STATUS_FORMAT, "images", "claims 3367254359296 bytes", "gzip", NULL);
    put_file(f, "images", overflow, sizeof overflow);
    load_fails(f, STATUS_FORMAT, "images", "claims 4294967295", NULL);
    getrusage(RUSAGE_SELF, &after);
    assert_in_range(after.ru_maxrss - before.ru_maxrss, 0, 100 * 1024);
}

static void d01_gzip_is_found_by_content(void **state)
{
    struct fixture *f = *state;
    size_t bytes;
    char *packed = real_file(FASHION "/train-images-idx3-ubyte.gz", "dataset-fashion-mnist", &bytes);
    put_file(f, "images-idx3-ubyte", packed, bytes); /* no .gz in its name */
    use_images(f, "images-idx3-ubyte");
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 60000);
    assert_int_equal(dataset_features(f->set.train), 28 * 28);
    assert_int_equal(f->set.transform.classes, 10);
    assert_true(f->set.transform.divide == 255);
    assert_int_equal(f->account.bytes[ACCOUNT_DATA], 60000 * 784 + 60000 * 4);

    packed[bytes - 6] ^= 1; /* of the CRC-32 */
    put_file(f, "images-idx3-ubyte", packed, bytes);
    load_fails(f, STATUS_CHECKSUM, "images-idx3-ubyte", "checksum", NULL);
    packed[bytes - 6] ^= 1;
    packed[bytes - 2] ^= 1; /* of the length */
    put_file(f, "images-idx3-ubyte", packed, bytes);
    load_fails(f, STATUS_CHECKSUM, "images-idx3-ubyte", "checksum", NULL);
    packed[bytes - 2] ^= 1;
    packed[bytes - 40] ^= 1; /* of the data */
    put_file(f, "images-idx3-ubyte", packed, bytes);
    load_fails(f, STATUS_CHECKSUM, "images-idx3-ubyte", "checksum", NULL);
    packed[bytes - 40] ^= 1;
    put_file(f, "images-idx3-ubyte", packed, bytes / 2);
    load_fails(f, STATUS_FORMAT, "images-idx3-ubyte", "cut short", NULL);
    put_file(f, "images-idx3-ubyte", packed, bytes - 4);
    load_fails(f, STATUS_FORMAT, "images-idx3-ubyte", "cut short", NULL);
    char *longer = malloc(bytes + 1);
    memcpy(longer, packed, bytes);
    longer[bytes] = 7;
    put_file(f, "images-idx3-ubyte", longer, bytes + 1);
    load_fails(f, STATUS_FORMAT, "images-idx3-ubyte", "1 bytes too many", NULL);
    free(longer);
    free(packed);
}

static void d01_plain_files_are_measured_before_use(void **state)
{
    struct fixture *f = *state;
    unsigned char *plain = malloc(IMAGES_BYTES + 1);
    free(real_file(FASHION "/train-images-idx3-ubyte.gz", "dataset-fashion-mnist", NULL));
    gzFile file = gzopen(FASHION "/train-images-idx3-ubyte.gz", "rb");
    assert_int_equal(gzread(file, plain, IMAGES_BYTES + 1), IMAGES_BYTES);
    gzclose(file);
    plain[IMAGES_BYTES] = 0;
    use_images(f, "images");
    put_file(f, "images", plain, 9912422);
    load_fails(f, STATUS_FORMAT, "images", "needs 47040016 bytes", "has 9912422", NULL);
    put_file(f, "images", plain, 0);
    load_fails(f, STATUS_FORMAT, "images", "header incomplete: 0 of 4", NULL);
    put_file(f, "images", plain, 7);
    load_fails(f, STATUS_FORMAT, "images", "header incomplete: 7 of 16", NULL);
    put_file(f, "images", plain, IMAGES_BYTES + 1);
    load_fails(f, STATUS_FORMAT, "images", "1 bytes too many", "needs 47040016", "has 47040017", NULL);
    put_file(f, "images", plain, IMAGES_BYTES);
    load_ok(f);
    float *x = malloc(784 * sizeof *x);
    int32_t label;
    dataset_read(f->set.train, &(int64_t){59999}, 1, x, &label, NULL);
    for (int j = 0; j < 784; j++)
        assert_true(x[j] == (float)(plain[16 + 59999 * 784 + j] / 255.0));
    assert_int_equal(label, 5);
    free(x);

    plain[2] = 0x0d;
    put_file(f, "images", plain, IMAGES_BYTES);
    load_fails(f, STATUS_FORMAT, "type 0x0d", NULL);
    plain[0] = 0x50;
    put_file(f, "images", plain, 100);
    load_fails(f, STATUS_FORMAT, "magic number 0x50000d03", NULL);
    free(plain);
    f->job.data.train.images = FASHION "/train-labels-idx1-ubyte.gz";
    load_fails(f, STATUS_SHAPE, "is it the labels file", NULL);
    f->job.data.train.images = FASHION "/t10k-images-idx3-ubyte.gz";
    load_fails(f, STATUS_SHAPE, "60000 labels for 10000 images", NULL);
    f->job.data.train.labels = FASHION "/t10k-images-idx3-ubyte.gz";
    load_fails(f, STATUS_SHAPE, "is it the images file", NULL);
}

static void use_heart_scale(struct fixture *f)
{
    free(real_file(HEART_SCALE, "liblinear-tools", NULL));
    f->job.data.kind = JOB_DATA_LIBSVM;
    f->job.data.train.file = HEART_SCALE;
}

static void d02_heart_scale_has_13_features(void **state)
{
    struct fixture *f = *state;
    use_heart_scale(f);
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 270);
    assert_int_equal(dataset_features(f->set.train), 13);
    int32_t labels[270];
    float *x = read_all(f->set.train, labels, NULL);
    int positive = 0, values = 0;
    for (int r = 0; r < 270; r++)
        positive += labels[r];
    for (int i = 0; i < 270 * 13; i++)
        values += x[i] != 0;
    assert_int_equal(positive, 120);
    assert_int_equal(values, 3378);
    free(x);

    f->job.data.test.file = "test.txt";
    put_text(f, "test.txt", "+1 1:1 10:2\n");
    load_ok(f); /* narrow: padded */
    assert_int_equal(dataset_features(f->set.test), 13);
    put_text(f, "test.txt", "+1 1:1 10:2\n-1 14:1\n");
    load_fails(f, STATUS_RANGE, "test.txt: line 2: index 14", "13 features", NULL);
}

static void d02_index_base_is_said_not_guessed(void **state)
{
    struct fixture *f = *state;
    use_text(f, JOB_DATA_LIBSVM, "+1 0:1 3:2\n-1 1:1\n");
    load_fails(f, STATUS_RANGE, "train.txt: line 1: index 0", "data.index_base: 0", NULL);
    f->job.data.index_base = 0;
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 2);
    assert_int_equal(dataset_features(f->set.train), 4);
    float *x = read_all(f->set.train, NULL, NULL);
    assert_memory_equal(x, ((float[]){1, 0, 0, 2, 0, 1, 0, 0}), 32);
    free(x);
    /* predict takes the base of the model, whatever its job says */
    struct dataset *other;
    struct job job = f->job;
    job.data.index_base = 1;
    assert_int_equal(
        dataset_load_with(&other, &job, &f->job.data.train, f->folder, "", &f->set.transform, &f->account, &f->err),
        0);
    assert_int_equal(dataset_features(other), 4);
    dataset_destroy(other);
}

static void check_svmlight(struct fixture *f)
{
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 6);
    assert_int_equal(dataset_features(f->set.train), 21);
    float labels[6];
    float *x = read_all(f->set.train, NULL, labels);
    assert_memory_equal(labels, ((float[]){1, 2, 3, 4, 1, 2}), sizeof labels);
    static const struct {
        int row, column;
        double value;
    } there[] = {{0, 2, 2.5}, {0, 10, -5.2}, {0, 15, 1.5},          {1, 5, 1},
                 {1, 12, -3}, {2, 20, 27},   {3, 1, 12345678901.23}};
    int values = 0;
    for (size_t i = 0; i < sizeof there / sizeof there[0]; i++)
        assert_true(x[there[i].row * 21 + there[i].column] == (float)there[i].value);
    for (int i = 0; i < 6 * 21; i++)
        values += x[i] != 0;
    assert_int_equal(values, 7); /* the eighth is the stored zero */
    free(x);
}

static void d03_comments_tabs_blank_lines_and_bare_labels(void **state)
{
    struct fixture *f = *state;
    size_t bytes, used = 0;
    char *text = real_file(SVMLIGHT, "python3-sklearn", &bytes);
    f->job.model.loss = JOB_LOSS_MSE; /* targets keep the file's labels */
    f->job.data.kind = JOB_DATA_LIBSVM;
    f->job.data.train.file = SVMLIGHT;
    check_svmlight(f);

    char *changed = malloc(3 * bytes + 8);
    for (size_t i = 0; i < bytes; i++) { /* CRLF, and a blank line after each */
        if (text[i] == '\n') {
            memcpy(changed + used, "\r\n \r\n", 5);
            used += 5;
        } else {
            changed[used++] = text[i];
        }
    }
    put_file(f, "changed", changed, used);
    f->job.data.train.file = "changed";
    check_svmlight(f);
    put_file(f, "changed", text, bytes - 1); /* no newline at the end */
    check_svmlight(f);
    put_text(f, "changed", "");
    load_fails(f, STATUS_FORMAT, "changed: no rows", NULL);
    put_text(f, "changed", "+1 qid:3 1:1\n-1 qid:4 2:1\n");
    load_ok(f);
    assert_int_equal(dataset_features(f->set.train), 2);
    assert_non_null(strstr(f->note, "2 qid entries skipped"));
    free(changed);
    free(text);
}

static void d04_labels_are_mapped_and_said(void **state)
{
    struct fixture *f = *state;
    char text[400] = "";
    int32_t labels[10];
    for (int k = 10; k >= 1; k--)
        sprintf(text + strlen(text), "%d 1:%d\n", k, k);
    use_text(f, JOB_DATA_LIBSVM, text);
    load_ok(f);
    free(read_all(f->set.train, labels, NULL));
    for (int r = 0; r < 10; r++)
        assert_int_equal(labels[r], 9 - r);
    assert_int_equal(f->set.transform.classes, 10);
    assert_non_null(strstr(f->note, "labels 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 become classes 0..9"));
    /* the map goes into the model file and back */
    char *json = dataset_transform_to_json(&f->set.transform);
    struct dataset_transform back;
    assert_int_equal(dataset_transform_from_json(&back, json, &f->err), 0);
    assert_memory_equal(back.class_values, f->set.transform.class_values, 10 * sizeof(double));
    dataset_transform_close(&back);
    free(json);

    f->job.data.classes = 10;
    load_fails(f, STATUS_RANGE, "train.txt: line 1: label 10 is outside 0..9", "data.classes: 10", NULL);
    use_text(f, JOB_DATA_LIBSVM, "+1 1:1\n-1 1:2\n");
    load_fails(f, STATUS_RANGE, "train.txt: line 2: label -1 is outside 0..9", NULL);
    f->job.data.classes = 2;
    load_fails(f, STATUS_RANGE, "train.txt: line 2: label -1 is outside 0..1", NULL);
    f->job.data.classes = 0;
    load_ok(f);
    assert_non_null(strstr(f->note, "labels -1, 1 become classes 0..1"));
    use_text(f, JOB_DATA_LIBSVM, "1 1:1\n2.5 1:2\n");
    load_fails(f, STATUS_RANGE, "train.txt: line 2: label 2.5 is not a whole number", NULL);
    use_text(f, JOB_DATA_LIBSVM, "0 1:1\n1 1:2\n2 1:3\n");
    load_ok(f);
    assert_string_equal(f->note, "");
    f->job.data.test.file = "test.txt";
    put_text(f, "test.txt", "0 1:1\n3 1:1\n");
    load_fails(f, STATUS_RANGE, "test.txt: line 2: label 3 is none of the allowed: 0, 1, 2", NULL);
    f->job.model.outputs = 2;
    load_fails(f, STATUS_RANGE, "model.outputs: 2 for 3 classes", NULL);
}

static void d04_heart_scale_works_in_the_binary_model(void **state)
{
    struct fixture *f = *state;
    float targets[270];
    int positive = 0;
    use_heart_scale(f);
    f->job.model.loss = JOB_LOSS_BINARY_CROSS_ENTROPY;
    load_ok(f);
    free(read_all(f->set.train, NULL, targets));
    for (int r = 0; r < 270; r++) {
        assert_true(targets[r] == 0 || targets[r] == 1);
        positive += targets[r] == 1;
    }
    assert_int_equal(positive, 120);
    use_text(f, JOB_DATA_LIBSVM, "0 1:1\n1 1:2\n2 1:3\n");
    load_fails(f, STATUS_RANGE, "needs two classes, found 3", NULL);
    use_text(f, JOB_DATA_LIBSVM, "1 1:1\n1 1:2\n");
    load_fails(f, STATUS_RANGE, "needs two classes, found 1", NULL);
}

/* iris with `mark` in front, `line_end` for each newline, and `tail` before it. */
static void put_iris(struct fixture *f, const char *mark, const char *tail, const char *line_end)
{
    char *text = real_file(IRIS, "python3-sklearn", NULL);
    char *out = malloc(3 * strlen(text) + 16);
    strcpy(out, mark);
    size_t used = strlen(out);
    for (const char *p = text; *p; p++) {
        if (*p == '\n')
            used += (size_t)sprintf(out + used, "%s%s", tail, line_end);
        else
            out[used++] = *p;
    }
    put_file(f, "iris.csv", out, used);
    f->job.data.kind = JOB_DATA_CSV;
    f->job.data.train.file = "iris.csv";
    f->job.data.header_lines = 1;
    free(out);
    free(text);
}

static void check_iris(struct fixture *f)
{
    int32_t labels[150];
    int count[3] = {0};
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 150);
    assert_int_equal(dataset_features(f->set.train), 4);
    float *x = read_all(f->set.train, labels, NULL);
    for (int r = 0; r < 150; r++)
        count[labels[r]]++;
    assert_memory_equal(count, ((int[]){50, 50, 50}), sizeof count);
    assert_memory_equal(x, ((float[]){5.1f, 3.5f, 1.4f, 0.2f}), 16);
    free(x);
}

static void d05_marks_headers_and_line_ends(void **state)
{
    struct fixture *f = *state;
    put_iris(f, "", "", "\n");
    check_iris(f);
    f->job.data.header_lines = 0;
    load_fails(f, STATUS_FORMAT, "iris.csv: line 1, column 3 of 5", "\"setosa\" is not a number", NULL);
    put_iris(f, "\xEF\xBB\xBF", "", "\n");
    check_iris(f);
    put_iris(f, "", "", "\r\n");
    check_iris(f);
    put_iris(f, "\xEF\xBB\xBF", "", "\r\n");
    check_iris(f);
    put_iris(f, "", ",", "\n");
    load_fails(f, STATUS_FORMAT, "iris.csv: line 2, column 6 of 6", "empty label (a comma too many", NULL);

    char *text = real_file(IRIS, "python3-sklearn", NULL);
    put_file(f, "iris.csv", text, strlen(text) - 1); /* no final newline */
    check_iris(f);
    char *quoted = malloc(strlen(text) + 100);
    sprintf(quoted, "\"sepal, length\",\"a\",\"b\",\"c\",\"kind\"\n%s", strchr(text, '\n') + 1);
    put_text(f, "iris.csv", quoted);
    check_iris(f);
    free(quoted);
    /* one line only with a comma too many */
    char *third = strchr(strchr(strchr(text, '\n') + 1, '\n') + 1, '\n');
    quoted = malloc(strlen(text) + 2);
    sprintf(quoted, "%.*s,%s", (int)(third - text), text, third);
    put_text(f, "iris.csv", quoted);
    load_fails(f, STATUS_FORMAT, "iris.csv: line 3: 6 columns, expected 5 as on line 2", NULL);
    free(quoted);
    free(text);
}

/* boston with cell `column` (from 0) of data row `row` (from 1) replaced; NULL: the cell and its comma removed. */
static void put_boston(struct fixture *f, int row, int column, const char *cell)
{
    char *text = real_file(BOSTON, "python3-sklearn", NULL), *p = text;
    char *out = malloc(strlen(text) + 64);
    for (int line = 1; line < row + 2; line++)
        p = strchr(p, '\n') + 1;
    for (int c = 0; c < column; c++)
        p = strchr(p, ',') + 1;
    sprintf(out, "%.*s%s%s", (int)(p - text), text, cell ? cell : "", strchr(p, ',') + (cell ? 0 : 1));
    put_text(f, "boston.csv", out);
    f->job.data.train.file = "boston.csv";
    free(out);
    free(text);
}

static void d06_ragged_rows_empty_cells_and_two_header_lines(void **state)
{
    struct fixture *f = *state;
    float targets[506];
    double sum = 0, target = 0;
    free(real_file(BOSTON, "python3-sklearn", NULL));
    f->job.model.loss = JOB_LOSS_MSE;
    f->job.data.kind = JOB_DATA_CSV;
    f->job.data.train.file = BOSTON;
    load_fails(f, STATUS_FORMAT, "boston_house_prices.csv: line 1, column 3 of 14", "empty cell", NULL);
    f->job.data.header_lines = 1;
    load_fails(f, STATUS_FORMAT, "boston_house_prices.csv: line 2, column 1 of 14", "\"CRIM\"", NULL);
    f->job.data.header_lines = 2;
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 506);
    assert_int_equal(dataset_features(f->set.train), 13);
    float *x = read_all(f->set.train, NULL, targets);
    for (int i = 0; i < 506 * 13; i++)
        sum += x[i];
    for (int r = 0; r < 506; r++)
        target += targets[r];
    free(x);
    assert_true(fabs(target / 506 - 22.53280632) < 1e-6);
    assert_true(fabs(sum - 460946.555) < 0.01); /* of values rounded to float32 */

    put_boston(f, 100, 2, NULL);
    load_fails(f, STATUS_FORMAT, "boston.csv: line 102: 13 columns, expected 14 as on line 3", NULL);
    static const char *const bad[] = {"", "NaN", "inf", "0x10", "1e400", "12abc", "\"1,5\""};
    static const char *const said[] = {"\"\" is an empty cell", "\"NaN\" is not",         "\"inf\" is not",
                                       "\"0x10\" is not",       "\"1e400\" is too large", "\"12abc\" is not",
                                       "\"1,5\" is not"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put_boston(f, 100, 2, bad[i]);
        load_fails(f, STATUS_FORMAT, "boston.csv: line 102, column 3 of 14", said[i], NULL);
    }
    put_boston(f, 100, 2, "");
    f->job.data.missing = JOB_MISSING_MEAN; /* only when asked for */
    load_ok(f);
    assert_int_equal(dataset_rows(f->set.train), 506);
}

/* Every row exactly once over an epoch of all shares. */
static void check_shares(int64_t rows, int64_t batch, int world)
{
    struct sampler *sampler = sampler_create(rows, batch, 1, JOB_LAST_SHORT, 5);
    int64_t indices[64], steps = sampler_steps_per_epoch(sampler);
    int *seen = calloc((size_t)rows, sizeof *seen);
    for (int64_t step = 1; step <= steps; step++)
        for (int rank = 0; rank < world; rank++) {
            int64_t count = sampler_share(sampler, step, rank, world, 0, 1, indices, NULL);
            assert_in_range(count, sampler_batch(sampler, step) / world, sampler_batch(sampler, step) / world + 1);
            for (int64_t i = 0; i < count; i++)
                seen[indices[i]]++;
        }
    for (int64_t r = 0; r < rows; r++)
        assert_int_equal(seen[r], 1);
    free(seen);
    sampler_destroy(sampler);
}

static void n02_unequal_shares_use_each_sample_once(void **state)
{
    (void)state;
    struct sampler *sampler = sampler_create(270, 32, 1, JOB_LAST_SHORT, 5);
    assert_int_equal(sampler_steps_per_epoch(sampler), 9);
    assert_int_equal(sampler_batch(sampler, 9), 14);
    const int64_t last[] = {5, 5, 4};
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(sampler_share(sampler, 9, rank, 3, 0, 1, NULL, NULL), last[rank]);
    sampler_destroy(sampler);
    sampler = sampler_create(3, 4, 1, JOB_LAST_SHORT, 5); /* three samples for four workers: one idles */
    assert_int_equal(sampler_share(sampler, 1, 3, 4, 0, 1, NULL, NULL), 0);
    sampler_destroy(sampler);
    for (int world = 1; world <= 8; world++) {
        check_shares(270, 32, world);
        check_shares(5, 1, world);
        check_shares(3, 4, world);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(d01_an_impossible_header_allocates_nothing), /* first: it looks at the peak of resident memory */
        TEST(d01_gzip_is_found_by_content),
        TEST(d01_plain_files_are_measured_before_use),
        TEST(d02_heart_scale_has_13_features),
        TEST(d02_index_base_is_said_not_guessed),
        TEST(d03_comments_tabs_blank_lines_and_bare_labels),
        TEST(d04_labels_are_mapped_and_said),
        TEST(d04_heart_scale_works_in_the_binary_model),
        TEST(d05_marks_headers_and_line_ends),
        TEST(d06_ragged_rows_empty_cells_and_two_header_lines),
        TEST(n02_unequal_shares_use_each_sample_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
