/* A YAML document as a flat run of (key path, value, line). Only what a job file needs: mappings, scalars and lists
 * of scalars; anchors, aliases, tags, directives, several documents and deep nesting are refused. Pure; any thread.
 */
#ifndef SHOAL_CONFIG_JOB_YAML_H
#define SHOAL_CONFIG_JOB_YAML_H

#include <stddef.h>

#include "config/option_value.h"

struct errbuf;

enum { JOB_YAML_BYTES_MAX = 1 << 20, JOB_YAML_DEPTH_MAX = 8, JOB_YAML_ITEMS_MAX = 65536 };

struct job_yaml_entry {
    const char *path;         /* "data.train.images" */
    int line;                 /* of the key, from 1 */
    int is_mapping;           /* a mapping begins here; no value */
    int is_nothing;           /* "key:" or null; value.scalar is "" */
    struct option_text value; /* borrowed during the call */
};

/* Calls on_entry for each key in the file's order; a non-zero return ends the reading and is returned. `name`
 * stands for the file in messages. STATUS_FORMAT, STATUS_NOMEM. */
int job_yaml_read(const char *text, size_t bytes, const char *name,
                  int (*on_entry)(void *context, const struct job_yaml_entry *entry, struct errbuf *err),
                  void *context, struct errbuf *err);

#endif
