#include "base/errbuf.h"
#include "base/host.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/fs.h"
#include "files/safetensors.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* Length, header text and data in one block, as a file holds them; owned by the caller. */
static unsigned char *make_file(const char *header, const void *data, size_t data_bytes, size_t *bytes)
{
    uint64_t length = strlen(header);
    *bytes = 8 + length + data_bytes;
    unsigned char *file = malloc(*bytes);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    if (data_bytes)
        memcpy(file + 8 + length, data, data_bytes);
    return file;
}

static int parse(const char *header, const void *data, size_t data_bytes, struct errbuf *err)
{
    size_t bytes;
    struct safetensors *parsed;
    unsigned char *file = make_file(header, data, data_bytes, &bytes);
    int status = safetensors_parse(&parsed, file, bytes, err);
    if (status)
        assert_null(parsed);
    safetensors_close(parsed);
    free(file);
    return status;
}

static const float D09_values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
#define D09_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
#define D09_B(offsets) "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":" offsets "}"

static void check_valid(const char *header)
{
    size_t bytes;
    struct safetensors *file;
    struct errbuf err;
    unsigned char *text = make_file(header, D09_values, 28, &bytes);
    assert_int_equal(safetensors_parse(&file, text, bytes, &err), STATUS_OK);
    assert_int_equal(safetensors_count(file), 2);
    assert_string_equal(safetensors_at(file, 0)->name, "a");
    assert_string_equal(safetensors_at(file, 1)->name, "b");
    assert_null(safetensors_at(file, 2));
    assert_null(safetensors_at(file, -1));
    const struct safetensors_tensor *a = safetensors_find(file, "a"), *b = safetensors_find(file, "b");
    assert_null(safetensors_find(file, "c"));
    assert_int_equal(a->dims, 2);
    assert_int_equal(a->shape[1], 2);
    assert_int_equal(a->count, 4);
    float out[4];
    assert_int_equal(safetensors_to_f32(a, out), 0);
    assert_memory_equal(out, D09_values, 16);
    assert_int_equal(b->count, 3);
    assert_int_equal(safetensors_to_f32(b, out), 0);
    assert_memory_equal(out, D09_values + 4, 12);
    safetensors_close(file);
    free(text);
}

static void D09_valid_files_load_with_their_values(void **state)
{
    (void)state;
    check_valid("{" D09_A "," D09_B("[16,28]") "}");
    check_valid("{" D09_B("[16,28]") "," D09_A "}");
    check_valid("{\"__metadata__\":{\"format\":\"pt\"}," D09_A "," D09_B("[16,28]") "}   ");
}

static void check_refused(const char *header, size_t data_bytes, const char *named)
{
    struct errbuf err;
    errbuf_init(&err);
    assert_int_equal(parse(header, D09_values, data_bytes, &err), STATUS_FORMAT);
    if (!strstr(err.text, named))
        fail_msg("\"%s\" does not name \"%s\"", err.text, named);
}

static void D09_offsets_that_lie_are_refused_by_name(void **state)
{
    (void)state;
    check_refused("{" D09_A "," D09_B("[12,24]") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("[12,24]") "}", 24, "tensor b");
    check_refused("{" D09_A "," D09_B("[20,32]") "}", 32, "tensor b");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,0]}," D09_B("[16,28]") "}", 28,
                  "tensor a");
    check_refused("{" D09_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,32]}}", 28, "tensor b");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4, "tensor a");
    check_refused("{" D09_A "," D09_B("[-1,11]") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("[\"16\",\"28\"]") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("\"16,28\"") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("[16,28,40]") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("[16.0,28]") "}", 28, "tensor b");
    check_refused("{" D09_A "," D09_B("[16,99999999999999999999]") "}", 28, "integer");
    check_refused("{" D09_A "," D09_B("[16,28]") "}", 32, "4 spare bytes");
    check_refused("{" D09_A "," D09_A "}", 16, "\"a\"");
    check_refused("{" D09_A ",\"\\u0061\":{}}", 16, "duplicate");
    check_refused("[]", 0, "header");
    check_refused("", 0, "header");
}

