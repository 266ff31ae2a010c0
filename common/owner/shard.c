#include "owner/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "cluster/canonical.h"
#include "owner/shard_internal.h"

enum { INLINE_BYTES = 32 << 10 }; /* smaller tasks cost less than handing them to a pool thread */

static void on_async(uv_async_t *async);
static void work_start(struct shard_range *range, enum range_work work);

/* --- making and unmaking ------------------------------------------------------------------------------ */

static int range_allocate(struct shard *shard, struct shard_range *range)
{
    const struct shard_options *options = &shard->options;
    size_t bytes = (size_t)shard_range_bytes(range);
    size_t ranks = (size_t)options->map->ranks;
    if (options->hold_values || range->range->frozen) {
        range->values = buf_create(bytes);
        if (!range->values) {
            return STATUS_NOMEM;
        }
        account_add(options->account, ACCOUNT_PARAMETERS, (int64_t)bytes);
    }
    if (range->range->frozen) {
        return 0;
    }
    range->runs = calloc((size_t)range->range->runs, sizeof(*range->runs));
    range->turn = calloc((size_t)range->range->runs, sizeof(*range->turn));
    range->contributions = calloc(ranks, sizeof(*range->contributions));
    range->visible = calloc(ranks, 1);
    range->unpulled = calloc(ranks, 1);
    range->sums = buf_create(bytes);
    if (!range->runs || !range->turn || !range->contributions || !range->visible || !range->unpulled || !range->sums) {
        return STATUS_NOMEM;
    }
    account_add(options->account, ACCOUNT_GRADIENTS, (int64_t)bytes);
    keymap_runs(options->map, range->range, range->runs);
    for (int s = 0; s < shard->slots; s++) {
        range->slots[s] = account_alloc(options->account, ACCOUNT_OPTIMIZER, bytes);
        if (!range->slots[s]) {
            return STATUS_NOMEM;
        }
    }
    return 0;
}

static void range_free(struct shard *shard, struct shard_range *range)
{
    const struct shard_options *options = &shard->options;
    size_t bytes = (size_t)shard_range_bytes(range);
    if (range->values) {
        account_add(options->account, ACCOUNT_PARAMETERS, -(int64_t)bytes);
    }
    if (range->sums) {
        account_add(options->account, ACCOUNT_GRADIENTS, -(int64_t)bytes);
    }
    buf_release(range->values);
    buf_release(range->sums);
    for (int s = 0; s < shard->slots; s++) {
        account_free(options->account, ACCOUNT_OPTIMIZER, range->slots[s], range->slots[s] ? bytes : 0);
    }
    free(range->runs);
    free(range->turn);
    free(range->contributions);
    free(range->visible);
    free(range->unpulled);
}

static int fill_ranges(struct shard *shard)
{
    const struct keymap *map = shard->options.map;
    int64_t run = 0;
    for (int r = 0; r < map->ranges_count; r++) {
        shard->of_range[r] = -1;
        if (shard->options.server >= 0 && map->ranges[r].server != shard->options.server) {
            continue;
        }
        struct shard_range *range = &shard->ranges[shard->ranges_count];
        range->shard = shard;
        range->range = &map->ranges[r];
        range->index = r;
        range->squares = shard->squares + run;
        range->finite = shard->finite + run;
        range->trust_norms = shard->trust_norms ? shard->trust_norms + 2 * run : NULL;
        range->runs_left = range->range->runs;
        run += range->range->runs;
        shard->of_range[r] = shard->ranges_count++;
        shard->trainable_count += !range->range->frozen;
        int status = range_allocate(shard, range);
        if (status != 0) {
            return status;
        }
    }
    shard->runs_count = run;
    return 0;
}

