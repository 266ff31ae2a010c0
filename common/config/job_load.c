#include "config/job.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "config/job_record.h"
#include "config/job_yaml.h"
#include "config/option_suggest.h"
#include "config/option_table.h"
#include "config/option_value.h"

enum { WHY_BYTES = 480, SECTION_COUNT_MAX = 64 };

static int no_memory(struct errbuf *err)
{
    return errbuf_set(err, STATUS_NOMEM, "job: out of memory");
}

/* ---- the job and its defaults ---- */

static struct job *create_empty(const char *source_name)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        return NULL;
    }
    job->record = calloc(1, sizeof *job->record + (size_t)option_count() * sizeof job->record->origins[0]);
    if (!job->record || !(job->record->source_name = strdup(source_name))) {
        job_destroy(job);
        return NULL;
    }
    return job;
}

static int set_defaults(struct job *job, struct errbuf *err)
{
    char why[WHY_BYTES];
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        if (!option->fallback) {
            continue;
        }
        int status = option_set_line(job, option, option->fallback, why, sizeof why);
        if (status != 0) {
            return status == STATUS_NOMEM ? no_memory(err)
                                          : errbuf_set(err, status, "default of %s: %s", option->name, why);
        }
        job->record->origins[i].kind = JOB_ORIGIN_DEFAULT;
    }
    return 0;
}

void job_destroy(struct job *job)
{
    if (!job) {
        return;
    }
    for (int i = 0; i < option_count(); i++) {
        option_clear(job, option_at(i));
    }
    if (job->record) {
        for (int i = 0; i < job->record->warnings.count; i++) {
            free(job->record->warnings.items[i]);
        }
        free(job->record->warnings.items);
        free(job->record->source_name);
        free(job->record);
    }
    free(job);
}

/* ---- one value ---- */

/* Where a value stands, for the front of a message: "job.yaml:7". */
struct place {
    const char *text;
    struct job_value_origin origin;
};

static int refuse_unknown(const char *place, const char *path, struct errbuf *err)
{
    char hint[WHY_BYTES];
    option_suggest(path, hint, sizeof hint);
    return errbuf_set(err, STATUS_UNKNOWN, "%s: %.80s: unknown key; %s", place, path, hint);
}

static int refuse_section(const char *place, const char *path, const char *found, struct errbuf *err)
{
    char below[OPTION_PATH_MAX + 8], keys[WHY_BYTES];
    snprintf(below, sizeof below, "%.60s.?", path);
    option_suggest(below, keys, sizeof keys);
    return errbuf_set(err, STATUS_INVALID, "%s: %.80s: found %s, expected a mapping: %s", place, path, found, keys);
}

static int apply(struct job *job, const struct place *place, const char *path, const struct option_text *text,
                 const char *line, struct errbuf *err)
{
    char why[WHY_BYTES] = "";
    const struct option *option = option_find(path);
    if (!option) {
        return option_is_section(path) && path[0] ? refuse_section(place->text, path, "a value", err)
                                                  : refuse_unknown(place->text, path, err);
    }
    int status =
        text ? option_set(job, option, text, why, sizeof why) : option_set_line(job, option, line, why, sizeof why);
    if (status == STATUS_NOMEM) {
        return no_memory(err);
    }
    if (status != 0) {
        return errbuf_set(err, status, "%s: %s: %s", place->text, path, why);
    }
    job->record->origins[option_index(option)] = place->origin;
    return 0;
}

/* ---- the file ---- */

struct file_context {
    struct job *job;
    char sections[SECTION_COUNT_MAX][OPTION_PATH_MAX]; /* mappings seen, with their lines */
    int section_lines[SECTION_COUNT_MAX];
    int sections_count;
};

static int refuse_twice(const char *place, const char *path, int first, struct errbuf *err)
{
    return errbuf_set(err, STATUS_INVALID, "%s: %s: given twice, first in line %d", place, path, first);
}

