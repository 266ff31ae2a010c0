#include "worker/worker.h"

#include <stdio.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/pool.h"
#include "base/status.h"
#include "tensor/gemm.h"
#include "worker/client/client.h"
#include "worker/trainer/trainer.h"

static const double START_S = 120;

/* A rank that failed tells the coordinator why, so that everybody ends with the same reason. */
static void tell_failure(struct client *client, int status, const struct errbuf *err)
{
    int known = status == 0 || status == STATUS_ABORTED || status == STATUS_STOPPED;
    client_close(client, known ? 0 : status, known ? "" : err->text);
}

static int serve_jobs(struct trainer_options *trainer, const struct worker_options *options, struct log *log,
                      struct errbuf *err)
{
    struct message event = {0};
    for (;;) {
        int status = client_next_event(trainer->client, 1, &event, err);
        if (status != 0) {
            return status;
        }
        if (event.envelope->type == SHOAL__TYPE__END && event.envelope->status != 0) {
            status = errbuf_set(err, client_end_status(event.envelope->status), "%s", event.envelope->text);
        }
        int ran = event.envelope->type == SHOAL__TYPE__JOB;
        if (ran) {
            log->rank = client_rank(trainer->client); /* an elastic job may have given another one */
            status = trainer_run(trainer, &event, err);
        }
        message_close(&event);
        if (status == STATUS_ROLLED_BACK) {
            log_info(log, "%s", err->text); /* the job comes again */
            continue;
        }
        if (status != 0 && status != STATUS_ABORTED && status != STATUS_STOPPED) {
            return status;
        }
        if (status != 0) {
            log_error(log, "job ended status=%d reason=\"%s\"", status, err->text);
        }
        if (options->once && (ran || status != 0)) {
            return status;
        }
    }
}

int worker_run(struct role_host *host, const struct worker_options *options, struct errbuf *err)
{
    struct account account;
    struct log log = host->log;
    struct client *client = NULL;
    pool_thread_numerics();
    account_init(&account);
    int status = gemm_start(err);
    if (status != 0) {
        return status;
    }
    struct client_options client_options = {.host = host, .cluster = options->cluster, .core_type = gemm_core_type(),
                                            .rank = options->rank, .start_s = START_S, .account = &account};
    status = client_open(&client, &client_options, err);
    if (status != 0) {
        return status;
    }
    log.rank = client_rank(client);
    log_info(&log, "joined cluster=%s core_type=%s", options->cluster, gemm_core_type());
    if (host->ready) {
        host->ready(host->context, "");
    }
    struct trainer_options trainer = {.host = host, .client = client, .account = &account, .log = &log,
                                      .data_dir = options->data_dir, .threads = options->threads,
                                      .cluster = options->cluster, .advertise = options->advertise};
    status = serve_jobs(&trainer, options, &log, err);
    tell_failure(client, status, err);
    return status;
}