static int shard_allocate(struct shard *shard)
{
    const struct keymap *map = shard->options.map;
    shard->ranges = calloc((size_t)map->ranges_count + 1, sizeof(*shard->ranges));
    shard->of_range = calloc((size_t)map->ranges_count + 1, sizeof(int));
    shard->squares = calloc((size_t)map->runs_count + 1, sizeof(double));
    shard->finite = calloc((size_t)map->runs_count + 1, 1);
    if (!shard->ranges || !shard->of_range || !shard->squares || !shard->finite) {
        return STATUS_NOMEM;
    }
    if (shard->options.hold_values && shard->options.optimizer->prepare) {
        shard->trust_norms = calloc(2 * (size_t)map->runs_count + 1, sizeof(double));
        shard->ratios = calloc((size_t)map->table->tensor_count + 1, sizeof(double));
        if (!shard->trust_norms || !shard->ratios) {
            return STATUS_NOMEM;
        }
    }
    return fill_ranges(shard);
}

int shard_create(struct shard **out, const struct shard_options *options, struct errbuf *err)
{
    struct shard *shard = calloc(1, sizeof(*shard));
    if (!shard) {
        return errbuf_set(err, STATUS_NOMEM, "shard: out of memory");
    }
    shard->options = *options;
    shard->slots = options->hold_values ? options->optimizer->slots(&options->params) : 0;
    pthread_mutex_init(&shard->lock, NULL);
    pthread_cond_init(&shard->idle, NULL);
    shard->async = malloc(sizeof(*shard->async));
    if (!shard->async || uv_async_init(options->loop, shard->async, on_async) != 0) {
        free(shard->async);
        shard->async = NULL;
        shard_destroy(shard);
        return errbuf_set(err, STATUS_NOMEM, "shard: no async handle");
    }
    shard->async->data = shard;
    int status = shard_allocate(shard);
    if (status != 0) {
        shard_destroy(shard);
        return errbuf_set(err, status, "shard: out of memory for %lld elements",
                          (long long)keymap_server_elements(options->map, options->server));
    }
    *out = shard;
    return 0;
}

static void on_async_closed(uv_handle_t *handle)
{
    free(handle);
}

static void contribution_end(struct shard *shard, struct shard_range *range, int rank, int status)
{
    struct contribution *c = &range->contributions[rank];
    if (!c->message) {
        return;
    }
    void *token = c->token;
    account_add(shard->options.account, ACCOUNT_BUFFERS, -shard_range_bytes(range));
    shard->held_bytes -= shard_range_bytes(range);
    buf_release(c->message);
    c->message = NULL;
    c->token = NULL;
    shard->options.ops.added(shard->options.ops.context, token, status);
}

static void drop_contributions(struct shard *shard, struct shard_range *range, int status)
{
    for (int rank = 0; range->contributions && rank < shard->options.map->ranks; rank++) {
        contribution_end(shard, range, rank, status);
    }
}

void shard_destroy(struct shard *shard)
{
    if (!shard) {
        return;
    }
    pthread_mutex_lock(&shard->lock);
    while (shard->tasks_running > 0) {
        pthread_cond_wait(&shard->idle, &shard->lock);
    }
    pthread_mutex_unlock(&shard->lock);
    for (int i = 0; i < shard->ranges_count; i++) {
        drop_contributions(shard, &shard->ranges[i], STATUS_CLOSED);
        range_free(shard, &shard->ranges[i]);
    }
    if (shard->async) {
        uv_close((uv_handle_t *)shard->async, on_async_closed);
    }
    pthread_cond_destroy(&shard->idle);
    pthread_mutex_destroy(&shard->lock);
    free(shard->ranges);
    free(shard->of_range);
    free(shard->squares);
    free(shard->finite);
    free(shard->trust_norms);
    free(shard->ratios);
    free(shard);
}

/* --- tasks -------------------------------------------------------------------------------------------- */

static void task_run(struct pool_task *task)
{
    struct shard_range *range = (struct shard_range *)task;
    struct shard *shard = range->shard;
    shard_work_run(range);
    pthread_mutex_lock(&shard->lock);
    range->next_done = shard->done;
    shard->done = range;
    shard->tasks_running--;
    /* Under the lock: shard_destroy may free the shard as soon as it can take it. */
    uv_async_send(shard->async);
    pthread_cond_signal(&shard->idle);
    pthread_mutex_unlock(&shard->lock);
}