static int on_mapping(struct file_context *context, const char *place, const struct job_yaml_entry *entry,
                      struct errbuf *err)
{
    if (option_find(entry->path)) {
        char expected[320];
        option_expected(option_find(entry->path), expected, sizeof expected);
        return errbuf_set(err, STATUS_INVALID, "%s: %s: found a mapping, expected %s", place, entry->path,
                          expected);
    }
    if (!option_is_section(entry->path)) {
        return refuse_unknown(place, entry->path, err);
    }
    for (int i = 0; i < context->sections_count; i++) {
        if (strcmp(context->sections[i], entry->path) == 0) {
            return refuse_twice(place, entry->path, context->section_lines[i], err);
        }
    }
    if (context->sections_count < SECTION_COUNT_MAX) {
        snprintf(context->sections[context->sections_count], OPTION_PATH_MAX, "%s", entry->path);
        context->section_lines[context->sections_count++] = entry->line;
    }
    return 0;
}

static int on_entry(void *opaque, const struct job_yaml_entry *entry, struct errbuf *err)
{
    struct file_context *context = opaque;
    struct job *job = context->job;
    char where[300];
    snprintf(where, sizeof where, "%.240s:%d", job->record->source_name, entry->line);
    if (entry->is_mapping) {
        return on_mapping(context, where, entry, err);
    }
    const struct option *option = option_find(entry->path);
    if (option) {
        const struct job_value_origin *origin = &job->record->origins[option_index(option)];
        if (origin->kind == JOB_ORIGIN_FILE) {
            return refuse_twice(where, entry->path, origin->line, err);
        }
        if (entry->is_nothing) {
            char expected[320];
            option_expected(option, expected, sizeof expected);
            return errbuf_set(err, STATUS_INVALID, "%s: %s: found nothing, expected %s", where, entry->path,
                              expected);
        }
    } else if (entry->is_nothing && entry->path[0] && option_is_section(entry->path)) {
        return refuse_section(where, entry->path, "nothing", err);
    }
    struct place place = {where, {.kind = JOB_ORIGIN_FILE, .line = entry->line}};
    return apply(job, &place, entry->path, &entry->value, NULL, err);
}

