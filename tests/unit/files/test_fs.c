#include "base/errbuf.h"
#include "base/status.h"
#include "files/fs.h"
#include "files/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

struct folder {
    char path[64], file[128];
};

static int make_folder(void **state)
{
    struct folder *folder = malloc(sizeof *folder);
    snprintf(folder->path, sizeof folder->path, "/tmp/shoal-fs-XXXXXX");
    *state = folder;
    if (!mkdtemp(folder->path))
        return -1;
    snprintf(folder->file, sizeof folder->file, "%s/file", folder->path);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", ((struct folder *)*state)->path);
    free(*state);
    return system(command);
}

static void write_old(const struct folder *folder)
{
    assert_int_equal(fs_write_file(folder->file, "old", 3, NULL), 0);
}

static void check_content(const char *path, const char *wanted)
{
    char *data;
    size_t bytes;
    assert_int_equal(fs_read_file(path, 1000, &data, &bytes, NULL), 0);
    assert_int_equal(bytes, strlen(wanted));
    assert_string_equal(data, wanted);
    free(data);
}

static int entries(const char *path)
{
    DIR *listing = opendir(path);
    assert_non_null(listing);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

enum fault_call { FAULT_NONE, FAULT_OPEN, FAULT_WRITE, FAULT_FSYNC, FAULT_CLOSE, FAULT_RENAME };

/* Fails the nth call of one kind with `code`; writes at most `write_max` bytes a call. */
struct faults {
    enum fault_call call;
    int nth, code;
    size_t write_max;
};

static int fault_fires(const struct fs *fs, enum fault_call call)
{
    struct faults *faults = fs->context;
    if (faults->call != call || --faults->nth != 0)
        return 0;
    errno = faults->code;
    return 1;
}

static int faulty_open(const struct fs *fs, const char *path, int flags, mode_t mode)
{
    return fault_fires(fs, FAULT_OPEN) ? -1 : fs_real.open(&fs_real, path, flags, mode);
}

static ssize_t faulty_write(const struct fs *fs, int fd, const void *data, size_t bytes)
{
    const struct faults *faults = fs->context;
    if (fault_fires(fs, FAULT_WRITE))
        return faults->code ? -1 : 0;
    size_t part = bytes < faults->write_max ? bytes : faults->write_max;
    return fs_real.write(&fs_real, fd, data, part);
}

static int faulty_fsync(const struct fs *fs, int fd)
{
    return fault_fires(fs, FAULT_FSYNC) ? -1 : fs_real.fsync(&fs_real, fd);
}

static int faulty_close(const struct fs *fs, int fd)
{
    int failed = fs_real.close(&fs_real, fd); /* as in Linux: closed even when it reports an error */
    return fault_fires(fs, FAULT_CLOSE) ? -1 : failed;
}

static int faulty_rename(const struct fs *fs, const char *from, const char *to)
{
    return fault_fires(fs, FAULT_RENAME) ? -1 : fs_real.rename(&fs_real, from, to);
}

static int faulty_unlink(const struct fs *fs, const char *path)
{
    (void)fs;
    return fs_real.unlink(&fs_real, path);
}

static struct fs make_faulty(struct faults *faults)
{
    return (struct fs){faulty_open, faulty_write, faulty_fsync, faulty_close, faulty_rename, faulty_unlink, faults};
}

static int write_new(const struct fs *fs, const char *path, struct errbuf *err)
{
    struct fs_file file;
    int status = fs_create(&file, fs, path, err);
    if (!status)
        status = fs_write(&file, "new ", 4, err);
    if (!status)
        status = fs_write(&file, "text", 4, err);
    if (!status)
        status = fs_commit(&file, err);
    fs_abandon(&file); /* must be harmless in every state */
    return status;
}

static void short_and_interrupted_writes_are_continued(void **state)
{
    const struct folder *folder = *state;
    struct faults faults = {.write_max = 1, .call = FAULT_WRITE, .nth = 3, .code = EINTR};
    struct fs fs = make_faulty(&faults);
    write_old(folder);
    assert_int_equal(write_new(&fs, folder->file, NULL), 0);
    check_content(folder->file, "new text");
    assert_int_equal(entries(folder->path), 1);
}

static void every_failure_keeps_the_old_file_and_names_path_and_reason(void **state)
{
    const struct folder *folder = *state;
    const struct faults failures[] = {
        {FAULT_OPEN, 1, EACCES, 100},  {FAULT_WRITE, 1, ENOSPC, 100}, {FAULT_WRITE, 2, ENOSPC, 100},
        {FAULT_WRITE, 6, ENOSPC, 1},   {FAULT_WRITE, 2, 0, 100},      {FAULT_FSYNC, 1, EIO, 100},
        {FAULT_CLOSE, 1, EDQUOT, 100}, {FAULT_RENAME, 1, EXDEV, 100},
    };
    write_old(folder);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        struct faults faults = failures[i];
        struct fs fs = make_faulty(&faults);
        struct errbuf err;
        errbuf_init(&err);
        assert_int_equal(write_new(&fs, folder->file, &err), STATUS_IO);
        assert_non_null(strstr(err.text, folder->file));
        assert_non_null(strstr(err.text, strerror(failures[i].code ? failures[i].code : EIO)));
        check_content(folder->file, "old");
        assert_int_equal(entries(folder->path), 1);
    }
}

