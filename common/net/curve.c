#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "base/log.h"
#include "base/status.h"
#include "net/net_internal.h"

static const char *const role_names[] = {
    [SHOAL__ROLE__ROLE_NONE] = "nobody", [SHOAL__ROLE__COORDINATOR] = "coordinator",
    [SHOAL__ROLE__SERVER] = "server",    [SHOAL__ROLE__WORKER] = "worker",
    [SHOAL__ROLE__OPERATOR] = "operator", [SHOAL__ROLE__READER] = "reader",
};

const char *role_name(Shoal__Role role)
{
    return (int)role >= 0 && (size_t)role < sizeof role_names / sizeof role_names[0] ? role_names[role] : "unknown";
}

Shoal__Role role_of_name(const char *name)
{
    for (int role = SHOAL__ROLE__SERVER; role <= SHOAL__ROLE__READER; role++) {
        if (strcmp(role_names[role], name) == 0)
            return (Shoal__Role)role;
    }
    return SHOAL__ROLE__ROLE_NONE;
}

/* --- sockets ---------------------------------------------------------------------------------------- */

static int set_text(void *socket, int option, const char *text, const char *what, struct errbuf *err)
{
    if (zmq_setsockopt(socket, option, text, strlen(text)) == 0)
        return STATUS_OK;
    return errbuf_set(err, STATUS_INVALID, "%s is not a CURVE key of 40 characters", what);
}

int curve_apply_client(void *socket, const struct net_curve *curve, struct errbuf *err)
{
    int status = set_text(socket, ZMQ_CURVE_SERVERKEY, curve->server_key, "the server's public key", err);
    if (!status)
        status = set_text(socket, ZMQ_CURVE_PUBLICKEY, curve->public_key, "the public key", err);
    if (!status)
        status = set_text(socket, ZMQ_CURVE_SECRETKEY, curve->secret_key, "the secret key", err);
    return status;
}

int curve_apply_server(void *socket, const struct net_curve *curve, const char *domain, struct errbuf *err)
{
    int status = set_text(socket, ZMQ_CURVE_SECRETKEY, curve->secret_key, "the secret key", err);
    if (status)
        return status;
    net_socket_set(socket, ZMQ_CURVE_SERVER, 1);
    if (zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)))
        return errbuf_set(err, STATUS_IO, "ZAP domain: %s", zmq_strerror(zmq_errno()));
    return STATUS_OK;
}

/* --- allow-list ------------------------------------------------------------------------------------- */

static int allow_list_add(struct allow_list *list, const char *key, Shoal__Role role)
{
    struct allow_row *rows = realloc(list->rows, (size_t)(list->count + 1) * sizeof *rows);
    if (!rows)
        return STATUS_NOMEM;
    list->rows = rows;
    memcpy(rows[list->count].key, key, sizeof rows->key);
    rows[list->count++].role = role;
    return STATUS_OK;
}

static int allow_line(struct allow_list *list, const char *line, const char *path, int number, struct errbuf *err)
{
    char key[64], role[32];
    uint8_t binary[32];
    int fields = sscanf(line, "%63s %31s", key, role);
    if (fields < 1 || key[0] == '#')
        return STATUS_OK;
    if (strlen(key) != 40 || !zmq_z85_decode(binary, key))
        return errbuf_set(err, STATUS_FORMAT, "%s:%d: not a public key of 40 characters", path, number);
    Shoal__Role known = fields == 2 ? role_of_name(role) : SHOAL__ROLE__ROLE_NONE;
    if (known == SHOAL__ROLE__ROLE_NONE)
        return errbuf_set(err, STATUS_FORMAT, "%s:%d: role %s, not worker, server, operator or reader", path, number,
                          fields == 2 ? role : "missing");
    if (allow_list_find(list, key))
        return errbuf_set(err, STATUS_FORMAT, "%s:%d: the key is there twice", path, number);
    if (allow_list_add(list, key, known))
        return errbuf_set(err, STATUS_NOMEM, "%s: no memory", path);
    return STATUS_OK;
}

int allow_list_read(struct allow_list *list, const char *path, struct errbuf *err)
{
    list->rows = NULL;
    list->count = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return errbuf_set(err, STATUS_IO, "allow-list %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    int status = STATUS_OK;
    for (int number = 1; !status && getline(&line, &room, file) >= 0; number++)
        status = allow_line(list, line, path, number, err);
    if (!status && ferror(file))
        status = errbuf_set(err, STATUS_IO, "allow-list %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    if (status)
        allow_list_close(list);
    return status;
}

void allow_list_close(struct allow_list *list)
{
    free(list->rows);
    list->rows = NULL;
    list->count = 0;
}

const struct allow_row *allow_list_find(const struct allow_list *list, const char *key)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->rows[i].key, key) == 0)
            return &list->rows[i];
    }
    return NULL;
}

