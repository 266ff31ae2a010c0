/* SHA-256 (FIPS 180-4) through OpenSSL's libcrypto, of what comes piece by piece: create, update, finish. One thread a
 * context. */
#ifndef SHOAL_BASE_SHA256_H
#define SHOAL_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256;
struct sha256 *sha256_create(void); /* NULL when out of memory */
void sha256_update(struct sha256 *sha, const void *data, size_t bytes);
void sha256_finish(struct sha256 *sha, char hex[65]); /* and resets for the next use; "" when libcrypto failed */
int sha256_finish_raw(struct sha256 *sha, uint8_t raw[32]); /* the same as bytes; STATUS_NOMEM when libcrypto failed */
void sha256_destroy(struct sha256 *sha);
int sha256_of_bytes(const void *data, size_t bytes, char hex[65]);
int sha256_of_file(const char *path, char hex[65]); /* STATUS_IO with errno set, STATUS_NOMEM */

#endif
