#include "worker/collective/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "net/fd_pass.h"
#include "worker/collective/collective_internal.h"

enum {
    IO_THREADS = 2, /* one for each direction: the copies to and from the kernel are most of the work */
    PULL_QUEUE = 4,   /* messages that wait in ZeroMQ for this rank: arrivals are bounded by it and by ring_pass */
    LINGER_MS = 2000, /* how long the last words of a group may take */
    HANDSHAKE_MS = 120000 /* a neighbour may knock long before this rank knows whom to let in */
};
static const char port_domain[] = "shoal-ring";

/* --- which address faces the coordinator ---------------------------------------------------------- */

/* Connecting a datagram socket sends nothing; it only asks the routing table. */
static int facing_address(const struct endpoint *to, char *address, size_t address_bytes, struct errbuf *err)
{
    char port[8];
    snprintf(port, sizeof port, "%d", to->port);
    struct addrinfo hints = {.ai_family = to->ipv6 ? AF_INET6 : AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    int rc = getaddrinfo(to->host, port, &hints, &found);
    if (rc)
        return errbuf_set(err, STATUS_UNKNOWN, "host name %s: %s", to->host, gai_strerror(rc));
    struct sockaddr_storage local;
    socklen_t bytes = sizeof local;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int failed = fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) ||
                 getsockname(fd, (struct sockaddr *)&local, &bytes);
    int cause = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    if (failed)
        return errbuf_set(err, STATUS_IO, "no local address faces the coordinator %s: %s", to->text,
                          strerror(cause));
    rc = getnameinfo((struct sockaddr *)&local, bytes, address, (socklen_t)address_bytes, NULL, 0, NI_NUMERICHOST);
    return rc ? errbuf_set(err, STATUS_IO, "local address that faces %s: %s", to->text, gai_strerror(rc))
              : STATUS_OK;
}

struct port_place {
    char host[256]; /* advertised; without brackets */
    char bind[PORT_ADDRESS_MAX];
    int loopback;
};

static const char *bracketed(const char *host, char *text, size_t bytes)
{
    snprintf(text, bytes, strchr(host, ':') ? "[%s]" : "%s", host);
    return text;
}

/* As a person says it: other ranks use the host as typed; this rank binds every address unless it is a loopback
 * one, since a translated address is not its own. */
static int place_of_advertise(struct port_place *place, const char *advertise, struct errbuf *err)
{
    char text[ENDPOINT_MAX], host[264];
    struct endpoint endpoint;
    const char *bare = strncmp(advertise, "tcp://", 6) == 0 ? advertise + 6 : advertise;
    const char *colon = strrchr(bare, ':');
    int with_port = colon && (bare[0] == '[' ? colon[-1] == ']' : strchr(bare, ':') == colon);
    if (strlen(bare) >= sizeof endpoint.host)
        return errbuf_set(err, STATUS_INVALID, "advertised address of %zu bytes", strlen(bare));
    if (with_port)
        snprintf(text, sizeof text, "tcp://%s", bare);
    else
        snprintf(text, sizeof text, "tcp://%s:*", bare[0] == '[' ? bare : bracketed(bare, host, sizeof host));
    int status = endpoint_parse_listen(&endpoint, text, err);
    if (status || endpoint.kind != ENDPOINT_TCP || strcmp(endpoint.host, "*") == 0)
        return errbuf_prefix(err, status ? status : STATUS_INVALID, "advertised address %s", advertise);
    snprintf(place->host, sizeof place->host, "%s", endpoint.host);
    place->loopback = endpoint.loopback;
    if (endpoint.loopback)
        snprintf(place->bind, sizeof place->bind, "%s", endpoint.text);
    else if (endpoint.port)
        snprintf(place->bind, sizeof place->bind, "tcp://*:%d", endpoint.port);
    else
        snprintf(place->bind, sizeof place->bind, "tcp://*:*");
    return STATUS_OK;
}

static int place_of_cluster(struct port_place *place, const char *cluster, struct errbuf *err)
{
    struct endpoint endpoint;
    char host[264];
    int status = endpoint_parse_connect(&endpoint, cluster, err);
    if (status)
        return status;
    snprintf(place->host, sizeof place->host, endpoint.kind == ENDPOINT_TCP && endpoint.ipv6 ? "::1" : "127.0.0.1");
    place->loopback = endpoint.loopback;
    if (!endpoint.loopback)
        status = facing_address(&endpoint, place->host, sizeof place->host, err);
    snprintf(place->bind, sizeof place->bind, "tcp://%s:*", bracketed(place->host, host, sizeof host));
    return status;
}

