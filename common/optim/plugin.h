/* Loads a versioned ops struct from a shared object. Any thread (the loader locks by itself). */
#ifndef SHOAL_OPTIM_PLUGIN_H
#define SHOAL_OPTIM_PLUGIN_H

struct errbuf;

struct plugin_want {
    const char *symbol; /* the exported const struct, whose first member is `int version` */
    int version;        /* the only one accepted */
};

/* Opens the file at `path` and returns the struct in *ops, valid until plugin_close(*handle).
 * STATUS_IO: no such file or not loadable; STATUS_PROTOCOL: no such symbol, or of another version. */
int plugin_open(const char *path, const struct plugin_want *want, const void **ops, void **handle,
                struct errbuf *err);
void plugin_close(void *handle); /* takes NULL */

#endif
