#include "optim/plugin.h"

#include "base/errbuf.h"
#include "base/status.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int plugin_check(const char *path, const struct plugin_want *want, const void *ops, struct errbuf *err)
{
    int version;

    if (!ops)
        return errbuf_set(err, STATUS_PROTOCOL, "plug-in %s: it does not export `%s`", path, want->symbol);
    memcpy(&version, ops, sizeof version);
    if (version != want->version)
        return errbuf_set(err, STATUS_PROTOCOL, "plug-in %s: `%s` has version %d, this program needs version %d",
                          path, want->symbol, version, want->version);
    return STATUS_OK;
}

int plugin_open(const char *path, const struct plugin_want *want, const void **ops, void **handle,
                struct errbuf *err)
{
    char file[4096];

    if (!path[0])
        return errbuf_set(err, STATUS_INVALID, "plug-in for `%s`: no file is given", want->symbol);
    /* A name without a slash would be looked for in the system's library folders. */
    int length = snprintf(file, sizeof file, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (length < 0 || (size_t)length >= sizeof file)
        return errbuf_set(err, STATUS_INVALID, "plug-in for `%s`: the path is longer than %zu bytes", want->symbol,
                          sizeof file - 1);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return errbuf_set(err, STATUS_IO, "plug-in %s: cannot be loaded: %s", path, reason ? reason : "unknown");
    }
    const void *found = dlsym(library, want->symbol);
    int status = plugin_check(path, want, found, err);
    if (status) {
        dlclose(library);
        return status;
    }
    *ops = found;
    *handle = library;
    return STATUS_OK;
}

void plugin_close(void *handle)
{
    if (handle)
        dlclose(handle);
}
