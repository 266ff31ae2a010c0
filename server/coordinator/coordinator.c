#include "server/coordinator/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <uv.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "files/fs.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/output.h"

enum { TICK_MS = 100, LINGER_MS = 500 };
static const size_t frame_bytes_max = (size_t)256 << 20; /* traces and statistics are the largest */

struct coordinator {
    struct role_host *host;
    const struct coordinator_options *options;
    uv_loop_t loop;
    uv_timer_t timer;
    struct net *net;
    struct net_router *router;
    struct coordinator_core *core;
    struct output output;
    int64_t status_ns;
    int finished, status;
    char text[512];
};

/* --- what the core asks for ----------------------------------------------------------------------------- */

static void op_reply(void *context, const struct net_return *back, Shoal__Envelope *envelope,
                     struct buf *const *frames, int frames_count)
{
    struct coordinator *self = context;
    struct net_self *identity = net_self(self->net);
    /* An event keeps the job and epoch it was made in. */
    identity->job = envelope->job;
    identity->term = envelope->term;
    identity->cluster_epoch = envelope->cluster_epoch;
    net_reply(self->router, back, envelope, frames, frames_count); /* a peer that is gone asks again */
}

static void op_say(void *context, const char *line)
{
    struct coordinator *self = context;
    output_say(&self->output, line);
}

static void op_log(void *context, enum log_level level, const char *line)
{
    struct coordinator *self = context;
    log_line(&self->host->log, level, "%s", line);
}

static void op_metrics(void *context, const char *json_line)
{
    struct coordinator *self = context;
    output_metrics(&self->output, json_line);
}

static void op_progress(void *context, const struct coordinator_progress *progress)
{
    struct coordinator *self = context;
    output_progress(&self->output, progress);
}

static int op_persist(void *context, const struct durable_state *state, struct errbuf *err)
{
    struct coordinator *self = context;
    const char *folder = self->options->state_dir;
    self->host->log.cluster_epoch = state->cluster_epoch;
    return folder == NULL || *folder == '\0' ? 0 : durable_state_save(state, folder, err);
}

static int op_job_begins(void *context, const struct coordinator_job *job, struct errbuf *err)
{
    struct coordinator *self = context;
    atomic_store(&self->host->stop_grace_ms, role_stop_grace_ms(job->job->cluster.stop_timeout));
    return output_job_begins(&self->output, job->metrics_path, job->resume, err);
}

static int op_restore(void *context, const struct coordinator_job *job, const char *dir, struct manifest *manifest,
                      char **folder, int *found, struct errbuf *err)
{
    (void)context;
    int asked = *job->resume_path != '\0';
    int status = snapshot_store_find(asked ? job->resume_path : dir, manifest, folder, found, err);
    if (status != STATUS_IO || asked)
        return status == 0 ? 0 : errbuf_prefix(err, status, "resume");
    *found = 0; /* snapshot.dir is made with the first snapshot */
    return 0;
}

static int op_snapshot_commit(void *context, const struct snapshot_commit *commit, struct errbuf *err)
{
    (void)context;
    return snapshot_store_commit(commit, err);
}

static void op_snapshot_discard(void *context, const char *folder)
{
    (void)context;
    snapshot_store_discard(folder);
}

static int op_trace(void *context, const char *path, const struct trace_track *tracks, size_t count,
                    struct errbuf *err)
{
    (void)context;
    return trace_write(path, tracks, count, err);
}

static void op_ended(void *context, int status, const char *text)
{
    struct coordinator *self = context;
    output_close(&self->output);
    if (!self->options->once && !coordinator_core_stopping(self->core))
        return; /* also after a job that a member's signal ended: the next one may come */
    self->finished = 1;
    self->status = status;
    snprintf(self->text, sizeof self->text, "%s", text);
    uv_stop(&self->loop);
}

static uint64_t op_random(void *context)
{
    (void)context;
    uint64_t value = 0;
    while (value == 0)
        if (getrandom(&value, sizeof value, 0) != sizeof value)
            value = (uint64_t)clock_realtime_ns();
    return value;
}

static const struct coordinator_ops ops_of_process = {
    .reply = op_reply,
    .say = op_say,
    .log = op_log,
    .metrics = op_metrics,
    .progress = op_progress,
    .persist = op_persist,
    .job_begins = op_job_begins,
    .restore = op_restore,
    .snapshot_commit = op_snapshot_commit,
    .snapshot_discard = op_snapshot_discard,
    .trace = op_trace,
    .ended = op_ended,
    .random = op_random,
};

/* --- the loop ------------------------------------------------------------------------------------------- */

static void serve(void *context, struct net_router *router, struct message *request, const struct net_return *back)
{
    struct coordinator *self = context;
    (void)router;
    coordinator_core_message(self->core, clock_now_ns(), request, back);
}

static void tell_status(struct coordinator *self, int64_t now_ns)
{
    if (self->host->status == NULL || now_ns - self->status_ns < 1000000000)
        return;
    self->status_ns = now_ns;
    const char *line = !coordinator_core_busy(self->core)  ? "idle"
                       : self->output.last[0] != '\0' ? self->output.last
                                                           : "waiting for members";
    self->host->status(self->host->context, line);
}

