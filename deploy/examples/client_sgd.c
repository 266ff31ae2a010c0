/* A training loop of its own over Shoal: linear regression on made-up data. Each rank makes its own samples of
 * y = 3 x0 - 2 x1 + 1 + noise, computes the gradient of the mean squared error and lets the servers do the update.
 *
 *     cat > client.yaml <<END
 *     name: client
 *     data: {kind: none}
 *     model: {kind: none}
 *     optimizer: {kind: sgd, lr: 0.1}
 *     cluster: {workers: 2, servers: 1}
 *     END
 *     shoal-server --coordinator --job client.yaml --listen tcp://127.0.0.1:7070 --once &
 *     shoal-server --cluster tcp://127.0.0.1:7070 --once &
 *     cc client_sgd.c $(pkg-config --cflags --libs shoal) -o client_sgd
 *     ./client_sgd tcp://127.0.0.1:7070 & ./client_sgd tcp://127.0.0.1:7070 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <shoal.h>

enum { FEATURES = 2, SAMPLES = 64, STEPS = 200 };

/* Numbers in [-1, 1) from a small generator of this rank. */
static float next_number(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

/* Adds the gradient of one batch's mean squared error; returns that error. */
static float compute(const float w[FEATURES], float b, uint64_t *state, float dw[FEATURES], float *db)
{
    float loss = 0;
    for (int s = 0; s < SAMPLES; s++) {
        float x[FEATURES] = {next_number(state), next_number(state)};
        float y = 3 * x[0] - 2 * x[1] + 1 + 0.01f * next_number(state);
        float error = w[0] * x[0] + w[1] * x[1] + b - y;
        for (int f = 0; f < FEATURES; f++) {
            dw[f] += 2 * error * x[f] / SAMPLES;
        }
        *db += 2 * error / SAMPLES;
        loss += error * error / SAMPLES;
    }
    return loss;
}

static int train(struct shoal_client *client)
{
    const int64_t shape[] = {FEATURES};
    int weight = shoal_register(client, "weight", 1, shape);
    int bias = shoal_register(client, "bias", 0, NULL);
    float w[FEATURES] = {0}, b = 0, loss = 0;
    int status = shoal_init(client, weight, w, FEATURES);
    status = status == 0 ? shoal_init(client, bias, &b, 1) : status;
    uint64_t state = 1 + (uint64_t)shoal_rank(client);
    for (int step = 1; status >= 0 && step <= STEPS; step++) {
        struct shoal_slice values[] = {{.key = weight, .out = w, .count = FEATURES},
                                       {.key = bias, .out = &b, .count = 1}};
        status = shoal_pull_many(client, values, 2, NULL);
        if (status != 0) {
            break;
        }
        float dw[FEATURES] = {0}, db = 0;
        loss = compute(w, b, &state, dw, &db);
        struct shoal_slice gradients[] = {{.key = weight, .data = dw, .count = FEATURES},
                                          {.key = bias, .data = &db, .count = 1}};
        status = shoal_push_many(client, gradients, 2, SAMPLES, NULL);
        status = status == 0 ? shoal_clock(client) : status; /* dw and db are ours again */
    }
    if (status < 0) {
        char text[512];
        shoal_error(client, text, sizeof(text));
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    printf("rank %d of %d: weight %.3f %.3f bias %.3f loss %.2g\n", shoal_rank(client), shoal_world(client),
           (double)w[0], (double)w[1], (double)b, (double)loss);
    return fabsf(w[0] - 3) < 0.05f && fabsf(w[1] + 2) < 0.05f && fabsf(b - 1) < 0.05f ? 0 : 1;
}

int main(int count, char **arguments)
{
    char error[512];
    struct shoal_client *client = NULL;
    struct shoal_options options = {.cluster = count > 1 ? arguments[1] : "tcp://127.0.0.1:7070",
                                    .rank = SHOAL_ANY_RANK, .timeout_s = 30};
    if (shoal_connect(&client, &options, error, sizeof(error)) != 0) {
        fprintf(stderr, "%s: %s\n", options.cluster, error);
        return 1;
    }
    int status = train(client);
    shoal_close(client);
    return status;
}