/* The new file is in place, but the caller hears that it may not last. */
static void failed_fsync_of_the_folder_is_reported(void **state)
{
    const struct folder *folder = *state;
    struct faults faults = {FAULT_FSYNC, 2, EIO, 100};
    struct fs fs = make_faulty(&faults);
    struct errbuf err;
    write_old(folder);
    assert_int_equal(write_new(&fs, folder->file, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "fsync folder"));
    assert_non_null(strstr(err.text, folder->path));
    check_content(folder->file, "new text");
    assert_int_equal(entries(folder->path), 1);
    faults = (struct faults){FAULT_FSYNC, 2, EINVAL, 100};
    assert_int_equal(write_new(&fs, folder->file, &err), 0);
}

static void closed_file_refuses_to_write(void **state)
{
    const struct folder *folder = *state;
    struct fs_file file;
    assert_int_equal(fs_create(&file, &fs_real, folder->file, NULL), 0);
    fs_abandon(&file);
    assert_int_equal(fs_write(&file, "x", 1, NULL), STATUS_CLOSED);
    assert_int_equal(fs_commit(&file, NULL), STATUS_CLOSED);
    assert_int_equal(entries(folder->path), 0);
}

static void file_in_a_missing_folder_is_an_error(void **state)
{
    const struct folder *folder = *state;
    char path[200];
    struct errbuf err;
    snprintf(path, sizeof path, "%s/none/file", folder->path);
    assert_int_equal(fs_write_file(path, "x", 1, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "No such file or directory"));
}

static void read_refuses_more_than_its_limit(void **state)
{
    const struct folder *folder = *state;
    char *data;
    size_t bytes;
    struct errbuf err;
    write_old(folder);
    assert_int_equal(fs_read_file(folder->file, 3, &data, &bytes, NULL), 0);
    free(data);
    assert_int_equal(fs_read_file(folder->file, 2, &data, &bytes, &err), STATUS_RANGE);
    assert_null(data);
    assert_non_null(strstr(err.text, "larger than 2 bytes"));
    assert_int_equal(fs_read_file(folder->path, 2, &data, &bytes, &err), STATUS_IO);
    assert_int_equal(fs_read_file("/dev/zero", 100000, &data, &bytes, &err), STATUS_RANGE);
    assert_int_equal(fs_read_file("/proc/self/status", 100000, &data, &bytes, &err), 0);
    assert_true(bytes > 0);
    free(data);
    assert_int_equal(fs_write_file(folder->file, "", 0, NULL), 0);
    check_content(folder->file, "");
}

