#include "fixture.h"

#include <dirent.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

int fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    strcpy(f->folder, "/tmp/shoal-data-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    account_init(&f->account);
    errbuf_init(&f->err);
    f->job.seed = 1;
    f->job.data.label_column = -1;
    f->job.data.index_base = 1;
    struct job_data_files none = {.file = "", .images = "", .labels = "", .features = ""};
    f->job.data.train = f->job.data.test = f->job.data.validation = none;
    *state = f;
    return 0;
}

int fixture_teardown(void **state)
{
    struct fixture *f = *state;
    dataset_set_close(&f->set);
    int64_t left = f->account.bytes[ACCOUNT_DATA];
    DIR *folder = opendir(f->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", f->folder, entry->d_name);
        unlink(path);
    }
    if (folder)
        closedir(folder);
    rmdir(f->folder);
    free(f);
    return left == 0 ? 0 : -1; /* what was booked is given back */
}

char *real_file(const char *path, const char *package, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing: install the package %s (tests/run does)", path, package);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    data[size] = '\0';
    if (bytes)
        *bytes = (size_t)size;
    return data;
}

static char *make_path(struct fixture *f, const char *name)
{
    static _Thread_local char paths[3][400];
    static _Thread_local int next;
    char *path = paths[next++ % 3];
    snprintf(path, sizeof paths[0], "%s/%s", f->folder, name);
    return path;
}

char *put_file(struct fixture *f, const char *name, const void *bytes, size_t count)
{
    char *path = make_path(f, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

char *put_text(struct fixture *f, const char *name, const char *text)
{
    return put_file(f, name, text, strlen(text));
}

char *put_gzip(struct fixture *f, const char *name, const void *bytes, size_t count)
{
    char *path = make_path(f, name);
    gzFile file = gzopen(path, "wb1");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)count), (int)count);
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}

int load(struct fixture *f)
{
    dataset_set_close(&f->set);
    errbuf_init(&f->err);
    return dataset_load(&f->set, &f->job, f->folder, NULL, &f->account, f->note, sizeof f->note, &f->err);
}

void load_ok(struct fixture *f)
{
    if (load(f) != 0)
        fail_msg("%s", f->err.text);
}

void load_fails(struct fixture *f, int status, ...)
{
    va_list texts;
    int rc = load(f);
    if (rc != status)
        fail_msg("status %d, expected %d: %s", rc, status, f->err.text);
    va_start(texts, status);
    for (const char *text; (text = va_arg(texts, const char *));)
        if (!strstr(f->err.text, text))
            fail_msg("\"%s\" is not in: %s", text, f->err.text);
    va_end(texts);
    assert_null(strchr(f->err.text, '\n'));
}

void use_text(struct fixture *f, enum job_data_kind kind, const char *text)
{
    f->job.data.kind = kind;
    put_text(f, "train.txt", text);
    f->job.data.train.file = "train.txt";
}

float *read_all(const struct dataset *dataset, int32_t *labels, float *targets)
{
    int64_t rows = dataset_rows(dataset);
    int64_t *indices = malloc((size_t)rows * sizeof *indices);
    float *x = malloc((size_t)(rows * dataset_features(dataset)) * sizeof *x);
    assert_non_null(indices);
    assert_non_null(x);
    for (int64_t i = 0; i < rows; i++)
        indices[i] = i;
    dataset_read(dataset, indices, rows, x, labels, targets);
    free(indices);
    return x;
}
