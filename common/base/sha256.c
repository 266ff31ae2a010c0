#include "base/sha256.h"

#include "base/status.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

struct sha256 {
    EVP_MD_CTX *digest;
    int failed; /* libcrypto refused once; the hex then is empty instead of wrong */
};

static void sha256_reset(struct sha256 *sha)
{
    sha->failed = EVP_DigestInit_ex(sha->digest, EVP_sha256(), NULL) != 1;
}

struct sha256 *sha256_create(void)
{
    struct sha256 *sha = calloc(1, sizeof *sha);
    if (!sha)
        return NULL;
    sha->digest = EVP_MD_CTX_new();
    if (sha->digest)
        sha256_reset(sha);
    if (!sha->digest || sha->failed) {
        sha256_destroy(sha);
        return NULL;
    }
    return sha;
}

void sha256_update(struct sha256 *sha, const void *data, size_t bytes)
{
    if (bytes && EVP_DigestUpdate(sha->digest, data, bytes) != 1)
        sha->failed = 1;
}

int sha256_finish_raw(struct sha256 *sha, uint8_t raw[32])
{
    unsigned length = 0;
    int failed = EVP_DigestFinal_ex(sha->digest, raw, &length) != 1 || length != 32 || sha->failed;
    sha256_reset(sha);
    return failed ? STATUS_NOMEM : STATUS_OK;
}

void sha256_finish(struct sha256 *sha, char hex[65])
{
    uint8_t raw[32];
    int status = sha256_finish_raw(sha, raw);
    hex[0] = '\0';
    for (unsigned i = 0; status == STATUS_OK && i < sizeof raw; i++)
        snprintf(hex + 2 * i, 3, "%02x", raw[i]);
}

void sha256_destroy(struct sha256 *sha)
{
    if (!sha)
        return;
    EVP_MD_CTX_free(sha->digest);
    free(sha);
}

int sha256_of_bytes(const void *data, size_t bytes, char hex[65])
{
    hex[0] = '\0';
    struct sha256 *sha = sha256_create();
    if (!sha)
        return STATUS_NOMEM;
    sha256_update(sha, data, bytes);
    sha256_finish(sha, hex);
    sha256_destroy(sha);
    return hex[0] ? STATUS_OK : STATUS_NOMEM;
}

int sha256_of_file(const char *path, char hex[65])
{
    enum { CHUNK = 1 << 18 };
    int status = STATUS_NOMEM;
    hex[0] = '\0';
    struct sha256 *sha = sha256_create();
    char *chunk = malloc(CHUNK);
    if (!sha || !chunk)
        goto free_memory;
    status = STATUS_IO;
    FILE *file = fopen(path, "rbe");
    if (!file)
        goto free_memory;
    setvbuf(file, NULL, _IONBF, 0);
    size_t got;
    while ((got = fread(chunk, 1, CHUNK, file)) > 0)
        sha256_update(sha, chunk, got);
    if (!ferror(file)) {
        sha256_finish(sha, hex);
        status = hex[0] ? STATUS_OK : STATUS_NOMEM;
    }
    fclose(file);
free_memory:
    free(chunk);
    sha256_destroy(sha);
    return status;
}