static void folders_are_made_with_their_parents(void **state)
{
    const struct folder *folder = *state;
    char path[200];
    struct errbuf err;
    struct stat info;
    snprintf(path, sizeof path, "%s/a//b/c/", folder->path);
    assert_int_equal(fs_make_folders(path, &err), 0);
    assert_int_equal(fs_make_folders(path, &err), 0);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(fs_make_folders("/", &err), 0);
    write_old(folder);
    snprintf(path, sizeof path, "%s/file/x", folder->path);
    assert_int_equal(fs_make_folders(path, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "Not a directory"));
}

static void temporaries_of_dead_processes_are_removed(void **state)
{
    const struct folder *folder = *state;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0); /* now a number that no process has */
    char path[256];
    const char *kept[] = {"model.safetensors", "x.tmp", "x.tmp.", "x.tmp.12a", ".tmp.0"};
    snprintf(path, sizeof path, "%s/model.safetensors.tmp.%d", folder->path, (int)child);
    assert_int_equal(close(creat(path, 0600)), 0);
    snprintf(path, sizeof path, "%s/live.tmp.%d", folder->path, (int)getpid());
    assert_int_equal(close(creat(path, 0600)), 0);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(path, sizeof path, "%s/%s", folder->path, kept[i]);
        assert_int_equal(close(creat(path, 0600)), 0);
    }
    fs_remove_temporaries(folder->path, "model");
    assert_int_equal(entries(folder->path), 1 + 5); /* ".tmp.0" is not counted */
    fs_remove_temporaries(folder->path, "model.safetensors");
    assert_int_equal(entries(folder->path), 1 + 4);
    snprintf(path, sizeof path, "%s/other.tmp.%d", folder->path, (int)child);
    assert_int_equal(close(creat(path, 0600)), 0);
    fs_remove_temporaries(folder->path, NULL);
    assert_int_equal(entries(folder->path), 1 + 4);
    fs_remove_temporaries("/nonexistent", NULL);
}

static void failed_safetensors_write_keeps_the_old_file(void **state)
{
    const struct folder *folder = *state;
    const float values[3] = {1, 2, 3};
    const struct safetensors_tensor tensor = {"a", SAFETENSORS_F32, 1, {3}, 3, values, sizeof values};
    const struct safetensors_image image = {&tensor, 1, NULL, 0};
    char hex[65];
    write_old(folder);
    const struct faults failures[] = {
        {FAULT_OPEN, 1, EACCES, 100}, {FAULT_WRITE, 1, ENOSPC, 100}, {FAULT_WRITE, 9, ENOSPC, 7},
        {FAULT_FSYNC, 1, EIO, 100},   {FAULT_CLOSE, 1, EIO, 100},    {FAULT_RENAME, 1, EROFS, 100},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        struct faults faults = failures[i];
        struct fs fs = make_faulty(&faults);
        struct errbuf err;
        assert_int_equal(safetensors_write_on(&fs, folder->file, &image, hex, &err), STATUS_IO);
        assert_non_null(strstr(err.text, folder->file));
        assert_non_null(strstr(err.text, strerror(failures[i].code)));
        check_content(folder->file, "old");
        assert_int_equal(entries(folder->path), 1);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(short_and_interrupted_writes_are_continued),
        IN_FOLDER(every_failure_keeps_the_old_file_and_names_path_and_reason),
        IN_FOLDER(failed_fsync_of_the_folder_is_reported),
        IN_FOLDER(closed_file_refuses_to_write),
        IN_FOLDER(file_in_a_missing_folder_is_an_error),
        IN_FOLDER(read_refuses_more_than_its_limit),
        IN_FOLDER(folders_are_made_with_their_parents),
        IN_FOLDER(temporaries_of_dead_processes_are_removed),
        IN_FOLDER(failed_safetensors_write_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
