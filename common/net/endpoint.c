#include "net/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/errbuf.h"
#include "base/status.h"

static int parse_port(const char *text, int listen, int *port)
{
    if (listen && strcmp(text, "*") == 0) {
        *port = 0;
        return STATUS_OK;
    }
    char *end;
    long value = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value < (listen ? 0 : 1) || value > 65535)
        return STATUS_INVALID;
    *port = (int)value;
    return STATUS_OK;
}

/* "host:port" or "[v6]:port". */
static int split(struct endpoint *endpoint, const char *rest, int listen)
{
    const char *colon = strrchr(rest, ':');
    if (!colon || colon == rest)
        return STATUS_INVALID;
    size_t length = (size_t)(colon - rest);
    if (rest[0] == '[' && colon[-1] == ']') {
        rest++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof endpoint->host)
        return STATUS_INVALID;
    memcpy(endpoint->host, rest, length);
    endpoint->host[length] = '\0';
    return parse_port(colon + 1, listen, &endpoint->port);
}

static int parse(struct endpoint *endpoint, const char *text, int listen, struct errbuf *err)
{
    memset(endpoint, 0, sizeof *endpoint);
    if (!text || strlen(text) >= sizeof endpoint->text)
        return errbuf_set(err, STATUS_INVALID, "no endpoint, or a very long one");
    snprintf(endpoint->text, sizeof endpoint->text, "%s", text);
    endpoint->loopback = 1;
    if (strncmp(text, "inproc://", 9) == 0 && text[9]) {
        endpoint->kind = ENDPOINT_INPROC;
        return STATUS_OK;
    }
    if (strncmp(text, "ipc://", 6) == 0 && text[6]) {
        endpoint->kind = ENDPOINT_IPC;
        return STATUS_OK;
    }
    endpoint->kind = ENDPOINT_TCP;
    if (strncmp(text, "tcp://", 6) || split(endpoint, text + 6, listen))
        return errbuf_set(err, STATUS_INVALID, "%s is not an endpoint such as tcp://host:7070", text);
    return STATUS_OK;
}

static int address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* First IPv4 address of a name, else its first IPv6 one, as text. */
static int resolve(struct endpoint *endpoint, char *address, size_t address_bytes, struct errbuf *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(endpoint->host, NULL, &hints, &found);
    if (rc)
        return errbuf_set(err, STATUS_UNKNOWN, "host name %s: %s", endpoint->host, gai_strerror(rc));
    const struct addrinfo *best = NULL;
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        if (a->ai_family == AF_INET && (!best || best->ai_family != AF_INET))
            best = a;
        if (a->ai_family == AF_INET6 && !best)
            best = a;
    }
    int status = STATUS_OK;
    if (!best || getnameinfo(best->ai_addr, best->ai_addrlen, address, (socklen_t)address_bytes, NULL, 0,
                             NI_NUMERICHOST)) {
        status = errbuf_set(err, STATUS_UNKNOWN, "host name %s has no address", endpoint->host);
    } else {
        endpoint->ipv6 = best->ai_family == AF_INET6;
        endpoint->loopback = address_is_loopback(best->ai_addr);
    }
    freeaddrinfo(found);
    return status;
}

int endpoint_parse_connect(struct endpoint *endpoint, const char *text, struct errbuf *err)
{
    int status = parse(endpoint, text, 0, err);
    char address[INET6_ADDRSTRLEN + 32];
    if (status || endpoint->kind != ENDPOINT_TCP)
        return status;
    return resolve(endpoint, address, sizeof address, err);
}

int endpoint_parse_listen(struct endpoint *endpoint, const char *text, struct errbuf *err)
{
    int status = parse(endpoint, text, 1, err);
    char address[INET6_ADDRSTRLEN + 32] = "0.0.0.0";
    if (status || endpoint->kind != ENDPOINT_TCP)
        return status;
    if (strcmp(endpoint->host, "*") == 0)
        endpoint->loopback = 0;
    else
        status = resolve(endpoint, address, sizeof address, err);
    if (status)
        return status;
    char port[8] = "*";
    if (endpoint->port)
        snprintf(port, sizeof port, "%d", endpoint->port);
    snprintf(endpoint->text, sizeof endpoint->text, endpoint->ipv6 ? "tcp://[%s]:%s" : "tcp://%s:%s", address, port);
    return STATUS_OK;
}