static void range_reset(struct shard_range *range)
{
    int ranks = range->shard->options.map->ranks;
    memset(range->turn, 0, (size_t)range->range->runs * sizeof(*range->turn));
    memset(range->visible, 0, (size_t)ranks);
    memset(range->contributions, 0, (size_t)ranks * sizeof(*range->contributions));
    range->runs_left = range->range->runs;
    range->phase = RANGE_IDLE;
    range->abort_next = 0;
    range->news = 0;
}

/* New sums (or first values) lie in the place of the next: nobody may write there before everybody has them. A rank has
 * them when it pushes for the next clock; that they were sent is not enough, for what was sent can be lost. */
static void expect_pulls(struct shard *shard, struct shard_range *range)
{
    if (!range->values) {
        range->unpulled_count = shard->options.map->ranks;
        memset(range->unpulled, 1, (size_t)range->unpulled_count);
    }
}

static void range_finish(struct shard *shard, struct shard_range *range)
{
    range->clock++;
    range_reset(range);
    expect_pulls(shard, range);
    shard->options.ops.applied(shard->options.ops.context, range->index, range->clock);
    if (++shard->finished_count == shard->trainable_count) {
        shard->finished_count = 0;
        shard->complete_count -= shard->trainable_count; /* ranges that were quick may be complete for the next clock */
        shard->clock++;
        shard->options.ops.finished(shard->options.ops.context, shard->clock);
    }
}

static void range_abort(struct shard *shard, struct shard_range *range)
{
    shard->complete_count -= range->phase == RANGE_COMPLETE;
    drop_contributions(shard, range, STATUS_ABORTED);
    range_reset(range);
}

static void range_complete(struct shard *shard, struct shard_range *range)
{
    range->phase = RANGE_COMPLETE;
    shard->weight = 0;
    for (int rank = 0; rank < shard->options.map->ranks; rank++) {
        shard->weight += range->contributions[rank].weight;
    }
    shard->complete_count++;
    int whole = shard->complete_count == shard->trainable_count;
    if (whole) {
        shard->options.ops.complete(shard->options.ops.context, range->clock + 1);
    }
    if (shard->options.eager) {
        range_finish(shard, range);
    }
}

/* A sum task is back: give back what it took everywhere, go on with what came meanwhile. */
static void sum_done(struct shard *shard, struct shard_range *range)
{
    for (int rank = 0; rank < shard->options.map->ranks; rank++) {
        if (range->contributions[rank].runs_taken == range->range->runs) {
            contribution_end(shard, range, rank, STATUS_OK);
        }
    }
    if (range->runs_left == 0) {
        range_complete(shard, range);
    } else if (range->news) {
        work_start(range, WORK_SUM);
    }
}

static void task_done(struct shard *shard, struct shard_range *range)
{
    range->busy = 0;
    if (range->abort_next) {
        range_abort(shard, range);
    } else if (range->out_of_memory) {
        work_start(range, range->work); /* waits for memory: nothing was done yet */
    } else if (range->work == WORK_APPLY) {
        range_finish(shard, range);
    } else if (range->work == WORK_PREPARE) {
        range->phase = RANGE_PREPARED;
        if (++shard->prepared_count == shard->trainable_count) {
            shard->options.ops.trust(shard->options.ops.context, range->clock + 1);
        }
    } else {
        sum_done(shard, range);
    }
}

/* Looks after the tasks that came back; 0 when there were none. With `wait` first waits for those under way. */
static int take_done(struct shard *shard, int wait)
{
    pthread_mutex_lock(&shard->lock);
    while (wait && shard->tasks_running > 0) {
        pthread_cond_wait(&shard->idle, &shard->lock);
    }
    struct shard_range *range = shard->done;
    shard->done = NULL;
    pthread_mutex_unlock(&shard->lock);
    int any = range != NULL;
    while (range) {
        struct shard_range *next = range->next_done;
        task_done(shard, range);
        range = next;
    }
    return any;
}