static void fields_that_break_the_format_are_refused_by_name(void **state)
{
    (void)state;
    check_refused("{\"a\":7}", 0, "tensor a");
    check_refused("{\"a\":{}}", 0, "tensor a: dtype");
    check_refused("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "F8_E4M3");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}", 0, "tensor a: shape");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0, "tensor a: dimension 0");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "tensor a: dimension 0");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
                  "9 dimensions");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
                  "tensor a");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
                  "tensor a");
    check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a: data_offsets");
    check_refused("{\"__metadata__\":7}", 0, "__metadata__");
    check_refused("{\"__metadata__\":{\"k\":7}}", 0, "k");
    check_refused("{\"a\":", 0, "JSON");
    check_refused("{} x", 0, "JSON");
    check_refused("{\"\xff\":{}}", 0, "JSON");
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH + 1);
    memset(header, '[', DEPTH);
    memcpy(header, "{\"a\":", 5);
    header[DEPTH] = '\0';
    check_refused(header, 0, "nested");
    free(header);
    struct errbuf err;
    /* Brackets inside of a text are none. */
    assert_int_equal(parse("{\"__metadata__\":{\"k\":\"[[[[[[[[[[[[[[[[[[[[\\\"[[[\"}}", NULL, 0, &err), STATUS_OK);
}

static void cut_files_are_refused_at_every_length(void **state)
{
    (void)state;
    size_t bytes;
    struct safetensors *file;
    unsigned char *text = make_file("{" D09_A "," D09_B("[16,28]") "}", D09_values, 28, &bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        unsigned char *copy = malloc(cut + 1); /* of its own, so that ASan sees a read past the end */
        memcpy(copy, text, cut);
        copy = realloc(copy, cut ? cut : 1);
        assert_int_equal(safetensors_parse(&file, copy, cut, NULL), STATUS_FORMAT);
        assert_null(file);
        free(copy);
    }
    const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, (uint64_t)INT64_MAX, 100000001, 99999999};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(text, &lengths[i], 8);
        assert_int_equal(safetensors_parse(&file, text, bytes, NULL), STATUS_FORMAT);
    }
    free(text);
}

static void empty_tensors_and_scalars_are_allowed(void **state)
{
    (void)state;
    size_t bytes;
    struct safetensors *file;
    const char *header = "{\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[4,4]},"
                         "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                         "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    unsigned char *text = make_file(header, D09_values, 4, &bytes);
    assert_int_equal(safetensors_parse(&file, text, bytes, NULL), STATUS_OK);
    assert_string_equal(safetensors_at(file, 0)->name, "e");
    assert_string_equal(safetensors_at(file, 1)->name, "s");
    assert_int_equal(safetensors_find(file, "s")->count, 1);
    assert_int_equal(safetensors_find(file, "z")->count, 0);
    float out = 7;
    assert_int_equal(safetensors_to_f32(safetensors_find(file, "z"), &out), 0);
    assert_true(out == 7);
    safetensors_close(file);
    free(text);
    assert_int_equal(parse("{}", NULL, 0, NULL), STATUS_OK);
}

static float convert(enum safetensors_dtype dtype, const void *data, size_t bytes)
{
    float out;
    const struct safetensors_tensor tensor = {"t", dtype, 0, {0}, 1, data, bytes};
    assert_int_equal(safetensors_to_f32(&tensor, &out), 0);
    return out;
}