static int read_bytes(int fd, const char *path, char **text, size_t *bytes, struct errbuf *err)
{
    size_t limit = JOB_YAML_BYTES_MAX + 1, used = 0;
    char *data = malloc(limit + 1);
    if (!data) {
        return no_memory(err);
    }
    while (used < limit) {
        ssize_t got = read(fd, data + used, limit - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            free(data);
            return errbuf_set(err, STATUS_IO, "%s: cannot read the job file: %s", path, strerror(errno));
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    data[used] = '\0';
    *text = data;
    *bytes = used;
    return 0;
}

/* Pipes are fine (`shoal run <(…)`); sizes are known in advance only of files. */
static int read_file(const char *path, char **text, size_t *bytes, struct errbuf *err)
{
    struct stat information;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errbuf_set(err, STATUS_IO, "%s: cannot open the job file: %s", path, strerror(errno));
    }
    int status = 0;
    if (fstat(fd, &information) != 0) {
        status = errbuf_set(err, STATUS_IO, "%s: cannot read the job file: %s", path, strerror(errno));
    } else if (S_ISDIR(information.st_mode)) {
        status = errbuf_set(err, STATUS_IO, "%s: is a folder, expected a job file", path);
    } else if (S_ISREG(information.st_mode) && information.st_size > JOB_YAML_BYTES_MAX) {
        status = errbuf_set(err, STATUS_RANGE, "%s: has %lld bytes, a job file at most %d", path,
                            (long long)information.st_size, JOB_YAML_BYTES_MAX);
    } else {
        status = read_bytes(fd, path, text, bytes, err);
    }
    close(fd);
    return status;
}

static int load_file(struct job *job, const struct job_source *source, struct errbuf *err)
{
    struct file_context context = {.job = job};
    char *text = NULL;
    size_t bytes = 0;
    if (!source->path && !source->text) {
        return 0;
    }
    if (!source->path) {
        return job_yaml_read(source->text, strlen(source->text), job->record->source_name, on_entry, &context, err);
    }
    int status = read_file(source->path, &text, &bytes, err);
    if (status == 0) {
        status = job_yaml_read(text, bytes, job->record->source_name, on_entry, &context, err);
    }
    free(text);
    return status;
}

/* ---- environment, --set, overrides ---- */

/* Variables that belong to a process rather than to the job; env.h and the programs read them. */
static int is_process_variable(const char *name)
{
    static const char *const names[] = {"LOG",     "KEYS",  "RANK",      "WORKERS",  "SERVERS",
                                        "CLUSTER", "STATE", "ADVERTISE", "DATA_DIR", NULL};
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* SHOAL_OPTIMIZER_LERNING -> "optimizer.lerning", 1 when it looks like an option of the job. */
static int path_of_unknown_variable(const char *name, char out[OPTION_PATH_MAX])
{
    size_t i = 0;
    for (; name[i] && i + 1 < OPTION_PATH_MAX; i++) {
        out[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    }
    out[i] = '\0';
    for (int s = 1; option_section(s); s++) {
        size_t length = strlen(option_section(s));
        if (strncmp(out, option_section(s), length) == 0 && out[length] == '_') {
            out[length] = '.';
            return 1;
        }
    }
    return option_is_synonym(out);
}

static int load_variable(struct job *job, const char *variable, struct errbuf *err)
{
    char name[OPTION_PATH_MAX + 8], path[OPTION_PATH_MAX], where[OPTION_PATH_MAX + 32];
    const char *equals = strchr(variable, '=');
    if (strncmp(variable, "SHOAL_", 6) != 0 || !equals || (size_t)(equals - variable) >= sizeof name) {
        return 0;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - variable), variable);
    snprintf(where, sizeof where, "environment %s", name);
    struct place place = {where, {.kind = JOB_ORIGIN_ENVIRONMENT}};
    for (int i = 0; i < option_count(); i++) {
        char known[OPTION_PATH_MAX + 8];
        option_environment_name(option_at(i), known);
        if (strcmp(known, name) == 0) {
            option_path(option_at(i), path);
            return apply(job, &place, path, NULL, equals + 1, err);
        }
    }
    if (is_process_variable(name + 6) || !path_of_unknown_variable(name + 6, path)) {
        return 0;
    }
    return refuse_unknown(where, path, err);
}

static int load_set(struct job *job, const char *set, struct errbuf *err)
{
    char path[128];
    const char *equals = strchr(set, '=');
    if (!equals || equals == set) {
        return errbuf_set(err, STATUS_INVALID, "--set: found \"%.80s\", expected key=value", set);
    }
    snprintf(path, sizeof path, "%.*s", (int)(equals - set), set);
    struct place place = {"--set", {.kind = JOB_ORIGIN_SET}};
    return apply(job, &place, path, NULL, equals + 1, err);
}

static int load_override(struct job *job, const struct job_override *override, struct errbuf *err)
{
    struct place place = {override->origin, {.kind = JOB_ORIGIN_OVERRIDE}};
    snprintf(place.origin.name, sizeof place.origin.name, "%s", override->origin);
    return apply(job, &place, override->key, NULL, override->value, err);
}

static int load_values(struct job *job, const struct job_source *source, struct errbuf *err)
{
    int status = set_defaults(job, err);
    if (status == 0) {
        status = load_file(job, source, err);
    }
    for (int i = 0; status == 0 && source->environment && source->environment[i]; i++) {
        status = load_variable(job, source->environment[i], err);
    }
    for (int i = 0; status == 0 && i < source->sets_count; i++) {
        status = load_set(job, source->sets[i], err);
    }
    for (int i = 0; status == 0 && i < source->overrides_count; i++) {
        status = load_override(job, &source->overrides[i], err);
    }
    return status;
}

static int load_checked(struct job *job, const struct job_source *source, struct errbuf *err)
{
    int status = load_values(job, source, err);
    if (status == 0 && source->need == JOB_NEED_TRAINING) {
        status = job_check_needs(job, err);
    }
    if (status == 0) {
        status = job_check_resolve(job, err);
    }
    if (status == 0) {
        status = job_check_combinations(job, source->need, err);
    }
    return status == 0 ? job_check_warn(job, err) : status;
}

/* A message is one line, whatever bytes a value or a path had. */
static void keep_to_one_line(struct errbuf *err)
{
    for (char *c = err ? err->text : NULL; c && *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

int job_load(struct job **out, const struct job_source *source, struct errbuf *err)
{
    const char *name = source->path ? source->path : source->text_name ? source->text_name : "job";
    /* Numbers have a point whatever the program's locale says. */
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (numbers == (locale_t)0) {
        return no_memory(err);
    }
    locale_t before = uselocale(numbers);
    struct job *job = create_empty(name);
    int status = job ? load_checked(job, source, err) : no_memory(err);
    uselocale(before);
    freelocale(numbers);
    if (status != 0) {
        job_destroy(job);
        keep_to_one_line(err);
        return status;
    }
    *out = job;
    return 0;
}
