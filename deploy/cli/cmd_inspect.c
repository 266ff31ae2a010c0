#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/command.h"
#include "deploy/cli/inspect.h"
#include "worker/data/source.h"

static const struct args_table table = {
    "shoal inspect FILE...",
    "What is in a file: tensors of a safetensors file (an exported model, an owner's part of a snapshot), a "
    "snapshot's\n"
    "folder or manifest.json, idx, npy, csv and libsvm data. Told apart by content.",
    NULL,
    0,
    1,
    1000,
    "a file",
    NULL};

enum { HEAD_BYTES = 4096 };

/* The content's beginning, gzip undone; 0-terminated. */
static int read_head(const char *path, char head[HEAD_BYTES + 1], int64_t *length, struct errbuf *err)
{
    struct source *source;
    int status = source_open(&source, "", path, err);
    if (status != 0)
        return status;
    *length = source_read(source, head, HEAD_BYTES, err);
    source_close(source);
    if (*length < 0)
        return (int)*length;
    head[*length] = '\0';
    return 0;
}

static int is_idx(const unsigned char *head, int64_t length)
{
    return length >= 8 && head[0] == 0 && head[1] == 0 && head[2] >= 8 && head[2] <= 14 && head[3] >= 1 &&
           head[3] <= 8;
}

/* The second word of the first line that has one is INDEX:VALUE. */
static int is_libsvm(const char *head)
{
    size_t word = strcspn(head, " \t\n,");
    const char *second = head + word;
    if (*second != ' ' && *second != '\t')
        return 0;
    second += strspn(second, " \t");
    size_t digits = strspn(second, "0123456789");
    return (digits > 0 && second[digits] == ':') || strncmp(second, "qid:", 4) == 0;
}

static int inspect_file(const char *path, struct errbuf *err)
{
    char head[HEAD_BYTES + 1];
    int64_t length = 0;
    int status = read_head(path, head, &length, err);
    if (status != 0)
        return status;
    if (length >= 6 && memcmp(head, "\x93NUMPY", 6) == 0)
        return inspect_npy(path, err);
    if (is_idx((const unsigned char *)head, length))
        return inspect_idx(path, err);
    if (length >= 9 && head[8] == '{' && memchr(head, '\0', 8))
        return inspect_safetensors(path, err);
    if (length > 0 && head[0] == '{')
        return inspect_manifest(path, err);
    if (length == 0 || memchr(head, '\0', (size_t)length))
        return errbuf_set(err, STATUS_FORMAT, "%.300s: neither safetensors, manifest, idx, npy, csv nor libsvm",
                          path);
    return inspect_rows(path, is_libsvm(head) ? "libsvm" : "csv", err);
}

static int inspect_path(const char *path)
{
    struct stat info;
    struct errbuf err;
    errbuf_init(&err);
    int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    printf("%s\n", path);
    int status = is_folder ? inspect_folder(path, &err) : inspect_file(path, &err);
    return status == 0 ? 0 : command_fail(1, "inspect: %s", err.text);
}

static int inspect_run(int argc, char **argv)
{
    struct args_list operands;
    int code = 0, nothing = 0;
    if (!command_parse(&table, argc, argv, &nothing, &operands, &code))
        return code;
    for (int i = 0; i < operands.count; i++)
        code = inspect_path(operands.items[i]) ? 1 : code;
    args_close(&table, &nothing, &operands);
    return code;
}

const struct command command_inspect = {"inspect", "what is in a model, snapshot or data file", inspect_run};
