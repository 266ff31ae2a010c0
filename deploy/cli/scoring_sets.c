#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/scoring.h"

static int add(struct scoring_sets *sets, const char *key, const char *value, size_t length)
{
    char **items = realloc(sets->items, (size_t)(sets->count + 1) * sizeof *items);
    if (!items)
        return STATUS_NOMEM;
    sets->items = items;
    if (asprintf(&items[sets->count], "%s=%.*s", key, (int)length, value) < 0)
        return STATUS_NOMEM;
    sets->count++;
    return 0;
}

/* A path as the shell's user means it: from the folder that he is in. */
static int add_path(struct scoring_sets *sets, const char *key, const char *path, size_t length)
{
    char full[2 * PATH_MAX], here[PATH_MAX];
    if (path[0] == '/' || length >= PATH_MAX || !getcwd(here, sizeof here))
        return add(sets, key, path, length);
    int used = snprintf(full, sizeof full, "%s/%.*s", here, (int)length, path);
    return add(sets, key, full, (size_t)used);
}

static int is_file_key(const char *key)
{
    return strcmp(key, "file") == 0 || strcmp(key, "images") == 0 || strcmp(key, "labels") == 0 ||
           strcmp(key, "features") == 0;
}

/* "kind=idx,images=F,labels=F". */
static int add_pairs(struct scoring_sets *sets, const char *text, struct errbuf *err)
{
    while (*text) {
        char key[64], full[80];
        size_t name = strcspn(text, "=,");
        if (text[name] != '=' || name == 0 || name >= sizeof key)
            return errbuf_set(err, STATUS_INVALID, "--data: found \"%.80s\", expected KEY=VALUE", text);
        memcpy(key, text, name);
        key[name] = '\0';
        text += name + 1;
        size_t length = strcspn(text, ",");
        snprintf(full, sizeof full, is_file_key(key) ? "data.test.%s" : "data.%s", key);
        if ((is_file_key(key) ? add_path : add)(sets, full, text, length) != 0)
            return errbuf_set(err, STATUS_NOMEM, "out of memory");
        text += length + (text[length] == ',');
    }
    return 0;
}

static int ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static const char *kind_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (ends_in(name, ".csv") || ends_in(name, ".csv.gz"))
        return "csv";
    if (ends_in(name, ".svm") || ends_in(name, ".libsvm") || ends_in(name, ".svm.gz") ||
        ends_in(name, ".libsvm.gz"))
        return "libsvm";
    if (ends_in(name, ".npy"))
        return "npy";
    return strstr(name, "idx") || strstr(name, "ubyte") ? "idx" : NULL;
}

static int add_file(struct scoring_sets *sets, const char *path, int is_second, const char **kind,
                    struct errbuf *err)
{
    const char *guessed = kind_of(path);
    const char *slash = strrchr(path, '/');
    if (!guessed)
        return errbuf_set(
            err, STATUS_INVALID,
            "--data %.200s: the kind cannot be told from the name; say kind=csv,file=%.200s (or libsvm, npy, idx)",
            path, path);
    if (*kind && strcmp(*kind, guessed) != 0)
        return errbuf_set(err, STATUS_INVALID, "--data: %s and %s files do not go together", *kind, guessed);
    *kind = guessed;
    int is_labels = is_second || strstr(slash ? slash : path, "labels") != NULL;
    const char *key = strcmp(guessed, "idx") == 0   ? is_labels ? "data.test.labels" : "data.test.images"
                      : strcmp(guessed, "npy") == 0 ? is_labels ? "data.test.labels" : "data.test.features"
                                                    : "data.test.file";
    int status = add(sets, "data.kind", guessed, strlen(guessed));
    if (status == 0)
        status = add_path(sets, key, path, strlen(path));
    return status == 0 ? 0 : errbuf_set(err, STATUS_NOMEM, "out of memory");
}

int scoring_sets_make(struct scoring_sets *sets, const struct args_list *data, struct errbuf *err)
{
    const char *kind = NULL;
    int status = 0;
    *sets = (struct scoring_sets){0};
    for (int i = 0; i < data->count && status == 0; i++) {
        const char *text = data->items[i];
        if (strchr(text, '=') && access(text, F_OK) != 0)
            status = add_pairs(sets, text, err);
        else
            status = add_file(sets, text, i > 0 && !strstr(data->items[0], "labels"), &kind, err);
    }
    return status;
}

void scoring_sets_close(struct scoring_sets *sets)
{
    for (int i = 0; i < sets->count; i++)
        free(sets->items[i]);
    free(sets->items);
    *sets = (struct scoring_sets){0};
}
