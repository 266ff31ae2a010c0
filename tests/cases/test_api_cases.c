/* Cases of the public client interface: A01, A02, A03, N10, P04. Programs run on threads: checks abort. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/api_ranks.h"

/* cmocka's asserts belong to the test's own thread. */
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
static void check(int holds, const char *text, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, text);
        abort();
    }
}

static const struct api_cluster_options one_rank = {.workers = 1, .servers = 1};

static float value_of(int key, int64_t i)
{
    return (float)((key * 7919 + i * 104729) % 65536) / 1024.0f - 31.0f;
}

/* --- A01: wrong length, many keys ------------------------------------------------------------------------ */

static int is_error(struct shoal_client *client, int status, const char *word)
{
    char text[512];
    int last = shoal_error(client, text, sizeof(text));
    return last == status && strstr(text, word) != NULL;
}

static void wrong_lengths(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t four = 4;
    float first[5] = {1, 2, 3, 4, 5}, out[5] = {0};
    int key = shoal_register(c, "w", 1, &four);
    CHECK(key == 0 && shoal_count(c, key) == 4);
    CHECK(shoal_init(c, key, first, 4) == 0);
    const size_t counts[] = {3, 5, 0, SIZE_MAX, SIZE_MAX / sizeof(float)};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        CHECK(shoal_push(c, key, first, counts[i], 1, NULL) == SHOAL_SHAPE);
        CHECK(is_error(c, SHOAL_SHAPE, "key w (0): expected 4 floats, given "));
        CHECK(shoal_pull(c, key, out, counts[i], NULL) == SHOAL_SHAPE);
    }
    CHECK(shoal_push(c, key, NULL, 4, 1, NULL) == SHOAL_INVALID);
    CHECK(shoal_pull(c, key, NULL, 4, NULL) == SHOAL_INVALID);
    CHECK(shoal_push(c, key, first, 4, -1, NULL) == SHOAL_INVALID);
    CHECK(shoal_push(c, key, first, 4, NAN, NULL) == SHOAL_INVALID);
    CHECK(shoal_push_many(c, NULL, 1, 1, NULL) == SHOAL_INVALID);
    CHECK(shoal_init(c, key, first, 4) == SHOAL_EXISTS);
    /* Nothing of it was pushed: the step counts nothing and leaves the values. */
    CHECK(shoal_clock(c) == SHOAL_SKIPPED);
    CHECK(shoal_pull(c, key, out, 4, NULL) == 0);
    CHECK(memcmp(out, first, 4 * sizeof(float)) == 0);
}

static void A01_a_wrong_length_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(api_ranks_run(&one_rank, wrong_lengths, NULL), 0);
}

enum { MANY = 100 };

static void hundred_keys(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    static float data[MANY][MANY], out[MANY][MANY];
    struct shoal_slice slices[MANY + 1];
    char name[32];
    for (int64_t k = 0; k < MANY; k++) {
        snprintf(name, sizeof(name), "k%d", (int)k);
        CHECK(shoal_register(c, name, 1, &k) == k);
    }
    for (int k = 0; k < MANY; k++) {
        for (int64_t i = 0; i < k; i++) {
            data[k][i] = value_of(k, i);
        }
        slices[MANY - 1 - k] = (struct shoal_slice){k, data[k], out[k], (size_t)k};
    }
    CHECK(shoal_init_many(c, slices, MANY) == 0);
    slices[40].count++;
    CHECK(shoal_push_many(c, slices, MANY, 1, NULL) == SHOAL_SHAPE);
    CHECK(is_error(c, SHOAL_SHAPE, "k59 (59): expected 59 floats, given 60"));
    slices[40].count--;
    slices[MANY] = slices[3];
    CHECK(shoal_push_many(c, slices, MANY + 1, 1, NULL) == SHOAL_EXISTS);
    CHECK(shoal_pull_many(c, slices, MANY + 1, NULL) == SHOAL_EXISTS);
    slices[MANY].key = 100;
    CHECK(shoal_push_many(c, slices, MANY + 1, 1, NULL) == SHOAL_UNKNOWN);
    CHECK(shoal_pull_many(c, slices, MANY, NULL) == 0);
    CHECK(memcmp(out, data, sizeof(out)) == 0);
    /* The good call after all the refused ones: w <- w - 1 x w. */
    CHECK(shoal_push_many(c, slices, MANY, 1, NULL) == 0);
    CHECK(shoal_push(c, 7, data[7], 7, 1, NULL) == SHOAL_EXISTS);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_pull_many(c, slices, MANY, NULL) == 0);
    for (int k = 0; k < MANY; k++) {
        for (int i = 0; i < MANY; i++) {
            CHECK(out[k][i] == 0);
        }
    }
}

