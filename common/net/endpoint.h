/* Endpoints as people type them: "tcp://host:port", "inproc://name", "ipc://path". Blocks while a name is resolved. */
#ifndef SHOAL_NET_ENDPOINT_H
#define SHOAL_NET_ENDPOINT_H

struct errbuf;

enum endpoint_kind { ENDPOINT_TCP, ENDPOINT_IPC, ENDPOINT_INPROC };
enum { ENDPOINT_MAX = 320 };

struct endpoint {
    enum endpoint_kind kind;
    char text[ENDPOINT_MAX]; /* for ZeroMQ */
    char host[256];          /* tcp: as typed, without brackets */
    int port;                /* tcp; 0: any, for listening */
    int ipv6;                /* 1: ZMQ_IPV6 is needed */
    int loopback;            /* nobody on another host can reach it */
};

/* For connecting: the name must mean something now (STATUS_UNKNOWN with the name), and stays a name in `text`, so
 * that a reconnect looks it up again. STATUS_INVALID: not an endpoint. */
int endpoint_parse_connect(struct endpoint *endpoint, const char *text, struct errbuf *err);
/* For listening: names become addresses, "*" all of them; port "*" or 0 is any. */
int endpoint_parse_listen(struct endpoint *endpoint, const char *text, struct errbuf *err);

#endif