static void on_async(uv_async_t *async)
{
    take_done(async->data, 0);
}

static void work_start(struct shard_range *range, enum range_work work)
{
    struct shard *shard = range->shard;
    int ranks = shard->options.map->ranks;
    range->work = work;
    range->news = 0;
    range->busy = 1;
    int arrived = 0;
    for (int rank = 0; work == WORK_SUM && rank < ranks; rank++) {
        const struct contribution *c = &range->contributions[rank];
        range->visible[rank] = c->message != NULL && c->runs_taken < range->range->runs;
        arrived += c->arrived;
    }
    range->updates = shard->options.hold_values && (work == WORK_APPLY || (shard->options.eager && arrived == ranks));
    if (shard_range_bytes(range) <= INLINE_BYTES) {
        shard_work_run(range);
        if (!range->out_of_memory) {
            task_done(shard, range);
            return;
        }
    }
    range->task.run = task_run;
    pthread_mutex_lock(&shard->lock);
    shard->tasks_running++;
    pthread_mutex_unlock(&shard->lock);
    pool_submit(shard->options.pool, &range->task);
}

/* --- what the owner is told --------------------------------------------------------------------------- */

/* Eager updates of a clock begin after the verdict of the one before, so that a snapshot falls between them; sums without
 * values begin when everybody has the last ones; a client's first push may come before rank 0's values. */
static int is_held_back(const struct shard *shard, const struct shard_range *range)
{
    return range->unpulled_count > 0 || (shard->options.eager && range->clock > shard->verdict) ||
           !range->initialised;
}

/* Holds the message; the kernels want floats at multiples of 4 bytes, which ZeroMQ gives but does not promise. */
static int contribution_begin(struct shard_range *range, struct contribution *c, const struct shard_push *push)
{
    struct buf *message = push->message;
    const float *data = push->data;
    if ((uintptr_t)data % sizeof(float) != 0) {
        message = buf_create((size_t)shard_range_bytes(range));
        if (!message) {
            return STATUS_NOMEM;
        }
        memcpy(message->data, (const char *)push->data, message->bytes);
        data = message->data;
    } else {
        buf_share(message);
    }
    *c = (struct contribution){.message = message, .data = data, .weight = push->weight, .token = push->token, .arrived = 1};
    return 0;
}

int shard_push(struct shard *shard, const struct shard_push *push)
{
    struct shard_range *range = shard_find(shard, push->range);
    if (!range || range->range->frozen || push->rank < 0 || push->rank >= shard->options.map->ranks) {
        return STATUS_UNKNOWN;
    }
    if (push->clock <= range->clock) {
        return SHARD_REPEAT_DONE;
    }
    if (push->clock > range->clock + 1) {
        return STATUS_RANGE;
    }
    struct contribution *c = &range->contributions[push->rank];
    if (c->arrived && !c->message) {
        return SHARD_REPEAT_DONE;
    }
    if (c->arrived) {
        void *old = c->token;
        c->token = push->token;
        shard->options.ops.added(shard->options.ops.context, old, STATUS_BUSY);
        return SHARD_REPEAT_WAITING;
    }
    int status = contribution_begin(range, c, push);
    if (status != 0) {
        return status;
    }
    account_add(shard->options.account, ACCOUNT_BUFFERS, shard_range_bytes(range));
    shard->held_bytes += shard_range_bytes(range);
    range->phase = RANGE_SUMMING;
    range->unpulled_count -= range->unpulled[push->rank];
    range->unpulled[push->rank] = 0;
    if (range->busy || is_held_back(shard, range)) {
        range->news = 1;
    } else {
        work_start(range, WORK_SUM);
    }
    return SHARD_TAKEN;
}

