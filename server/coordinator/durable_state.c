#include "server/coordinator/durable_state.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "files/fs.h"

enum { STATE_FORMAT = 1, STATE_BYTES_MAX = 16 << 20 };

void durable_state_init(struct durable_state *state)
{
    memset(state, 0, sizeof *state);
}

void durable_state_close(struct durable_state *state)
{
    for (int i = 0; i < state->members_count; i++) {
        free(state->members[i].host);
        free(state->members[i].address);
    }
    free(state->members);
    free(state->manifest);
    durable_state_init(state);
}

static char *state_path(const char *state_dir)
{
    char *path = NULL;
    return asprintf(&path, "%s/coordinator.json", state_dir) < 0 ? NULL : path;
}

static json_t *hex(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    return json_string(text);
}

static char *state_text(const struct durable_state *state)
{
    json_t *root = json_object(), *members = json_array();
    for (int i = 0; i < state->members_count; i++) {
        const struct durable_member *member = &state->members[i];
        json_t *item = json_pack("{s:s,s:i,s:s,s:s,s:I}", "role", member->is_worker ? "worker" : "server", "rank",
                                 member->rank, "host", member->host == NULL ? "" : member->host, "address",
                                 member->address == NULL ? "" : member->address, "pid", (json_int_t)member->pid);
        json_object_set_new(item, "incarnation", hex(member->incarnation));
        json_array_append_new(members, item);
    }
    json_object_set_new(root, "format", json_integer(STATE_FORMAT));
    json_object_set_new(root, "term", json_integer((json_int_t)state->term));
    json_object_set_new(root, "cluster_epoch", json_integer((json_int_t)state->cluster_epoch));
    json_object_set_new(root, "job", hex(state->job));
    json_object_set_new(root, "job_hash", hex(state->job_hash));
    json_object_set_new(root, "keymap", json_pack("{s:o,s:i,s:i}", "table", hex(state->table), "workers",
                                                  state->workers, "servers", state->servers));
    json_object_set_new(root, "members", members);
    json_object_set_new(root, "manifest", json_string(state->manifest == NULL ? "" : state->manifest));
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    return text;
}

int durable_state_save(const struct durable_state *state, const char *state_dir, struct errbuf *err)
{
    char *path = state_path(state_dir), *text = state_text(state);
    int status = path == NULL || text == NULL ? errbuf_set(err, STATUS_NOMEM, "out of memory")
                                              : fs_write_file(path, text, strlen(text), err);
    free(path);
    free(text);
    return status;
}

/* Only what a new life needs is read back: numbers that must rise, and the last manifest. */
static int state_parse(struct durable_state *state, const char *text, size_t bytes)
{
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_int_t format = 0, term = 0, epoch = 0;
    const char *manifest = "";
    int good = root != NULL && json_unpack(root, "{s:I,s:I,s:I,s:s}", "format", &format, "term", &term,
                                           "cluster_epoch", &epoch, "manifest", &manifest) == 0;
    good = good && format == STATE_FORMAT && term >= 0 && epoch >= 0;
    if (good) {
        state->term = (uint64_t)term;
        state->cluster_epoch = (uint64_t)epoch;
        state->manifest = strdup(manifest);
    }
    json_decref(root);
    return good ? 0 : STATUS_FORMAT;
}

int durable_state_load(struct durable_state *state, const char *state_dir, struct errbuf *err)
{
    durable_state_init(state);
    char *path = state_path(state_dir), *text = NULL;
    size_t bytes = 0;
    if (path == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    int status = 0;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        goto out;
    status = fs_read_file(path, STATE_BYTES_MAX, &text, &bytes, err);
    if (status == 0 && state_parse(state, text, bytes) != 0)
        status = errbuf_set(err, STATUS_FORMAT, "%s: not a coordinator's state of format %d", path, STATE_FORMAT);
out:
    free(text);
    free(path);
    return status;
}
