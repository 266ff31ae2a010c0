/* A coordinator and servers as threads of the test, on tcp loopback, serving one job of client programs. */
#ifndef SHOAL_TESTS_API_CLUSTER_H
#define SHOAL_TESTS_API_CLUSTER_H

struct api_cluster;
struct api_cluster_options {
    int workers, servers, threads; /* threads of a server; 0: 1 */
    const char *more;              /* lines added to the job file; NULL: optimizer sgd, lr 0.1 */
    const char *metrics_path;      /* NULL: none */
};
/* Asserts; returns when the coordinator can be reached. */
struct api_cluster *api_cluster_start(const struct api_cluster_options *options);
const char *api_cluster_address(const struct api_cluster *cluster);
/* Asks for an orderly stop, as a signal does. */
void api_cluster_stop(struct api_cluster *cluster);
/* Waits for every role to return, stores what coordinator and server 0 returned (NULL ok) and frees. */
void api_cluster_end(struct api_cluster *cluster, int *coordinator_status, int *server_status);

#endif
