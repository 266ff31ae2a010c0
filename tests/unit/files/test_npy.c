#include "base/errbuf.h"
#include "base/status.h"
#include "files/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* A file of version `major` with this header text; owned by the caller. */
static unsigned char *make_file(int major, const char *header, const void *data, size_t data_bytes, size_t *bytes)
{
    size_t length = strlen(header), begin = major == 1 ? 10 : 12;
    unsigned char *file = calloc(1, begin + length + data_bytes);
    assert_non_null(file);
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)major;
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + begin, header, length);
    if (data_bytes)
        memcpy(file + begin + length, data, data_bytes);
    *bytes = begin + length + data_bytes;
    return file;
}

static const float values[6] = {1, 2, 3, -4, 5.5f, 6};

static void check_2_by_3(int major, const char *header)
{
    size_t bytes;
    struct npy *npy;
    struct errbuf err;
    unsigned char *file = make_file(major, header, values, sizeof values, &bytes);
    assert_int_equal(npy_parse(&npy, file, bytes, &err), STATUS_OK);
    const struct npy_shape *shape = npy_shape(npy);
    assert_int_equal(shape->dtype, NPY_F4);
    assert_int_equal(shape->dims, 2);
    assert_int_equal(shape->rows, 2);
    assert_int_equal(shape->row_elements, 3);
    float out[6];
    assert_int_equal(npy_read_f32(npy, 0, 2, out), 0);
    assert_memory_equal(out, values, sizeof values);
    assert_int_equal(npy_read_f32(npy, 1, 1, out), 0);
    assert_memory_equal(out, values + 3, 12);
    assert_int_equal(npy_read_f32(npy, 2, 0, out), 0);
    assert_int_equal(npy_read_f32(npy, 1, 2, out), STATUS_RANGE);
    assert_int_equal(npy_read_f32(npy, -1, 1, out), STATUS_RANGE);
    assert_int_equal(npy_read_f64(npy, 0, INT64_MAX, NULL), STATUS_RANGE);
    int64_t whole[3];
    assert_int_equal(npy_read_i64(npy, 0, 1, whole), 0);
    assert_int_equal(whole[2], 3);
    assert_int_equal(npy_read_i64(npy, 1, 1, whole), STATUS_RANGE); /* 5.5 */
    npy_close(npy);
    free(file);
}

static void rows_of_versions_1_and_2_are_read(void **state)
{
    (void)state;
    const char *header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n";
    check_2_by_3(1, header);
    check_2_by_3(2, header);
    check_2_by_3(1, "{\"shape\":(2L,3),\"fortran_order\":False,\"descr\":\"<f4\"}");
}

static void check_type(const char *descr, enum npy_dtype dtype, const void *data, size_t size, double wanted)
{
    char header[128];
    size_t bytes;
    struct npy *npy;
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (), }\n", descr);
    unsigned char *file = make_file(1, header, data, size, &bytes);
    assert_int_equal(npy_parse(&npy, file, bytes, NULL), STATUS_OK);
    assert_int_equal(npy_shape(npy)->dtype, dtype);
    assert_string_equal(npy_dtype_name(dtype), descr + 1);
    assert_int_equal(npy_shape(npy)->rows, 1);
    float single;
    double wide;
    int64_t whole;
    assert_int_equal(npy_read_f32(npy, 0, 1, &single), 0);
    assert_true(single == (float)wanted);
    assert_int_equal(npy_read_f64(npy, 0, 1, &wide), 0);
    assert_true(wide == wanted);
    assert_int_equal(npy_read_i64(npy, 0, 1, &whole), 0);
    assert_true((double)whole == wanted);
    assert_memory_equal(npy_data(npy), data, size);
    npy_close(npy);
    free(file);
}

static void every_type_converts(void **state)
{
    (void)state;
    const float f4 = -7;
    const double f8 = 9007199254740992;
    const int8_t i1 = -128;
    const int16_t i2 = -32768;
    const int32_t i4 = INT32_MIN;
    const int64_t i8 = INT64_MIN;
    const uint8_t u1 = 255;
    const uint16_t u2 = 65535;
    const uint32_t u4 = UINT32_MAX;
    const uint64_t u8 = 1ull << 62;
    check_type("<f4", NPY_F4, &f4, 4, -7);
    check_type("<f8", NPY_F8, &f8, 8, 9007199254740992);
    check_type("|i1", NPY_I1, &i1, 1, -128);
    check_type("<i2", NPY_I2, &i2, 2, -32768);
    check_type("<i4", NPY_I4, &i4, 4, INT32_MIN);
    check_type("<i8", NPY_I8, &i8, 8, -0x1p63);
    check_type("|u1", NPY_U1, &u1, 1, 255);
    check_type("<u1", NPY_U1, &u1, 1, 255);
    check_type("<u2", NPY_U2, &u2, 2, 65535);
    check_type("<u4", NPY_U4, &u4, 4, UINT32_MAX);
    check_type("<u8", NPY_U8, &u8, 8, 0x1p62);
}

static void check_not_whole(const char *descr, const void *data)
{
    char header[128];
    size_t bytes;
    struct npy *npy;
    int64_t out;
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (1,), }\n", descr);
    unsigned char *file = make_file(1, header, data, 8, &bytes);
    assert_int_equal(npy_parse(&npy, file, bytes, NULL), STATUS_OK);
    assert_int_equal(npy_read_i64(npy, 0, 1, &out), STATUS_RANGE);
    npy_close(npy);
    free(file);
}

