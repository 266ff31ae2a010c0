/* Any bytes as an owner's state file of a small model: refused, or every element of it is found or named as missing. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "owner/state_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { ELEMENTS = 40 };

static void read_layers(const struct state_files *files, const struct keymap *map)
{
    float out[ELEMENTS];
    for (int layer = 0; layer < 2; layer++) {
        for (int slot = -1; slot < 4; slot++) {
            struct errbuf err;
            struct state_span span = state_span_of(map, layer, layer, map->table->layers[layer].count);
            span.slot = slot;
            errbuf_init(&err);
            if (state_files_copy(files, &span, out, &err) != 0 && strstr(err.text, "has no stored") == NULL) {
                abort();
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct param_table table;
    struct keymap map;
    struct state_files *files = NULL;
    struct errbuf err;
    char path[64];
    int fd = memfd_create("state", MFD_CLOEXEC);
    errbuf_init(&err);
    param_table_init(&table);
    param_table_add_layer(&table);
    param_table_add(&table, "a", 1, (int64_t[]){24}, NULL);
    param_table_add(&table, "b", 1, (int64_t[]){3}, NULL);
    param_table_add_layer(&table);
    param_table_add(&table, "c", 1, (int64_t[]){9}, NULL);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes ||
        keymap_init(&map, &table, &(struct keymap_layout){2, 1, KEY_ELEMENTS * 4, CANONICAL_PART}, NULL) != 0) {
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const char *paths[] = {path, path}; /* everything twice: what is equal does no harm */
    if (state_files_open(&files, &map, paths, 2, &err) == 0) {
        read_layers(files, &map);
    } else if (err.text[0] == '\0') {
        abort();
    }
    state_files_close(files);
    keymap_close(&map);
    param_table_close(&table);
    close(fd);
    return 0;
}
