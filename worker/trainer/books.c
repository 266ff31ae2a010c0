#include <string.h>

#include "base/account.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "base/trace.h"
#include "worker/trainer/trainer_internal.h"

static void fill(Shoal__Bytes *row, const char *name, int64_t bytes, int64_t formula)
{
    shoal__bytes__init(row);
    row->name = (char *)name;
    row->bytes = bytes;
    row->formula = formula;
}

int trainer_summary(struct trainer *trainer, struct errbuf *err)
{
    const struct account *account = trainer->options->account;
    struct strategy_books books;
    struct client_bytes bytes;
    trainer->strategy.ops->books(&trainer->strategy, &books);
    client_bytes(trainer->client, &bytes);
    Shoal__Bytes rows[6];
    fill(&rows[0], "parameters", account->bytes[ACCOUNT_PARAMETERS], books.parameters);
    fill(&rows[1], "gradients", account->bytes[ACCOUNT_GRADIENTS], books.gradients);
    fill(&rows[2], "optimizer", account->bytes[ACCOUNT_OPTIMIZER], books.optimizer);
    fill(&rows[3], "push", bytes.push, books.push);
    fill(&rows[4], "init", bytes.init, books.init);
    fill(&rows[5], "pull", bytes.pull, books.pull);
    Shoal__Bytes *pointers[6] = {&rows[0], &rows[1], &rows[2], &rows[3], &rows[4], &rows[5]};
    Shoal__Summary summary = SHOAL__SUMMARY__INIT;
    summary.n_state = 3;
    summary.state = pointers;
    summary.n_sent = 2;
    summary.sent = pointers + 3;
    summary.n_received = 1;
    summary.received = pointers + 5;
    summary.buffer_bytes = account->peak[ACCOUNT_BUFFERS];
    summary.activation_bytes = account->peak[ACCOUNT_ACTIVATIONS];
    summary.data_bytes = account->peak[ACCOUNT_DATA];
    summary.peak_rss_bytes = host_peak_rss_bytes();
    summary.export_sha256 = trainer->export_sha256;
    summary.compute_s = trainer->compute_s;
    summary.wait_s = trainer->wait_s;
    uint8_t digest[DIGEST_BYTES];
    train_step_digest(trainer, digest);
    summary.digest.data = digest;
    summary.digest.len = DIGEST_BYTES;
    summary.clock_offset_ns = client_clock_offset_ns(trainer->client);
    size_t count = 0;
    const struct trace_event *events = trainer->trace ? trace_events(trainer->trace, &count) : NULL;
    struct buf *frame = count ? buf_create(count * sizeof(*events)) : NULL;
    if (frame) {
        memcpy(frame->data, events, frame->bytes);
    }
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__SUMMARY;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
    envelope.summary = &summary;
    int status = client_call(trainer->client, &envelope, &frame, frame ? 1 : 0, NULL, err);
    buf_release(frame);
    return status;
}