/* --- sockets -------------------------------------------------------------------------------------- */

static void set(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static int load_keys(struct collective_port *port, struct errbuf *err)
{
    const struct role_host *host = port->host;
    port->curved = host->keys_dir && host->keys_dir[0];
    return port->curved ? net_keys_load(&port->curve, host->keys_dir, host->key_name, NULL, err) : STATUS_OK;
}

static int open_zap(struct collective_port *port, struct errbuf *err)
{
    port->zap = zmq_socket(port->zmq, ZMQ_REP);
    if (!port->zap || zmq_bind(port->zap, "inproc://zeromq.zap.01"))
        return errbuf_set(err, STATUS_IO, "handler of keys: %s", zmq_strerror(zmq_errno()));
    set(port->zap, ZMQ_LINGER, 0);
    set(port->pull, ZMQ_CURVE_SERVER, 1);
    if (zmq_setsockopt(port->pull, ZMQ_CURVE_SECRETKEY, port->curve.secret_key, 40) ||
        zmq_setsockopt(port->pull, ZMQ_ZAP_DOMAIN, port_domain, strlen(port_domain)))
        return errbuf_set(err, STATUS_IO, "CURVE: %s", zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

static int open_pull(struct collective_port *port, const struct port_place *place, struct errbuf *err)
{
    port->pull = zmq_socket(port->zmq, ZMQ_PULL);
    if (!port->pull)
        return errbuf_set(err, STATUS_NOMEM, "no socket: %s", zmq_strerror(zmq_errno()));
    int64_t limit = PORT_FRAME_MAX;
    set(port->pull, ZMQ_LINGER, 0);
    set(port->pull, ZMQ_RCVHWM, PULL_QUEUE);
    set(port->pull, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    zmq_setsockopt(port->pull, ZMQ_MAXMSGSIZE, &limit, sizeof limit);
    if (strchr(place->bind, '['))
        set(port->pull, ZMQ_IPV6, 1);
    int status = port->curved ? open_zap(port, err) : STATUS_OK;
    if (status)
        return status;
    if (zmq_bind(port->pull, place->bind))
        return errbuf_set(err, STATUS_IO, "%s: %s", place->bind, zmq_strerror(zmq_errno()));
    char bound[PORT_ADDRESS_MAX], host[264];
    size_t bytes = sizeof bound;
    if (zmq_getsockopt(port->pull, ZMQ_LAST_ENDPOINT, bound, &bytes) || !strrchr(bound, ':'))
        return errbuf_set(err, STATUS_IO, "%s: the port cannot be read", place->bind);
    snprintf(port->address, sizeof port->address, "tcp://%s%.6s", bracketed(place->host, host, sizeof host),
             strrchr(bound, ':'));
    return STATUS_OK;
}

static int open_sockets(struct collective_port *port, const struct port_place *place, struct errbuf *err)
{
    port->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    port->zmq = zmq_ctx_new();
    if (port->wake_fd < 0 || !port->zmq)
        return errbuf_set(err, STATUS_NOMEM, "no ZeroMQ context or event: %s", strerror(errno));
    zmq_ctx_set(port->zmq, ZMQ_IO_THREADS, IO_THREADS);
    int status = open_pull(port, place, err);
    return status ? status : fd_pass_listen(&port->unix_fd, port->socket, err);
}

int collective_port_open(struct collective_port **port, const struct collective_port_options *options,
                         struct errbuf *err)
{
    struct port_place place;
    struct collective_port *made = calloc(1, sizeof *made);
    if (!made)
        return errbuf_set(err, STATUS_NOMEM, "ring: no memory");
    made->host = options->host;
    made->unix_fd = made->wake_fd = -1;
    int status = options->advertise && options->advertise[0] ? place_of_advertise(&place, options->advertise, err)
                                                             : place_of_cluster(&place, options->cluster, err);
    if (!status)
        status = load_keys(made, err);
    if (!status && !place.loopback && !made->curved && !options->host->insecure)
        status = errbuf_set(err, STATUS_DENIED, "%s is reachable from other hosts: give keys, or --insecure",
                            place.bind);
    if (!status)
        status = open_sockets(made, &place, err);
    if (status) {
        collective_port_close(made);
        return errbuf_prefix(err, status, "ring");
    }
    *port = made;
    return STATUS_OK;
}

void collective_port_close(struct collective_port *port)
{
    if (!port)
        return;
    for (int i = 0; i < port->early_count; i++) {
        for (int part = 0; part < port->early[i].parts_count; part++)
            zmq_msg_close(&port->early[i].parts[part]);
    }
    if (port->pull)
        zmq_close(port->pull);
    if (port->zap)
        zmq_close(port->zap);
    if (port->zmq)
        zmq_ctx_term(port->zmq); /* groups gave their sockets a linger of LINGER_MS at most */
    if (port->unix_fd >= 0)
        close(port->unix_fd);
    if (port->wake_fd >= 0)
        close(port->wake_fd);
    explicit_bzero(&port->curve, sizeof port->curve);
    free(port);
}

const char *collective_port_address(const struct collective_port *port)
{
    return port->address;
}

const char *collective_port_socket(const struct collective_port *port)
{
    return port->socket;
}

const char *collective_port_public_key(const struct collective_port *port)
{
    return port->curved ? port->curve.public_key : "";
}

int collective_port_unix(const struct collective_port *port)
{
    return port->unix_fd;
}

const struct role_host *collective_port_host(const struct collective_port *port)
{
    return port->host;
}

/* --- waking up ------------------------------------------------------------------------------------ */

void port_wake(struct collective_port *port)
{
    uint64_t one = 1;
    while (write(port->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    } /* EAGAIN: it is awake already */
}

void port_woken(struct collective_port *port)
{
    uint64_t count;
    while (read(port->wake_fd, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

/* The port outlives ZeroMQ's threads: zmq_ctx_term comes before its end. */
void port_loan_returned(void *data, void *hint)
{
    struct collective_port *port = hint;
    (void)data;
    if (atomic_fetch_sub(&port->loans, 1) == 1 && atomic_load(&port->awaited))
        port_wake(port);
}

/* --- who may connect: ZeroMQ RFC 27 --------------------------------------------------------------- */

enum { ZAP_REQUEST = 1, ZAP_MECHANISM = 5, ZAP_KEY = 6, ZAP_FIELDS = 7, ZAP_FIELD_MAX = 256 };

struct zap_question {
    char fields[ZAP_FIELDS][ZAP_FIELD_MAX];
    size_t bytes[ZAP_FIELDS];
    int count;
};

/* 1 when a question was read. */
static int zap_read(void *socket, struct zap_question *question)
{
    memset(question, 0, sizeof *question);
    for (int more = 1; more;) {
        char extra[ZAP_FIELD_MAX];
        int fits = question->count < ZAP_FIELDS;
        char *field = fits ? question->fields[question->count] : extra;
        int bytes = zmq_recv(socket, field, ZAP_FIELD_MAX - 1, question->count ? 0 : ZMQ_DONTWAIT);
        if (bytes < 0)
            return 0;
        if (fits)
            question->bytes[question->count] = bytes < ZAP_FIELD_MAX ? (size_t)bytes : ZAP_FIELD_MAX - 1;
        question->count++;
        size_t size = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size))
            return 0;
    }
    return 1;
}

static int known_key(const struct collective_port *port, const struct zap_question *question, char key[41])
{
    if (question->count != ZAP_FIELDS || strcmp(question->fields[ZAP_MECHANISM], "CURVE") != 0 ||
        question->bytes[ZAP_KEY] != 32 || !zmq_z85_encode(key, (const uint8_t *)question->fields[ZAP_KEY], 32))
        return 0;
    for (int rank = 0; rank < port->world; rank++) {
        if (strcmp(port->members[rank].public_key, key) == 0)
            return 1;
    }
    return 0;
}

void port_answer_keys(struct collective_port *port)
{
    struct zap_question question;
    while (port->zap && port->members && zap_read(port->zap, &question)) {
        char key[41] = "";
        int known = known_key(port, &question, key);
        /* 300, not 400: after a 400 ZeroMQ's client never comes back. */
        zmq_send(port->zap, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(port->zap, question.fields[ZAP_REQUEST], question.bytes[ZAP_REQUEST], ZMQ_SNDMORE);
        zmq_send(port->zap, known ? "200" : "300", 3, ZMQ_SNDMORE);
        zmq_send(port->zap, "", 0, ZMQ_SNDMORE);
        zmq_send(port->zap, key, known ? 40 : 0, ZMQ_SNDMORE);
        zmq_send(port->zap, "", 0, 0);
    }
}
