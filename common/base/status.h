/* Status codes of every fallible call: 0 is success, negatives are these.
 * Any thread; nothing is owned. */
#ifndef SHOAL_BASE_STATUS_H
#define SHOAL_BASE_STATUS_H

enum status {
    STATUS_OK = 0,
    STATUS_NOMEM = -1,
    STATUS_INVALID = -2,   /* an argument or a configuration that cannot be used */
    STATUS_SHAPE = -3,     /* lengths or dimensions that do not fit */
    STATUS_UNKNOWN = -4,   /* no such key, tensor, option, rank */
    STATUS_EXISTS = -5,    /* already there: a taken rank, a registered name */
    STATUS_IO = -6,        /* the operating system refused; errno text is in the errbuf */
    STATUS_FORMAT = -7,    /* a file or message that breaks its format */
    STATUS_CHECKSUM = -8,  /* stored and computed checksum differ */
    STATUS_PROTOCOL = -9,  /* peers that cannot talk to each other */
    STATUS_TIMEOUT = -10,
    STATUS_CLOSED = -11,   /* the object was closed under the call */
    STATUS_BUSY = -12,
    STATUS_RANGE = -13,    /* a number outside its limits */
    STATUS_ABORTED = -14,  /* the job was ended by someone else; the errbuf says who */
    STATUS_DENIED = -15,   /* authentication or authorisation */
    STATUS_STOPPED = -16,  /* SIGTERM or SIGINT: an orderly end */
    STATUS_NUMERIC = -17,  /* a non-finite number where the job says stop */
    STATUS_ROLLED_BACK = -18, /* the service went back to an earlier step */
};

/* Short English text of a status ("out of memory"); never NULL. */
const char *status_text(int status);

#endif
