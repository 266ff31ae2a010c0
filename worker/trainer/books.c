#include "base/account.h"
#include "base/errbuf.h"
#include "base/host.h"
#include "net/summary_wire.h"
#include "worker/collective/collective.h"
#include "worker/trainer/trainer_internal.h"

static void add_payload(const struct trainer *trainer, const struct strategy_books *books,
                        struct summary_wire *summary)
{
    if (trainer->group) {
        struct collective_bytes sent;
        struct collective_bytes received;
        collective_sent(trainer->group, &sent);
        collective_received(trainer->group, &received);
        summary_wire_add(summary, SUMMARY_SENT, "reduce_scatter", sent.reduce_scatter, books->sent.reduce_scatter);
        summary_wire_add(summary, SUMMARY_SENT, "all_gather", sent.all_gather, books->sent.all_gather);
        summary_wire_add(summary, SUMMARY_RECEIVED, "reduce_scatter", received.reduce_scatter,
                         books->received.reduce_scatter);
        summary_wire_add(summary, SUMMARY_RECEIVED, "all_gather", received.all_gather, books->received.all_gather);
        return;
    }
    struct client_bytes bytes;
    client_bytes(trainer->client, &bytes);
    summary_wire_add(summary, SUMMARY_SENT, "push", bytes.push, books->sent.push);
    summary_wire_add(summary, SUMMARY_SENT, "init", bytes.init, books->init);
    summary_wire_add(summary, SUMMARY_RECEIVED, "pull", bytes.pull, books->received.pull);
}

int trainer_summary(struct trainer *trainer, struct errbuf *err)
{
    const struct account *account = trainer->options->account;
    struct strategy_books books;
    trainer->strategy.ops->books(&trainer->strategy, &books);
    struct summary_wire summary;
    summary_wire_init(&summary);
    summary_wire_add(&summary, SUMMARY_STATE, "parameters", account->bytes[ACCOUNT_PARAMETERS], books.parameters);
    summary_wire_add(&summary, SUMMARY_STATE, "gradients", account->bytes[ACCOUNT_GRADIENTS], books.gradients);
    summary_wire_add(&summary, SUMMARY_STATE, "optimizer", account->bytes[ACCOUNT_OPTIMIZER], books.optimizer);
    add_payload(trainer, &books, &summary);
    Shoal__Summary *message = &summary.message;
    message->buffer_bytes = account->peak[ACCOUNT_BUFFERS];
    message->buffer_bytes_max = books.buffers_max;
    message->activation_bytes = account->peak[ACCOUNT_ACTIVATIONS];
    message->data_bytes = account->peak[ACCOUNT_DATA];
    message->peak_rss_bytes = host_peak_rss_bytes();
    message->export_sha256 = trainer->export_sha256;
    message->compute_s = trainer->compute_s;
    message->wait_s = trainer->wait_s;
    message->digest.data = trainer->digest;
    message->digest.len = DIGEST_BYTES;
    message->clock_offset_ns = client_clock_offset_ns(trainer->client);
    struct buf *frame = summary_wire_trace(trainer->trace);
    Shoal__Envelope envelope = SHOAL__ENVELOPE__INIT;
    envelope.type = SHOAL__TYPE__SUMMARY;
    envelope.body_case = SHOAL__ENVELOPE__BODY_SUMMARY;
    envelope.summary = message;
    int status = client_call(trainer->client, &envelope, &frame, frame ? 1 : 0, NULL, err);
    buf_release(frame);
    return status;
}