static void half_and_double_kinds_convert_exactly(void **state)
{
    (void)state;
    const struct {
        uint16_t half;
        float value;
    } halves[] = {{0x3c00, 1},        {0xc000, -2},        {0x7bff, 65504},
                  {0x0400, 0x1p-14f}, {0x0001, 0x1p-24f},  {0x83ff, -0x1.ff8p-15f},
                  {0x7c00, INFINITY}, {0xfc00, -INFINITY}, {0x3555, 0x1.554p-2f}};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        assert_true(convert(SAFETENSORS_F16, &halves[i].half, 2) == halves[i].value);
    const uint16_t zero = 0x8000, nan = 0x7e01, one = 0x3f80, big = 0xff7f;
    assert_true(signbit(convert(SAFETENSORS_F16, &zero, 2)));
    assert_true(isnan(convert(SAFETENSORS_F16, &nan, 2)));
    assert_true(convert(SAFETENSORS_BF16, &one, 2) == 1);
    assert_true(convert(SAFETENSORS_BF16, &big, 2) == -0x1.fep127f);
    const double tenth = 0.1;
    assert_true(convert(SAFETENSORS_F64, &tenth, 8) == 0.1f);
    float out;
    const struct safetensors_tensor integers = {"t", SAFETENSORS_I64, 0, {0}, 1, &tenth, 8};
    assert_int_equal(safetensors_to_f32(&integers, &out), STATUS_INVALID);
}

struct scratch {
    char path[64];
};

