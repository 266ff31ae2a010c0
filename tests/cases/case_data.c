#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "tests/cases/case_data.h"

static gzFile open_file(const char *path, const char *package)
{
    gzFile file = gzopen(path, "rb"); /* reads plain files too */
    if (!file)
        fail_msg("%s: not there, install %s", path, package);
    return file;
}

static void take(struct reference_data *data, int64_t rows, int64_t features, int64_t outputs)
{
    *data = (struct reference_data){.rows = rows, .features = features, .outputs = outputs};
    data->x = calloc((size_t)(rows * features), sizeof(float));
    data->labels = calloc((size_t)rows, sizeof(int32_t));
    assert_non_null(data->x);
    assert_non_null(data->labels);
}

void case_data_free(struct reference_data *data)
{
    free((void *)data->x);
    free((void *)data->labels);
}

static void read_idx(gzFile file, unsigned char *bytes, int64_t header, int64_t count)
{
    assert_int_equal(gzread(file, bytes, (unsigned)header), header);
    assert_int_equal(gzread(file, bytes, (unsigned)count), count);
    gzclose(file);
}

void case_data_fashion(struct reference_data *data, int test_part)
{
    const char *part = test_part ? "t10k" : "train", *folder = "/usr/share/datasets/fashion-mnist";
    int64_t rows = test_part ? 10000 : 60000;
    char path[256];
    take(data, rows, 784, 10);
    float *x = (float *)data->x;
    int32_t *labels = (int32_t *)data->labels;
    unsigned char *bytes = malloc((size_t)rows * 784);
    assert_non_null(bytes);
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte.gz", folder, part);
    read_idx(open_file(path, "dataset-fashion-mnist"), bytes, 16, rows * 784);
    for (int64_t i = 0; i < rows * 784; i++)
        x[i] = (float)bytes[i] / 255.0f;
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte.gz", folder, part);
    read_idx(open_file(path, "dataset-fashion-mnist"), bytes, 8, rows);
    for (int64_t i = 0; i < rows; i++)
        labels[i] = bytes[i];
    free(bytes);
}

void case_data_heart_scale(struct reference_data *data)
{
    gzFile file = open_file("/usr/share/doc/liblinear-tools/examples/heart_scale", "liblinear-tools");
    char line[1024];
    take(data, 270, 13, 2);
    for (int64_t r = 0; r < data->rows; r++) {
        assert_non_null(gzgets(file, line, sizeof line));
        char *at;
        ((int32_t *)data->labels)[r] = strtod(line, &at) > 0;
        for (char *end;; at = end) {
            long index = strtol(at, &end, 10);
            if (end == at || *end != ':')
                break;
            ((float *)data->x)[r * 13 + index - 1] = strtof(end + 1, &end);
        }
    }
    gzclose(file);
}

/* One of scikit-learn's files: numbers with commas, the class last. */
static void read_csv(struct reference_data *data, const char *name, int header_lines, float divide)
{
    char path[256], line[2048];
    snprintf(path, sizeof path, "/usr/lib/python3/dist-packages/sklearn/datasets/data/%s", name);
    gzFile file = open_file(path, "python3-sklearn");
    for (int i = 0; i < header_lines; i++)
        assert_non_null(gzgets(file, line, sizeof line));
    for (int64_t r = 0; r < data->rows; r++) {
        assert_non_null(gzgets(file, line, sizeof line));
        char *at = line;
        for (int64_t f = 0; f < data->features; f++) {
            ((float *)data->x)[r * data->features + f] = strtof(at, &at) / divide;
            assert_int_equal(*at++, ',');
        }
        ((int32_t *)data->labels)[r] = (int32_t)strtod(at, NULL);
    }
    gzclose(file);
}

void case_data_iris(struct reference_data *data)
{
    take(data, 150, 4, 3);
    read_csv(data, "iris.csv", 1, 1);
}

void case_data_digits(struct reference_data *data)
{
    take(data, 1797, 64, 10);
    read_csv(data, "digits.csv.gz", 0, 16);
}

void case_data_breast_cancer(struct reference_data *data)
{
    take(data, 569, 30, 2);
    read_csv(data, "breast_cancer.csv", 1, 1);
    float *x = (float *)data->x;
    for (int64_t f = 0; f < data->features; f++) {
        double mean = 0, square = 0;
        for (int64_t r = 0; r < data->rows; r++)
            mean += x[r * data->features + f] / (double)data->rows;
        for (int64_t r = 0; r < data->rows; r++)
            square += pow(x[r * data->features + f] - mean, 2) / (double)data->rows;
        for (int64_t r = 0; r < data->rows; r++)
            x[r * data->features + f] = (float)((x[r * data->features + f] - mean) / sqrt(square));
    }
}