static void A01_a_call_with_many_keys_is_all_or_nothing(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 2, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    assert_int_equal(api_ranks_run(&options, hundred_keys, NULL), 0);
}

/* --- A02: unknown key, pull before init ------------------------------------------------------------------ */

static void unknown_keys(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t two = 2;
    float first[2] = {5, 6}, out[2] = {0};
    CHECK(shoal_register(c, "a", 1, &two) == 0);
    CHECK(shoal_register(c, "a", 1, &two) == SHOAL_EXISTS);
    CHECK(shoal_register(c, "", 1, &two) == SHOAL_INVALID);
    CHECK(shoal_register(c, NULL, 1, &two) == SHOAL_INVALID);
    CHECK(shoal_register(c, "b", 1, &two) == 1);
    for (int i = 0; i < 3; i++) {
        const int keys[] = {-1, 2, 1 << 30};
        CHECK(shoal_push(c, keys[i], first, 2, 1, NULL) == SHOAL_UNKNOWN);
        CHECK(shoal_pull(c, keys[i], out, 2, NULL) == SHOAL_UNKNOWN);
        CHECK(shoal_init(c, keys[i], first, 2) == SHOAL_UNKNOWN);
        CHECK(shoal_count(c, keys[i]) == SHOAL_UNKNOWN);
    }
    CHECK(shoal_init(c, 0, first, 2) == 0);
    CHECK(shoal_pull(c, 0, out, 2, NULL) == 0);
    CHECK(out[0] == 5 && out[1] == 6);
    CHECK(shoal_pull(c, 1, out, 2, NULL) == 0); /* nobody gave it: zero */
    CHECK(out[0] == 0 && out[1] == 0);
    CHECK(shoal_register(c, "late", 1, &two) == SHOAL_INVALID);
}

static void A02_an_unknown_key_is_a_status_and_the_server_lives(void **state)
{
    (void)state;
    assert_int_equal(api_ranks_run(&one_rank, unknown_keys, NULL), 0);
}

enum { ROUNDS = 200 };

/* Every round is a key of its own: all ranks give it and pull it at once. */
static void init_race(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t n = 33;
    char name[32];
    for (int k = 0; k < ROUNDS; k++) {
        snprintf(name, sizeof(name), "round%d", k);
        CHECK(shoal_register(c, name, 1, &n) == k);
    }
    CHECK(shoal_world(c) == 4);
    for (int k = 0; k < ROUNDS; k++) {
        float mine[33], out[33];
        for (int i = 0; i < 33; i++) {
            mine[i] = value_of(k, i) + (float)rank->rank;
        }
        CHECK(shoal_init(c, k, mine, 33) == 0);
        CHECK(shoal_pull(c, k, out, 33, NULL) == 0);
        for (int i = 0; i < 33; i++) {
            CHECK(out[i] == value_of(k, i)); /* rank 0's */
        }
    }
    /* A push may come before rank 0's values of other keys. */
    float g[33] = {0};
    CHECK(shoal_push(c, rank->rank, g, 33, 1, NULL) == 0);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
}

static void A02_four_ranks_that_give_and_pull_at_once_see_rank_0(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 4, .servers = 2};
    assert_int_equal(api_ranks_run(&options, init_race, NULL), 0);
}

static void push_before_init(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t one = 1;
    float first = 10, g = 1, out = 0;
    int *turn = rank->context;
    CHECK(shoal_register(c, "x", 1, &one) == 0 && shoal_register(c, "y", 1, &one) == 1);
    CHECK(shoal_start(c) == 0);
    if (rank->rank == 0) {
        while (!__atomic_load_n(turn, __ATOMIC_ACQUIRE)) {
            usleep(100); /* until the other has pushed */
        }
        CHECK(shoal_init(c, 0, &first, 1) == 0);
    }
    CHECK(shoal_push(c, 0, &g, 1, 1, NULL) == 0);
    __atomic_store_n(turn, 1, __ATOMIC_RELEASE);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_pull(c, 0, &out, 1, NULL) == 0);
    CHECK(out == 10.0f - 0.1f);
    CHECK(shoal_pull(c, 1, &out, 1, NULL) == 0);
    CHECK(out == 0);
}

static void A02_a_push_that_comes_before_the_first_values_waits_for_them(void **state)
{
    (void)state;
    int turn = 0;
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    assert_int_equal(api_ranks_run(&options, push_before_init, &turn), 0);
}

/* --- A03: who owns the buffer ---------------------------------------------------------------------------- */

enum { BIG = 300000, SMALL = 100 };