static void reload_allow_list(struct coordinator *self)
{
    struct errbuf err;
    errbuf_init(&err);
    if (!atomic_exchange(&self->host->reload, 0))
        return;
    if (net_allow_reload(self->router, &err) != 0)
        log_error(&self->host->log, "allow-list kept as it was: %s", err.text);
    else
        log_info(&self->host->log, "allow-list read again");
}

static void on_timer(uv_timer_t *timer)
{
    struct coordinator *self = timer->data;
    int64_t now_ns = clock_now_ns();
    if (self->host->tick != NULL)
        self->host->tick(self->host->context);
    reload_allow_list(self);
    if (self->host->stop != 0)
        coordinator_core_stop(self->core, now_ns);
    coordinator_core_refused(self->core, net_counters(self->net)->refused);
    coordinator_core_tick(self->core, now_ns);
    tell_status(self, now_ns);
}

static int open_router(struct coordinator *self, struct errbuf *err)
{
    const struct role_host *host = self->host;
    struct net_curve curve;
    char allow[4096];
    struct net_listen listen = {.endpoint = self->options->listen, .insecure = host->insecure, .serve = serve,
                                .context = self};
    if (host->keys_dir != NULL && *host->keys_dir != '\0') {
        const char *name = host->key_name != NULL && *host->key_name != '\0' ? host->key_name : "coordinator";
        int status = net_keys_load(&curve, host->keys_dir, name, NULL, err);
        if (status != 0)
            return status;
        snprintf(allow, sizeof allow, "%s/allow.list", host->keys_dir);
        listen.curve = &curve;
        listen.allow_file = allow;
    }
    return net_router_open(&self->router, self->net, &listen, err);
}

static int submit_first(struct coordinator *self, struct errbuf *err)
{
    const struct coordinator_options *options = self->options;
    if (options->job == NULL)
        return 0;
    struct coordinator_job job = {.job = options->job,
                                  .directory = options->job_dir,
                                  .init_path = options->init_path,
                                  .export_path = options->export_path,
                                  .metrics_path = options->metrics_path,
                                  .trace_path = options->trace_path,
                                  .resume_path = options->resume_path,
                                  .resume = options->resume};
    return coordinator_core_submit(self->core, clock_now_ns(), &job, err);
}

static int open_core(struct coordinator *self, struct errbuf *err)
{
    const char *folder = self->options->state_dir;
    struct durable_state state;
    struct coordinator_ops ops = ops_of_process;
    int status = 0;
    durable_state_init(&state);
    if (folder != NULL && *folder != '\0') {
        status = fs_make_folders(folder, err);
        if (status == 0) {
            fs_remove_temporaries(folder, NULL);
            status = durable_state_load(&state, folder, err);
        }
    }
    if (status == 0) {
        ops.context = self;
        struct coordinator_core_options options = {&ops, &state, self->options->once, clock_now_ns()};
        self->core = coordinator_core_create(&options, err);
        status = self->core == NULL ? STATUS_IO : 0;
    }
    durable_state_close(&state);
    return status;
}

static int open_all(struct coordinator *self, struct errbuf *err)
{
    self->net = net_create(&self->loop, self->host->zmq, &self->host->log, frame_bytes_max);
    if (self->net == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    struct net_self *identity = net_self(self->net);
    identity->role = SHOAL__ROLE__COORDINATOR;
    identity->rank = -1;
    identity->incarnation = op_random(self);
    int status = open_core(self, err);
    if (status == 0)
        status = open_router(self, err);
    if (status == 0)
        status = submit_first(self, err);
    if (status != 0)
        return status;
    log_info(&self->host->log, "listening address=%s", net_router_endpoint(self->router));
    if (self->host->ready != NULL)
        self->host->ready(self->host->context, net_router_endpoint(self->router));
    uv_timer_start(&self->timer, on_timer, TICK_MS, TICK_MS);
    return 0;
}

static int result_of(const struct coordinator *self, struct errbuf *err)
{
    int status = self->status;
    if (status == 0)
        return 0;
    if (status != STATUS_STOPPED && status != STATUS_INVALID)
        status = STATUS_ABORTED;
    return errbuf_set(err, status, "%s", self->text);
}

int coordinator_run(struct role_host *host, const struct coordinator_options *options, struct errbuf *err)
{
    struct coordinator *self = calloc(1, sizeof *self);
    if (self == NULL)
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    self->host = host;
    self->options = options;
    output_init(&self->output, options->out_fd, options->progress);
    uv_loop_init(&self->loop);
    uv_timer_init(&self->loop, &self->timer);
    self->timer.data = self;
    int status = open_all(self, err);
    if (status == 0) {
        while (!self->finished)
            uv_run(&self->loop, UV_RUN_DEFAULT);
        status = result_of(self, err);
    }
    uv_close((uv_handle_t *)&self->timer, NULL);
    net_router_close(self->router);
    net_destroy(self->net, LINGER_MS);
    uv_run(&self->loop, UV_RUN_DEFAULT); /* lets handles close */
    uv_loop_close(&self->loop);
    coordinator_core_destroy(self->core);
    output_close(&self->output);
    free(self);
    return status;
}
