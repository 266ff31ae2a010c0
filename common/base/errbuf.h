/* A fixed buffer for the one line that tells a person why something failed.
 * Owned by the caller, used by one thread at a time. Every function takes NULL. */
#ifndef SHOAL_BASE_ERRBUF_H
#define SHOAL_BASE_ERRBUF_H

struct errbuf {
    char text[512]; /* always NUL-terminated; long texts are cut */
};

void errbuf_init(struct errbuf *err);

/* Replaces the text and returns `status`, so that `return errbuf_set(err, STATUS_X, ...)` reads well. */
int errbuf_set(struct errbuf *err, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text that is there; returns `status`. */
int errbuf_prefix(struct errbuf *err, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
