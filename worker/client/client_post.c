/* Requests that nobody waits for. */
#include <stdlib.h>

#include "base/status.h"
#include "worker/client/client_internal.h"

void client_free_posted(struct client_request *request)
{
    shoal__envelope__free_unpacked(request->envelope, NULL);
    buf_release(request->frame);
    free(request);
}

/* What an answer says when the job is over, stopped or taken back: END says so, too, with the reason, and may be on its way
 * or be followed by the next job already. */
static int end_follows(int status)
{
    return status == STATUS_ABORTED || status == STATUS_STOPPED || status == STATUS_ROLLED_BACK;
}

/* Under the lock. */
void client_end_posted(struct client_request *request, int status, const char *text)
{
    struct client *client = request->client;
    client->posted = 0;
    if (status != 0 && status != STATUS_CLOSED && !end_follows(status)) {
        client_fail_locked(client, status, text);
    }
    pthread_cond_broadcast(&client->changed);
    client_free_posted(request);
}

/* Under the lock. In order: what is posted before a call comes first. */
void client_add_request(struct client *client, struct client_request *request)
{
    struct client_request **link = &client->requests;
    while (*link) {
        link = &(*link)->next;
    }
    *link = request;
}

/* A copy that outlives the caller's: request numbers and the like are filled in at sending. */
static Shoal__Envelope *copy_envelope(const Shoal__Envelope *envelope)
{
    size_t bytes = shoal__envelope__get_packed_size(envelope);
    uint8_t *packed = malloc(bytes + 1);
    if (!packed) {
        return NULL;
    }
    shoal__envelope__pack(envelope, packed);
    Shoal__Envelope *copy = shoal__envelope__unpack(NULL, bytes, packed);
    free(packed);
    return copy;
}

int client_post(struct client *client, Shoal__Envelope *envelope, struct buf *frame, struct errbuf *err)
{
    struct client_request *request = calloc(1, sizeof(*request));
    Shoal__Envelope *copy = request ? copy_envelope(envelope) : NULL;
    if (!copy) {
        free(request);
        return errbuf_set(err, STATUS_NOMEM, "out of memory");
    }
    *request = (struct client_request){.client = client, .envelope = copy, .posted = 1};
    request->frame = frame ? buf_share(frame) : NULL;
    request->frames = &request->frame;
    request->frames_count = frame != NULL;
    pthread_mutex_lock(&client->lock);
    while (client->posted && !client->loop_over && client->status == 0) {
        pthread_cond_wait(&client->changed, &client->lock);
    }
    int status = client->status ? client->status : client->loop_over ? STATUS_CLOSED : 0;
    if (status != 0) {
        errbuf_set(err, status, "%s", client->status ? client->why.text : "the client is closed");
        client_free_posted(request);
    } else {
        client->posted = 1;
        client_add_request(client, request);
        client_wake(client);
    }
    pthread_mutex_unlock(&client->lock);
    return status;
}
