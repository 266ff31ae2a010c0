/* Any bytes as a snapshot's manifest: refused or read back to the same manifest. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct manifest first, second;
    if (manifest_parse((const char *)data, bytes, &first, NULL) != 0)
        return 0;
    char *text = manifest_to_text(&first);
    if (text == NULL || manifest_parse(text, strlen(text), &second, NULL) != 0 || second.step != first.step ||
        second.files_count != first.files_count || second.running_count != first.running_count)
        abort();
    free(text);
    manifest_close(&first);
    manifest_close(&second);
    return 0;
}