static void buffers_are_free_after_the_wait(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t sizes[3] = {BIG, SMALL, BIG};
    for (int k = 0; k < 3; k++) {
        CHECK(shoal_register(c, k == 0 ? "big" : k == 1 ? "small" : "last", 1, &sizes[k]) == k);
    }
    /* Ranks push in opposite orders and wait at once: nobody waits for somebody who waits. */
    for (int step = 1; step <= 5; step++) {
        for (int i = 0; i < 3; i++) {
            int k = rank->rank == 0 ? i : 2 - i;
            shoal_request request = 0;
            float *g = malloc((size_t)sizes[k] * sizeof(float));
            for (int64_t e = 0; e < sizes[k]; e++) {
                g[e] = (float)(k + 1);
            }
            CHECK(shoal_push(c, k, g, (size_t)sizes[k], 1, &request) == 0);
            CHECK(shoal_wait(c, request) == 0);
            memset(g, 0x7f, (size_t)sizes[k] * sizeof(float));
            free(g);
            CHECK(shoal_wait(c, request) == SHOAL_UNKNOWN); /* the second time */
        }
        CHECK(shoal_clock(c) == SHOAL_APPLIED);
    }
    for (int k = 0; k < 3; k++) {
        shoal_request request = 0;
        float *out = malloc((size_t)sizes[k] * sizeof(float));
        CHECK(shoal_pull(c, k, out, (size_t)sizes[k], &request) == 0);
        CHECK(shoal_pull(c, k, out, (size_t)sizes[k], NULL) == SHOAL_BUSY);
        CHECK(shoal_wait(c, request) == 0);
        for (int64_t e = 0; e < sizes[k]; e++) {
            CHECK(out[e] == -5.0f * (float)(k + 1));
        }
        free(out);
    }
    CHECK(shoal_wait(c, 0) == SHOAL_UNKNOWN);
    CHECK(shoal_wait(c, UINT64_MAX) == SHOAL_UNKNOWN);
}

static void A03_a_buffer_is_free_after_its_wait_and_a_second_wait_says_so(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 2, .servers = 2, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    assert_int_equal(api_ranks_run(&options, buffers_are_free_after_the_wait, NULL), 0);
}

static void A03_with_copies_a_buffer_is_free_at_once(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 1, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    struct api_cluster *cluster = api_cluster_start(&options);
    struct shoal_client *c = api_connect(cluster, 0, 1);
    int64_t n = BIG;
    float *out = malloc(BIG * sizeof(float));
    assert_int_equal(shoal_register(c, "w", 1, &n), 0);
    for (int step = 1; step <= 3; step++) {
        float *g = malloc(BIG * sizeof(float));
        for (int e = 0; e < BIG; e++) {
            g[e] = -1;
        }
        assert_int_equal(shoal_push(c, 0, g, BIG, 1, NULL), 0);
        memset(g, 0x7f, BIG * sizeof(float));
        free(g);
        assert_int_equal(shoal_clock(c), SHOAL_APPLIED);
        assert_int_equal(shoal_pull(c, 0, out, BIG, NULL), 0);
        assert_true(out[0] == (float)step && out[BIG - 1] == (float)step);
    }
    free(out);
    shoal_close(c);
    int status = 1;
    api_cluster_end(cluster, &status, NULL);
    assert_int_equal(status, 0);
}

/* Closing with requests that nobody waited for. */
static void leave_requests_open(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    int64_t n = BIG;
    float *out = rank->context;
    shoal_request requests[3];
    CHECK(shoal_register(c, "a", 1, &n) == 0 && shoal_register(c, "b", 1, &n) == 1);
    CHECK(shoal_pull(c, 0, out, BIG, &requests[0]) == 0);
    CHECK(shoal_push(c, 0, out + BIG, BIG, 1, &requests[1]) == 0);
    CHECK(shoal_push(c, 1, out + BIG, BIG, 1, &requests[2]) == 0);
}

static void A03_closing_with_requests_open_is_clean(void **state)
{
    (void)state;
    float *memory = calloc(2 * BIG, sizeof(float));
    assert_int_equal(api_ranks_run(&one_rank, leave_requests_open, memory), 0);
    free(memory);
}

/* --- N10: mean or sum ------------------------------------------------------------------------------------ */

static void push_2_and_4(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    float g = rank->rank == 0 ? 2 : 4, out = 1;
    CHECK(shoal_register(c, "w", 0, NULL) == 0);
    CHECK(shoal_push(c, 0, &g, 1, 1, NULL) == 0);
    CHECK(shoal_push(c, 0, &g, 1, 1, NULL) == SHOAL_EXISTS);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_step(c) == 1);
    CHECK(shoal_pull(c, 0, &out, 1, NULL) == 0);
    CHECK(out == *(const float *)rank->context);
}