static void numbers_that_are_no_int64_are_out_of_range(void **state)
{
    (void)state;
    const double numbers[] = {NAN, INFINITY, -INFINITY, 0x1p63, -0x1.0000000000001p63, 0.5};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        check_not_whole("<f8", &numbers[i]);
    const uint64_t large = 1ull << 63;
    check_not_whole("<u8", &large);
}

static void check_refused(const char *header, size_t data_bytes, const char *named)
{
    size_t bytes;
    struct npy *npy;
    struct errbuf err;
    errbuf_init(&err);
    unsigned char *file = make_file(1, header, values, data_bytes, &bytes);
    assert_int_equal(npy_parse(&npy, file, bytes, &err), STATUS_FORMAT);
    assert_null(npy);
    if (!strstr(err.text, named))
        fail_msg("\"%s\" does not name \"%s\"", err.text, named);
    free(file);
}

#define HEADER(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static void unsupported_kinds_say_what_they_are(void **state)
{
    (void)state;
    check_refused(HEADER("'>f4'", "False", "(6,)"), 24, "big-endian");
    check_refused(HEADER("'<f4'", "True", "(6,)"), 24, "Fortran order");
    check_refused(HEADER("'<f2'", "False", "(6,)"), 12, "<f2");
    check_refused(HEADER("'|O'", "False", "(6,)"), 24, "|O");
    check_refused(HEADER("'|f4'", "False", "(6,)"), 24, "|f4");
    check_refused(HEADER("'<U3'", "False", "(2,)"), 24, "<U3");
    check_refused(HEADER("[('a', '<f4')]", "False", "(6,)"), 24, "structured");
}

static void shape_and_size_are_checked_against_each_other(void **state)
{
    (void)state;
    check_refused(HEADER("'<f4'", "False", "(7,)"), 24, "7 elements");
    check_refused(HEADER("'<f4'", "False", "(5,)"), 24, "5 elements");
    check_refused(HEADER("'<f4'", "False", "(4294967296, 4294967296)"), 0, "too many elements");
    check_refused(HEADER("'<f4'", "False", "(4611686018427387904,)"), 0, "too many elements");
    check_refused(HEADER("'<f4'", "False", "(0, 4294967296, 4294967296)"), 0, "too many elements");
    check_refused(HEADER("'<f4'", "False", "(99999999999999999999,)"), 0, "dimension");
    check_refused(HEADER("'<f4'", "False", "(-6,)"), 24, "dimension");
    check_refused(HEADER("'<f4'", "False", "(1,1,1,1,1,1,1,1,6)"), 24, "8 dimensions");
}

static void broken_headers_are_refused(void **state)
{
    (void)state;
    check_refused(HEADER("'<f4'", "False", "(6)"), 24, "tuple");
    check_refused(HEADER("'<f4'", "False", "(2 3)"), 24, "tuple");
    check_refused(HEADER("'<f4'", "False", "6"), 24, "tuple");
    check_refused(HEADER("'<f4'", "0", "(6,)"), 24, "fortran_order");
    check_refused(HEADER("<f4", "False", "(6,)"), 24, "descr");
    check_refused("{'descr': '<f4', 'shape': (6,)}", 24, "missing");
    check_refused("{'descr': '<f4', 'descr': '<f4'}", 24, "twice");
    check_refused("{'descr': '<f4', 'other': 1}", 24, "other");
    check_refused("{'descr': '<f4' 'shape': (6,)}", 24, "comma");
    check_refused("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x", 24, "follows");
    check_refused("", 24, "dict");
    check_refused("{", 24, "dict");
}

static void cut_files_and_other_versions_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    struct npy *npy;
    for (int major = 1; major <= 2; major++) {
        unsigned char *file = make_file(major, HEADER("'<f4'", "False", "(6,)"), values, 24, &bytes);
        for (size_t cut = 0; cut < bytes; cut++) {
            unsigned char *copy = malloc(cut ? cut : 1);
            memcpy(copy, file, cut);
            assert_int_equal(npy_parse(&npy, copy, cut, NULL), STATUS_FORMAT);
            free(copy);
        }
        file[6] = 3;
        struct errbuf err;
        assert_int_equal(npy_parse(&npy, file, bytes, &err), STATUS_FORMAT);
        assert_non_null(strstr(err.text, "version 3.0"));
        free(file);
    }
}

static void file_is_opened_and_a_failure_names_it(void **state)
{
    (void)state;
    char path[] = "/tmp/shoal-npy-XXXXXX";
    size_t bytes;
    unsigned char *file = make_file(1, HEADER("'<f4'", "False", "(6,)"), values, 24, &bytes);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, file, bytes), (ssize_t)bytes);
    struct npy *npy;
    struct errbuf err;
    assert_int_equal(npy_open(&npy, path, &err), 0);
    float out[6];
    assert_int_equal(npy_read_f32(npy, 0, 6, out), 0);
    assert_memory_equal(out, values, 24);
    npy_close(npy);
    npy_close(NULL);
    assert_int_equal(ftruncate(fd, (off_t)bytes - 1), 0);
    assert_int_equal(npy_open(&npy, path, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, path));
    unlink(path);
    assert_int_equal(npy_open(&npy, path, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "No such file or directory"));
    close(fd);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_versions_1_and_2_are_read),
        cmocka_unit_test(every_type_converts),
        cmocka_unit_test(numbers_that_are_no_int64_are_out_of_range),
        cmocka_unit_test(unsupported_kinds_say_what_they_are),
        cmocka_unit_test(shape_and_size_are_checked_against_each_other),
        cmocka_unit_test(broken_headers_are_refused),
        cmocka_unit_test(cut_files_and_other_versions_are_refused),
        cmocka_unit_test(file_is_opened_and_a_failure_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
