#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "base/trace.h"
#include "worker/trainer/trainer_internal.h"

enum { ROW_DOUBLES = 4 }; /* block number, loss, counted, correct */

static int forward(struct trainer *trainer, const struct model_batch *batch, struct errbuf *err)
{
    struct strategy *strategy = &trainer->strategy;
    int status = 0;
    for (int layer = 0; layer < model_layers(trainer->model) && status == 0; layer++) {
        status = strategy->ops->layer_acquire(strategy, layer, STRATEGY_EVALUATE, err);
        if (status == 0) {
            status = model_forward(trainer->model, layer, strategy_layer_w(strategy, layer), batch, NULL, err);
            strategy->ops->layer_release(strategy, layer, STRATEGY_EVALUATE);
        }
    }
    return status;
}

/* row NULL: there is no such block; the layers are passed over all the same, with no rows. */
static int evaluate_block(struct trainer *trainer, const struct dataset *set, int64_t block, double *row,
                          struct errbuf *err)
{
    int64_t begin = block * EVALUATE_ROWS;
    int64_t left = row ? dataset_rows(set) - begin : 0;
    struct model_batch batch = {.x = trainer->x, .labels = trainer->labels, .targets = trainer->targets,
                                .rows = left < EVALUATE_ROWS ? left : EVALUATE_ROWS, .step = trainer->step};
    for (int64_t i = 0; i < batch.rows; i++) {
        trainer->indices[i] = begin + i;
    }
    dataset_read(set, trainer->indices, batch.rows, trainer->x, trainer->labels, trainer->targets);
    int status = forward(trainer, &batch, err);
    if (status == 0 && row) {
        int64_t counted = 0;
        int64_t correct = 0;
        model_loss(trainer->model, &batch, &row[1], &counted, &correct);
        row[0] = (double)block;
        row[2] = (double)counted;
        row[3] = (double)correct;
    }
    return status;
}

static int evaluate_set(struct trainer *trainer, const char *name, const struct dataset *set, int *stop,
                        struct errbuf *err)
{
    int64_t begin_ns = clock_now_ns();
    int64_t blocks = (dataset_rows(set) + EVALUATE_ROWS - 1) / EVALUATE_ROWS;
    int64_t rounds = (blocks + trainer->world - 1) / trainer->world; /* the same on all ranks: acquiring may be collective */
    int64_t mine = blocks > trainer->rank ? (blocks - trainer->rank + trainer->world - 1) / trainer->world : 0;
    struct buf *rows = buf_create((size_t)mine * ROW_DOUBLES * sizeof(double) + 1);
    if (!rows) {
        return errbuf_set(err, STATUS_NOMEM, "evaluation: out of memory");
    }
    rows->bytes = (size_t)mine * ROW_DOUBLES * sizeof(double);
    memset(rows->data, 0, rows->bytes);
    int status = trainer->strategy.ops->settle(&trainer->strategy, err);
    for (int64_t i = 0; i < rounds && status == 0; i++) {
        status = evaluate_block(trainer, set, trainer->rank + i * trainer->world,
                                i < mine ? (double *)rows->data + i * ROW_DOUBLES : NULL, err);
    }
    Shoal__Evaluated body = SHOAL__EVALUATED__INIT;
    body.set = (char *)name;
    body.blocks = (uint64_t)mine;
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__EVALUATED;
    envelope.clock = (uint64_t)trainer->step;
    envelope.dtype = SHOAL__DTYPE__F64;
    envelope.body_case = SHOAL__ENVELOPE__BODY_EVALUATED;
    envelope.evaluated = &body;
    struct message reply = {0};
    if (status == 0) {
        status = client_call(trainer->client, &envelope, &rows, 1, &reply, err);
    }
    if (status == 0) {
        const Shoal__Evaluation *found = reply.envelope->evaluation;
        *stop = *stop || (found && found->stop);
        trainer->snapshot_asked |= found && found->snapshot;
        message_close(&reply);
    }
    buf_release(rows);
    trace_add(trainer->trace, TRACE_COMPUTE, 0, "evaluate", trainer->step, -1, begin_ns, clock_now_ns());
    return status;
}

int trainer_evaluate_sets(struct trainer *trainer, int last, int *stop, struct errbuf *err)
{
    const struct dataset *validation = trainer->data.validation;
    const struct dataset *test = trainer->data.test;
    int status = 0;
    if (validation) {
        status = evaluate_set(trainer, "validation", validation, stop, err);
    }
    if (test && status == 0 && (!validation || last || *stop)) {
        status = evaluate_set(trainer, "test", test, stop, err);
    }
    return status;
}