int shard_init_values(struct shard *shard, int index, const float *data)
{
    struct shard_range *range = shard_find(shard, index);
    if (!range) {
        return STATUS_UNKNOWN;
    }
    if (range->initialised) {
        return 1;
    }
    struct buf **target = range->values ? &range->values : &range->sums;
    if (shard_make_sole(target, 0) != 0) {
        return STATUS_NOMEM;
    }
    memcpy((*target)->data, data, (*target)->bytes);
    range->initialised = 1;
    shard->initialised_count++;
    expect_pulls(shard, range);
    shard->options.ops.applied(shard->options.ops.context, index, range->clock);
    if (range->news && !range->busy && !is_held_back(shard, range)) {
        work_start(range, WORK_SUM);
    }
    return 0;
}

void shard_next_step(struct shard *shard, const struct optimizer_step *step)
{
    shard->next_step = *step;
}

static void range_verdict(struct shard *shard, struct shard_range *range, enum shard_decision decision,
                          const struct optimizer_step *step)
{
    assert(range->phase == RANGE_COMPLETE && !range->busy);
    if (decision == SHARD_SKIP || !shard->options.hold_values) {
        range_finish(shard, range);
        return;
    }
    range->step = *step;
    if (shard->ratios) {
        work_start(range, WORK_PREPARE);
        return;
    }
    range->phase = RANGE_APPLYING;
    work_start(range, WORK_APPLY);
}

/* Takes the contributions of a clock back. Waits for the tasks under way: what is pushed after the verdict must find
 * nothing of before. Ranges that still apply the clock before finish it. */
static int abort_step(struct shard *shard, uint64_t clock)
{
    uint64_t decided = shard->verdict > shard->clock ? shard->verdict : shard->clock;
    if (clock != decided + 1) {
        return STATUS_RANGE;
    }
    for (int i = 0; i < shard->ranges_count; i++) {
        struct shard_range *range = &shard->ranges[i];
        if (range->range->frozen || range->clock + 1 != clock) {
            continue;
        }
        if (range->busy) {
            range->abort_next = 1;
        } else {
            range_abort(shard, range);
        }
    }
    while (take_done(shard, 1)) {
    }
    return 0;
}

static void eager_verdict(struct shard *shard, uint64_t clock)
{
    shard->verdict = clock > shard->verdict ? clock : shard->verdict;
    for (int i = 0; i < shard->ranges_count; i++) {
        struct shard_range *range = &shard->ranges[i];
        if (range->news && !range->busy && range->phase == RANGE_SUMMING) {
            work_start(range, WORK_SUM);
        }
    }
}

int shard_verdict(struct shard *shard, uint64_t clock, enum shard_decision decision, const struct optimizer_step *step)
{
    if (shard->options.eager && shard->trainable_count > 0) {
        eager_verdict(shard, clock);
        return 0;
    }
    if (clock <= shard->clock || clock <= shard->verdict) {
        return 0;
    }
    if (decision == SHARD_ABORT) {
        return abort_step(shard, clock);
    }
    if (shard->trainable_count == 0) {
        shard->verdict = clock;
        shard->clock = clock;
        shard->options.ops.finished(shard->options.ops.context, clock);
        return 0;
    }
    if (clock != shard->clock + 1 || shard->complete_count != shard->trainable_count) {
        return STATUS_RANGE;
    }
    shard->verdict = clock;
    for (int i = 0; i < shard->ranges_count; i++) {
        if (!shard->ranges[i].range->frozen) {
            range_verdict(shard, &shard->ranges[i], decision, step);
        }
    }
    return 0;
}

int shard_trust_ratios(struct shard *shard, uint64_t clock, const double *ratios)
{
    if (clock <= shard->clock || (clock == shard->clock + 1 && shard->trainable_count == 0)) {
        return 0;
    }
    if (!shard->ratios || clock != shard->clock + 1 || shard->prepared_count != shard->trainable_count) {
        return STATUS_RANGE;
    }
    shard->prepared_count = 0;
    memcpy(shard->ratios, ratios, (size_t)shard->options.map->table->tensor_count * sizeof(double));
    for (int i = 0; i < shard->ranges_count; i++) {
        if (!shard->ranges[i].range->frozen) {
            shard->ranges[i].phase = RANGE_APPLYING;
            work_start(&shard->ranges[i], WORK_APPLY);
        }
    }
    return 0;
}