static int make_scratch(void **state)
{
    struct scratch *scratch = malloc(sizeof *scratch);
    *state = scratch;
    snprintf(scratch->path, sizeof scratch->path, "/tmp/shoal-st-XXXXXX");
    int fd = mkstemp(scratch->path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_scratch(void **state)
{
    unlink(((struct scratch *)*state)->path);
    free(*state);
    return 0;
}

static void written_file_reads_back_and_its_bytes_are_fixed(void **state)
{
    const char *path = ((struct scratch *)*state)->path;
    const int64_t steps = 12;
    const struct safetensors_tensor tensors[] = {
        {"w\"1", SAFETENSORS_F32, 2, {2, 2}, 4, D09_values, 16},
        {"empty", SAFETENSORS_F32, 1, {0}, 0, NULL, 0},
        {"n", SAFETENSORS_I64, 0, {0}, 1, &steps, 8},
    };
    const struct safetensors_meta metadata[] = {{"z", "last"}, {"a", "{\"kind\":\"mlp\"}"}};
    char hex[65], of_file[65];
    struct errbuf err;
    assert_int_equal(safetensors_write(path, tensors, 3, metadata, 2, hex, &err), 0);
    assert_int_equal(sha256_of_file(path, of_file), 0);
    assert_string_equal(hex, of_file);
    char *text;
    size_t bytes;
    assert_int_equal(fs_read_file(path, 10000, &text, &bytes, &err), 0);
    const char *wanted = "{\"__metadata__\":{\"a\":\"{\\\"kind\\\":\\\"mlp\\\"}\",\"z\":\"last\"},"
                         "\"w\\\"1\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                         "\"empty\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,16]},"
                         "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[16,24]}}";
    size_t padded = (strlen(wanted) + 7) / 8 * 8;
    assert_int_equal(bytes, 8 + padded + 24);
    assert_memory_equal(text + 8, wanted, strlen(wanted));
    for (size_t i = strlen(wanted); i < padded; i++)
        assert_int_equal(text[8 + i], ' ');
    free(text);
    struct safetensors *file;
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    assert_int_equal(safetensors_count(file), 3);
    assert_string_equal(safetensors_metadata(file, "z"), "last");
    assert_null(safetensors_metadata(file, "y"));
    assert_memory_equal(safetensors_find(file, "w\"1")->data, D09_values, 16);
    assert_memory_equal(safetensors_find(file, "n")->data, &steps, 8);
    safetensors_close(file);
    assert_int_equal(safetensors_write(path, tensors, 3, metadata, 2, of_file, NULL), 0);
    assert_string_equal(hex, of_file);
    assert_int_equal(safetensors_write(path, NULL, 0, NULL, 0, NULL, NULL), 0);
    assert_int_equal(safetensors_open(&file, path, NULL), 0);
    assert_null(safetensors_metadata(file, "z"));
    safetensors_close(file);
}

/* Larger than a piece, at an address that is not a page's. */
static void pieces_of_a_large_tensor_are_those_of_the_whole(void **state)
{
    enum { COUNT = (9 << 20) / 4 + 3 };
    const char *path = ((struct scratch *)*state)->path;
    float *values = malloc(COUNT * sizeof *values), *out = malloc(COUNT * sizeof *out);
    assert_non_null(values);
    assert_non_null(out);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i * 0.5f;
    const struct safetensors_tensor tensors[] = {{"f", SAFETENSORS_F32, 1, {COUNT}, COUNT, values, COUNT * 4},
                                                 {"none", SAFETENSORS_F64, 1, {0}, 0, NULL, 0},
                                                 {"n", SAFETENSORS_I64, 1, {1}, 1, values, 8}};
    struct safetensors *file;
    assert_int_equal(safetensors_write(path, tensors, 3, NULL, 0, NULL, NULL), 0);
    assert_int_equal(safetensors_open(&file, path, NULL), 0);
    for (int pass = 0; pass < 2; pass++) {
        memset(out, 0, COUNT * sizeof *out);
        int64_t resident = host_rss_bytes();
        assert_int_equal(safetensors_take_f32(file, safetensors_find(file, "f"), out), STATUS_OK);
        assert_true(host_rss_bytes() - resident < 2 << 20); /* of 9 MiB of file */
        assert_memory_equal(out, values, COUNT * sizeof *out);
    }
    assert_int_equal(safetensors_take_f32(file, safetensors_find(file, "none"), out), STATUS_OK);
    assert_int_equal(safetensors_take_f32(file, safetensors_find(file, "n"), out), STATUS_INVALID);
    safetensors_close(file);
    free(values);
    free(out);
}

static void a_file_written_tensor_by_tensor_is_the_same(void **state)
{
    const char *path = ((struct scratch *)*state)->path;
    const struct safetensors_tensor tensors[] = {{"a", SAFETENSORS_F32, 1, {4}, 4, D09_values, 16},
                                                 {"b", SAFETENSORS_F32, 1, {2}, 2, D09_values + 1, 8}};
    struct safetensors_tensor blank[2] = {tensors[0], tensors[1]};
    const struct safetensors_image image = {.tensors = blank, .count = 2};
    struct safetensors_writer *writer;
    char whole[65], apart[65], of_file[65];
    blank[0].data = blank[1].data = NULL;
    assert_int_equal(safetensors_write(path, tensors, 2, NULL, 0, whole, NULL), 0);
    assert_int_equal(safetensors_writer_open(&writer, &fs_real, path, &image, NULL), 0);
    assert_int_equal(safetensors_writer_put(writer, D09_values + 2, NULL), 0);
    safetensors_writer_close(writer);
    assert_int_equal(sha256_of_file(path, of_file), 0);
    assert_string_equal(whole, of_file); /* what was given up has touched nothing */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(safetensors_writer_open(&writer, &fs_real, path, &image, NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(safetensors_writer_put(writer, tensors[i].data, NULL), 0);
    assert_int_equal(safetensors_writer_commit(writer, apart, NULL), 0);
    safetensors_writer_close(writer);
    assert_int_equal(sha256_of_file(path, of_file), 0);
    assert_string_equal(whole, apart);
    assert_string_equal(whole, of_file);
}

static void writer_refuses_what_its_reader_would(void **state)
{
    const char *path = ((struct scratch *)*state)->path;
    const struct safetensors_tensor good = {"a", SAFETENSORS_F32, 1, {4}, 4, D09_values, 16};
    struct safetensors_tensor pair[2] = {good, good};
    struct errbuf err;
    assert_int_equal(safetensors_write(path, pair, 2, NULL, 0, NULL, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "tensor a: the name is taken"));
    pair[1].name = "b";
    pair[1].shape[0] = 5;
    assert_int_equal(safetensors_write(path, pair, 2, NULL, 0, NULL, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "tensor b"));
    pair[1] = good;
    pair[1].name = "\xff";
    assert_int_equal(safetensors_write(path, pair, 2, NULL, 0, NULL, &err), STATUS_INVALID);
    pair[1].name = "__metadata__";
    assert_int_equal(safetensors_write(path, pair, 2, NULL, 0, NULL, &err), STATUS_INVALID);
    const struct safetensors_meta twice[] = {{"k", "1"}, {"k", "2"}};
    assert_int_equal(safetensors_write(path, pair, 1, twice, 2, NULL, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "k twice"));
}

static void unreadable_paths_say_why(void **state)
{
    const char *path = ((struct scratch *)*state)->path;
    struct safetensors *file;
    struct errbuf err;
    assert_int_equal(safetensors_open(&file, path, &err), STATUS_FORMAT); /* empty */
    assert_non_null(strstr(err.text, path));
    assert_int_equal(safetensors_open(&file, "/nonexistent/x", &err), STATUS_IO);
    assert_non_null(strstr(err.text, "/nonexistent/x: No such file or directory"));
    assert_int_equal(safetensors_open(&file, "/tmp", &err), STATUS_IO);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(safetensors_open(&file, path, &err), STATUS_IO); /* and does not wait for a writer */
}

/* A sparse file of 2.4 GB: a and, behind it, b. */
static void P04_file_above_2_GiB_is_read_with_64_bit_sizes(void **state)
{
    const char *path = ((struct scratch *)*state)->path;
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[600000000],\"data_offsets\":[0,2400000000]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[2400000000,2400000028]}}";
    size_t bytes;
    unsigned char *text = make_file(header, NULL, 0, &bytes);
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(pwrite(fd, text, bytes, 0), (ssize_t)bytes);
    assert_int_equal(pwrite(fd, D09_values, 28, (off_t)bytes + 2400000000), 28);
    assert_int_equal(pwrite(fd, D09_values, 4, (off_t)bytes + 2399999996), 4);
    close(fd);
    free(text);
    struct safetensors *file;
    struct errbuf err;
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    const struct safetensors_tensor *a = safetensors_find(file, "a"), *b = safetensors_find(file, "b");
    assert_int_equal(a->count, 600000000);
    assert_true(a->bytes == 2400000000);
    float last;
    memcpy(&last, (const char *)a->data + a->bytes - 4, 4);
    assert_true(last == 1);
    assert_memory_equal(b->data, D09_values, 28);
    safetensors_close(file);
    assert_int_equal(truncate(path, (off_t)bytes + 2400000000), 0);
    assert_int_equal(safetensors_open(&file, path, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "tensor b"));
}

#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, make_scratch, remove_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(D09_valid_files_load_with_their_values),
        cmocka_unit_test(D09_offsets_that_lie_are_refused_by_name),
        cmocka_unit_test(fields_that_break_the_format_are_refused_by_name),
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(cut_files_are_refused_at_every_length),
        cmocka_unit_test(empty_tensors_and_scalars_are_allowed),
        cmocka_unit_test(half_and_double_kinds_convert_exactly),
        WITH_SCRATCH(written_file_reads_back_and_its_bytes_are_fixed),
        WITH_SCRATCH(pieces_of_a_large_tensor_are_those_of_the_whole),
        WITH_SCRATCH(a_file_written_tensor_by_tensor_is_the_same),
        WITH_SCRATCH(writer_refuses_what_its_reader_would),
        WITH_SCRATCH(unreadable_paths_say_why),
        WITH_SCRATCH(P04_file_above_2_GiB_is_read_with_64_bit_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
