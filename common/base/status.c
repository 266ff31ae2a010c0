#include "base/status.h"

const char *status_text(int status)
{
    switch (status) {
    case STATUS_OK:
        return "success";
    case STATUS_NOMEM:
        return "out of memory";
    case STATUS_INVALID:
        return "invalid argument or configuration";
    case STATUS_SHAPE:
        return "lengths or dimensions do not fit";
    case STATUS_UNKNOWN:
        return "no such item";
    case STATUS_EXISTS:
        return "already there";
    case STATUS_IO:
        return "input or output failed";
    case STATUS_FORMAT:
        return "format broken";
    case STATUS_CHECKSUM:
        return "checksums differ";
    case STATUS_PROTOCOL:
        return "peers cannot talk to each other";
    case STATUS_TIMEOUT:
        return "timed out";
    case STATUS_CLOSED:
        return "closed";
    case STATUS_BUSY:
        return "busy";
    case STATUS_RANGE:
        return "number out of range";
    case STATUS_ABORTED:
        return "job aborted";
    case STATUS_DENIED:
        return "access denied";
    case STATUS_STOPPED:
        return "stopped";
    case STATUS_NUMERIC:
        return "non-finite number";
    case STATUS_ROLLED_BACK:
        return "rolled back to an earlier step";
    default:
        return "unknown status";
    }
}