static void N10_two_ranks_are_averaged_by_default_and_summed_by_name(void **state)
{
    (void)state;
    float mean = -(0.1f * 3), sum = -(0.1f * 6);
    struct api_cluster_options options = {.workers = 2, .servers = 1};
    assert_int_equal(api_ranks_run(&options, push_2_and_4, &mean), 0);
    options.more = "optimizer: {kind: sgd, lr: 0.1}\nparallel: {aggregate: sum}\n";
    assert_int_equal(api_ranks_run(&options, push_2_and_4, &sum), 0);
}

/* Rank 0 has 3 samples and pushes one key, rank 1 has 1 and pushes the other: means over 4 samples. */
static void weighted(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    float g = 4, out[2];
    CHECK(shoal_register(c, "a", 0, NULL) == 0 && shoal_register(c, "b", 0, NULL) == 1);
    double weight = rank->rank == 0 ? 3 : 1;
    CHECK(shoal_push(c, rank->rank, &g, 1, weight, NULL) == 0);
    CHECK(shoal_push(c, 1 - rank->rank, &g, 1, weight + 1, NULL) == SHOAL_INVALID);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_pull(c, 0, &out[0], 1, NULL) == 0 && shoal_pull(c, 1, &out[1], 1, NULL) == 0);
    CHECK(out[0] == -3 && out[1] == -1);
    /* A rank without samples takes part without a push. */
    if (rank->rank == 0) {
        CHECK(shoal_push(c, 0, &g, 1, 2, NULL) == 0);
    }
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_pull(c, 0, &out[0], 1, NULL) == 0);
    CHECK(out[0] == -7);
}

static void N10_weights_are_samples(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 2, .servers = 1, .more = "optimizer: {kind: sgd, lr: 1}\n"};
    assert_int_equal(api_ranks_run(&options, weighted, NULL), 0);
}

/* --- P04: large keys ------------------------------------------------------------------------------------- */

static void large_key(struct api_rank *rank)
{
    struct shoal_client *c = rank->client;
    const int64_t shape[2] = {83887, 200};
    const int64_t beyond[2] = {INT64_C(1) << 21, (INT64_C(1) << 19) + 1}, huge[2] = {INT64_MAX, INT64_MAX};
    const int64_t negative = -1;
    size_t n = 83887 * 200;
    CHECK(shoal_register(c, "beyond", 2, beyond) == SHOAL_RANGE);
    CHECK(is_error(c, SHOAL_RANGE, "2^40"));
    CHECK(shoal_register(c, "huge", 2, huge) == SHOAL_RANGE);
    CHECK(shoal_register(c, "negative", 1, &negative) == SHOAL_RANGE);
    CHECK(shoal_register(c, "dims", 9, (const int64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1}) == SHOAL_RANGE);
    CHECK(shoal_register(c, "large", 2, shape) == 0);
    float *data = malloc(n * sizeof(float)), *out = calloc(n, sizeof(float));
    CHECK(data && out);
    for (size_t i = 0; i < n; i++) {
        data[i] = value_of(1, (int64_t)i);
    }
    CHECK(shoal_init(c, 0, data, n) == 0);
    CHECK(shoal_pull(c, 0, out, n, NULL) == 0);
    CHECK(memcmp(data, out, n * sizeof(float)) == 0);
    CHECK(shoal_push(c, 0, data, n, 1, NULL) == 0);
    CHECK(shoal_clock(c) == SHOAL_APPLIED);
    CHECK(shoal_pull(c, 0, out, n, NULL) == 0);
    for (size_t i = 0; i < n; i++) {
        CHECK(out[i] == data[i] - 0.5f * data[i]);
    }
    free(data);
    free(out);
}

static void P04_a_key_beyond_64_MiB_is_bit_exact_and_the_limit_is_refused(void **state)
{
    (void)state;
    struct api_cluster_options options = {.workers = 1, .servers = 2, .more = "optimizer: {kind: sgd, lr: 0.5}\n"};
    assert_int_equal(api_ranks_run(&options, large_key, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A01_a_wrong_length_is_refused_and_changes_nothing),
        cmocka_unit_test(A01_a_call_with_many_keys_is_all_or_nothing),
        cmocka_unit_test(A02_an_unknown_key_is_a_status_and_the_server_lives),
        cmocka_unit_test(A02_four_ranks_that_give_and_pull_at_once_see_rank_0),
        cmocka_unit_test(A02_a_push_that_comes_before_the_first_values_waits_for_them),
        cmocka_unit_test(A03_a_buffer_is_free_after_its_wait_and_a_second_wait_says_so),
        cmocka_unit_test(A03_with_copies_a_buffer_is_free_at_once),
        cmocka_unit_test(A03_closing_with_requests_open_is_clean),
        cmocka_unit_test(N10_two_ranks_are_averaged_by_default_and_summed_by_name),
        cmocka_unit_test(N10_weights_are_samples),
        cmocka_unit_test(P04_a_key_beyond_64_MiB_is_bit_exact_and_the_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
