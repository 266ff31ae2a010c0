/* `shoal inspect`, a function a kind of file. Each prints to stdout and returns a status with the reason. First
 * thread. */
#ifndef SHOAL_CLI_INSPECT_H
#define SHOAL_CLI_INSPECT_H

struct errbuf;

int inspect_safetensors(const char *path, struct errbuf *err);
int inspect_npy(const char *path, struct errbuf *err);
int inspect_idx(const char *path, struct errbuf *err);
int inspect_rows(const char *path, const char *kind, struct errbuf *err); /* csv, libsvm */
int inspect_manifest(const char *path, struct errbuf *err);
int inspect_folder(const char *path, struct errbuf *err); /* a snapshot, or a folder of them */

#endif
