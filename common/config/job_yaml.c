#include "config/job_yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/errbuf.h"
#include "base/status.h"

enum { PATH_BYTES = 256 };

struct reader {
    yaml_parser_t parser;
    const char *name;
    int (*on_entry)(void *, const struct job_yaml_entry *, struct errbuf *);
    void *context;
    struct errbuf *err;
    char path[PATH_BYTES];              /* of the mapping that is open, and of the key being read */
    size_t lengths[JOB_YAML_DEPTH_MAX]; /* of path in each open mapping */
    int depth;                          /* open mappings */
    int has_key;                        /* path ends in a key that waits for its value */
    int key_line;
    char **items; /* of the list being read, NULL outside */
    int items_count, items_capacity;
};

static int line_of(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

static int refuse(struct reader *reader, const yaml_event_t *event, const char *what)
{
    return errbuf_set(reader->err, STATUS_FORMAT, "%s:%d: %s", reader->name, line_of(event), what);
}

static int parser_error(struct reader *reader)
{
    const yaml_parser_t *parser = &reader->parser;
    if (parser->error == YAML_MEMORY_ERROR) {
        return errbuf_set(reader->err, STATUS_NOMEM, "%s: out of memory", reader->name);
    }
    if (parser->error == YAML_READER_ERROR) {
        return errbuf_set(reader->err, STATUS_FORMAT, "%s: not a text file: %s at byte %zu", reader->name,
                          parser->problem ? parser->problem : "cannot be read", parser->problem_offset);
    }
    const char *problem = parser->problem ? parser->problem : "not YAML";
    const char *context = parser->context ? parser->context : "";
    const char *hint = strstr(context, "alias") || strstr(context, "anchor")
                           ? " (put text that begins with * or & in quotes)"
                           : "";
    return errbuf_set(reader->err, STATUS_FORMAT, "%s:%zu: not YAML: %s%s", reader->name,
                      parser->problem_mark.line + 1, problem, hint);
}

static int report(struct reader *reader, int is_mapping, int is_nothing, const struct option_text *value)
{
    struct job_yaml_entry entry = {reader->path, reader->key_line, is_mapping, is_nothing, *value};
    reader->has_key = 0;
    return reader->on_entry(reader->context, &entry, reader->err);
}

/* Takes the key back off the path once its value is done. */
static void leave_key(struct reader *reader)
{
    reader->path[reader->lengths[reader->depth - 1]] = '\0';
    reader->has_key = 0;
}

static int read_key(struct reader *reader, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t length = reader->lengths[reader->depth - 1], bytes = event->data.scalar.length;
    if (bytes == 0 || strlen(text) != bytes || strchr(text, '.')) {
        return refuse(reader, event, "a key must be a plain word");
    }
    if (length + 1 + bytes >= PATH_BYTES) {
        return refuse(reader, event, "a key is too long");
    }
    if (length > 0) {
        reader->path[length++] = '.';
    }
    memcpy(reader->path + length, text, bytes + 1);
    reader->has_key = 1;
    reader->key_line = line_of(event);
    return 0;
}

static int is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static int read_item(struct reader *reader, const yaml_event_t *event)
{
    if (reader->items_count == JOB_YAML_ITEMS_MAX) {
        return refuse(reader, event, "a list is too long");
    }
    if (reader->items_count == reader->items_capacity) {
        int capacity = reader->items_capacity ? 2 * reader->items_capacity : 16;
        char **items = realloc(reader->items, (size_t)capacity * sizeof *items);
        if (!items) {
            return errbuf_set(reader->err, STATUS_NOMEM, "%s: out of memory", reader->name);
        }
        reader->items = items;
        reader->items_capacity = capacity;
    }
    char *copy = strdup((const char *)event->data.scalar.value);
    if (!copy) {
        return errbuf_set(reader->err, STATUS_NOMEM, "%s: out of memory", reader->name);
    }
    reader->items[reader->items_count++] = copy;
    return 0;
}

static int read_scalar(struct reader *reader, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    if (event->data.scalar.anchor || event->data.scalar.tag) {
        return refuse(reader, event, "anchors and tags are not used in a job file (put such text in quotes)");
    }
    if (strlen(text) != event->data.scalar.length) {
        return refuse(reader, event, "a value holds a NUL");
    }
    if (reader->depth == 0) {
        return refuse(reader, event, "expected keys and values (\"seed: 1\")");
    }
    if (reader->items) {
        return read_item(reader, event);
    }
    if (!reader->has_key) {
        return read_key(reader, event);
    }
    struct option_text value = {is_null(event) ? "" : text, NULL, 0};
    int status = report(reader, 0, is_null(event), &value);
    leave_key(reader);
    return status;
}

static int begin_mapping(struct reader *reader, const yaml_event_t *event)
{
    struct option_text nothing = {NULL, NULL, 0};
    if (event->data.mapping_start.anchor || event->data.mapping_start.tag) {
        return refuse(reader, event, "anchors and tags are not used in a job file");
    }
    if (reader->items || (reader->depth > 0 && !reader->has_key)) {
        return refuse(reader, event, "a mapping cannot stand here");
    }
    if (reader->depth == JOB_YAML_DEPTH_MAX) {
        return refuse(reader, event, "nested too deeply");
    }
    int status = reader->depth > 0 ? report(reader, 1, 0, &nothing) : 0;
    reader->lengths[reader->depth++] = strlen(reader->path);
    return status;
}

static void end_mapping(struct reader *reader)
{
    reader->depth--;
    if (reader->depth > 0) {
        leave_key(reader);
    }
}

static int begin_list(struct reader *reader, const yaml_event_t *event)
{
    if (event->data.sequence_start.anchor || event->data.sequence_start.tag) {
        return refuse(reader, event, "anchors and tags are not used in a job file");
    }
    if (reader->depth == 0 || reader->items || !reader->has_key) {
        return refuse(reader, event, "a list cannot stand here");
    }
    reader->items_capacity = 16;
    reader->items = calloc((size_t)reader->items_capacity, sizeof *reader->items);
    return reader->items ? 0 : errbuf_set(reader->err, STATUS_NOMEM, "%s: out of memory", reader->name);
}

static void free_items(struct reader *reader)
{
    for (int i = 0; i < reader->items_count; i++) {
        free(reader->items[i]);
    }
    free(reader->items);
    reader->items = NULL;
    reader->items_count = reader->items_capacity = 0;
}

static int end_list(struct reader *reader)
{
    struct option_text value = {NULL, reader->items, reader->items_count};
    int status = report(reader, 0, 0, &value);
    free_items(reader);
    leave_key(reader);
    return status;
}

static int begin_document(struct reader *reader, const yaml_event_t *event, int *documents)
{
    if (event->data.document_start.tag_directives.start != event->data.document_start.tag_directives.end) {
        return refuse(reader, event, "tags are not used in a job file");
    }
    return ++*documents > 1 ? refuse(reader, event, "a job file is one YAML document; another begins here") : 0;
}

static int read_event(struct reader *reader, const yaml_event_t *event, int *documents)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return begin_document(reader, event, documents);
    case YAML_ALIAS_EVENT:
        return refuse(reader, event, "aliases are not used in a job file (put text that begins with * in quotes)");
    case YAML_SCALAR_EVENT:
        return read_scalar(reader, event);
    case YAML_SEQUENCE_START_EVENT:
        return begin_list(reader, event);
    case YAML_SEQUENCE_END_EVENT:
        return end_list(reader);
    case YAML_MAPPING_START_EVENT:
        return begin_mapping(reader, event);
    case YAML_MAPPING_END_EVENT:
        end_mapping(reader);
        return 0;
    default:
        return 0;
    }
}

int job_yaml_read(const char *text, size_t bytes, const char *name,
                  int (*on_entry)(void *context, const struct job_yaml_entry *entry, struct errbuf *err),
                  void *context, struct errbuf *err)
{
    struct reader reader = {.name = name, .on_entry = on_entry, .context = context, .err = err};
    if (bytes > JOB_YAML_BYTES_MAX) {
        return errbuf_set(err, STATUS_RANGE, "%s: has %zu bytes, a job file at most %d", name, bytes,
                          JOB_YAML_BYTES_MAX);
    }
    if (!yaml_parser_initialize(&reader.parser)) {
        return errbuf_set(err, STATUS_NOMEM, "%s: out of memory", name);
    }
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, bytes);
    int status = 0, documents = 0, ended = 0;
    while (status == 0 && !ended) {
        yaml_event_t event;
        if (!yaml_parser_parse(&reader.parser, &event)) {
            status = parser_error(&reader);
            break;
        }
        status = read_event(&reader, &event, &documents);
        ended = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    if (status == 0 && documents == 0) {
        status = errbuf_set(err, STATUS_FORMAT, "%s: is empty, expected a job", name);
    }
    free_items(&reader);
    yaml_parser_delete(&reader.parser);
    return status;
}
