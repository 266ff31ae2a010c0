#include <string.h>

#include "base/clock.h"
#include "base/errbuf.h"
#include "base/status.h"
#include "base/trace.h"
#include "worker/trainer/trainer_internal.h"

enum { ROW_DOUBLES = 4 }; /* block number, loss, counted, correct */

static int evaluate_block(struct trainer *trainer, const struct dataset *set, int64_t block, double *row,
                          struct errbuf *err)
{
    int64_t begin = block * EVALUATE_ROWS;
    int64_t end = begin + EVALUATE_ROWS < dataset_rows(set) ? begin + EVALUATE_ROWS : dataset_rows(set);
    struct model_batch batch = {.x = trainer->x, .labels = trainer->labels, .targets = trainer->targets,
                                .rows = end - begin, .step = trainer->step};
    for (int64_t i = begin; i < end; i++) {
        trainer->indices[i - begin] = i;
    }
    dataset_read(set, trainer->indices, batch.rows, trainer->x, trainer->labels, trainer->targets);
    int status = 0;
    for (int layer = 0; layer < model_layers(trainer->model) && status == 0; layer++) {
        status = model_forward(trainer->model, layer, strategy_layer_w(&trainer->strategy, layer), &batch, NULL, err);
    }
    int64_t counted = 0;
    int64_t correct = 0;
    model_loss(trainer->model, &batch, &row[1], &counted, &correct);
    row[0] = (double)block;
    row[2] = (double)counted;
    row[3] = (double)correct;
    return status;
}

int trainer_evaluate(struct trainer *trainer, const char *name, const struct dataset *set, int *stop,
                     struct errbuf *err)
{
    int64_t begin_ns = clock_now_ns();
    int64_t blocks = (dataset_rows(set) + EVALUATE_ROWS - 1) / EVALUATE_ROWS;
    int64_t mine = blocks > trainer->rank ? (blocks - trainer->rank + trainer->world - 1) / trainer->world : 0;
    struct buf *rows = buf_create((size_t)mine * ROW_DOUBLES * sizeof(double) + 1);
    if (!rows) {
        return errbuf_set(err, STATUS_NOMEM, "evaluation: out of memory");
    }
    rows->bytes = (size_t)mine * ROW_DOUBLES * sizeof(double);
    memset(rows->data, 0, rows->bytes);
    int status = trainer->strategy.ops->settle(&trainer->strategy, err);
    for (int64_t i = 0; i < mine && status == 0; i++) {
        status = evaluate_block(trainer, set, trainer->rank + i * trainer->world,
                                (double *)rows->data + i * ROW_DOUBLES, err);
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
        *stop = *stop || (reply.envelope->evaluation && reply.envelope->evaluation->stop);
        message_close(&reply);
    }
    buf_release(rows);
    trace_add(trainer->trace, TRACE_COMPUTE, 0, "evaluate", trainer->step, -1, begin_ns, clock_now_ns());
    return status;
}