/* --- ZAP: ZeroMQ RFC 27 ----------------------------------------------------------------------------- */

struct net_zap {
    struct net *net;
    struct zsock *zsock;
};
enum { ZAP_FIELDS = 7, ZAP_FIELD_MAX = 256 };
/* Order of a question's frames. */
enum { ZAP_VERSION, ZAP_REQUEST, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_KEY };

struct zap_field {
    char bytes[ZAP_FIELD_MAX];
    int count;
};

/* Returns the number of frames, which may be another than ZAP_FIELDS; 0: nothing there. */
static int zap_read(void *socket, struct zap_field fields[ZAP_FIELDS])
{
    int count = 0, more = 1;
    while (more) {
        struct zap_field extra, *field = count < ZAP_FIELDS ? &fields[count] : &extra;
        field->count = zmq_recv(socket, field->bytes, ZAP_FIELD_MAX - 1, count ? 0 : ZMQ_DONTWAIT);
        if (field->count < 0)
            return 0;
        if (field->count > ZAP_FIELD_MAX - 1) /* cut by ZeroMQ */
            field->count = ZAP_FIELD_MAX - 1;
        field->bytes[field->count] = '\0';
        count++;
        size_t bytes = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &bytes))
            return 0;
    }
    return count;
}

static void zap_answer(struct net_zap *zap, struct zap_field fields[ZAP_FIELDS], int count)
{
    char key[41] = "", user[MESSAGE_USER_MAX] = "";
    const struct allow_row *row = NULL;
    if (count == ZAP_FIELDS && strcmp(fields[ZAP_MECHANISM].bytes, "CURVE") == 0 && fields[ZAP_KEY].count == 32 &&
        zmq_z85_encode(key, (const uint8_t *)fields[ZAP_KEY].bytes, 32)) {
        const struct allow_list *list = router_allow(zap->net, fields[ZAP_DOMAIN].bytes);
        row = list ? allow_list_find(list, key) : NULL;
    }
    if (row)
        snprintf(user, sizeof user, "%s %s", role_name(row->role), row->key);
    else if (zap->net->log)
        log_debug(zap->net->log, "stranger key=%s", key);
    void *socket = zsock_socket(zap->zsock);
    const char *status = row ? "200" : "400", *text = row ? "OK" : "not in allow.list";
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, fields[ZAP_REQUEST].bytes, count > ZAP_REQUEST ? (size_t)fields[ZAP_REQUEST].count : 0,
             ZMQ_SNDMORE);
    zmq_send(socket, status, 3, ZMQ_SNDMORE);
    zmq_send(socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(socket, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

static int zap_drain(void *context)
{
    struct net_zap *zap = context;
    for (int i = 0; i < ZSOCK_BATCH; i++) {
        struct zap_field fields[ZAP_FIELDS];
        int count = zap_read(zsock_socket(zap->zsock), fields);
        if (count == 0)
            return 0;
        zap_answer(zap, fields, count);
    }
    return 1;
}

int zap_open(struct net *net, struct errbuf *err)
{
    if (net->zap)
        return STATUS_OK;
    struct net_zap *zap = calloc(1, sizeof *zap);
    void *socket = zmq_socket(net->zmq, ZMQ_REP);
    if (!zap || !socket)
        goto fail;
    net_socket_set(socket, ZMQ_LINGER, 0);
    if (zmq_bind(socket, "inproc://zeromq.zap.01")) {
        errbuf_set(err, STATUS_IO, "ZAP handler: %s (one for each ZeroMQ context)", zmq_strerror(zmq_errno()));
        zmq_close(socket);
        free(zap);
        return STATUS_IO;
    }
    zap->net = net;
    zap->zsock = zsock_add(net->watch, socket, zap_drain, free, zap);
    if (!zap->zsock)
        goto fail;
    net->zap = zap;
    return STATUS_OK;
fail:
    if (socket)
        zmq_close(socket);
    free(zap);
    return errbuf_set(err, STATUS_NOMEM, "ZAP handler: no memory or no socket");
}

void zap_close(struct net *net)
{
    if (net->zap)
        zsock_close(net->zap->zsock, 0);
    net->zap = NULL;
}
