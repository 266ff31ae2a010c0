#include "config_test.h"

static void impossible_combinations_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"optimizer: {kind: sgd, lr: 0.1, nesterov: true}\n",
         "job.yaml:5: optimizer.nesterov: found true with momentum 0, expected momentum > 0"},
        {"optimizer: {kind: adam, lr: 0.1}\nlr_schedule: {kind: cosine, min_lr: 0.2}\n",
         "job.yaml:6: lr_schedule.min_lr: found 0.2, expected at most optimizer.lr 0.1"},
        {"optimizer: {kind: adam}\nlr_schedule: {kind: cosine, total_steps: 5, warmup_steps: 6}\n",
         "job.yaml:6: lr_schedule.warmup_steps: found 6, expected at most total_steps 5"},
        {"optimizer: {kind: adam, clip_norm: 1, nonfinite: stop}\nparallel: {update: eager}\n",
         "job.yaml:6: parallel.update: found eager with optimizer.clip_norm 1, expected step, or clip_norm 0"},
        {"optimizer: {kind: adam}\nparallel: {update: eager}\n",
         "job.yaml:6: parallel.update: found eager with optimizer.nonfinite skip, expected step, or nonfinite "
         "stop"},
        {"optimizer: {kind: lamb, nonfinite: stop}\nparallel: {update: eager}\n",
         "job.yaml:6: parallel.update: found eager with optimizer.kind lamb, expected step"},
        {"optimizer: {kind: adam, nonfinite: stop}\nparallel: {update: eager, update_at: worker}\n",
         "job.yaml:6: parallel.update: found eager with update_at worker, expected step"},
        {"optimizer: {kind: adam}\nparallel: {credit_bytes: 65536}\n",
         "job.yaml:6: parallel.credit_bytes: found 65536, expected at least message_bytes 1048576"},
        {"optimizer: {kind: adam}\nparallel: {aggregate: trimmed_mean, trim_fraction: 0.5}\n",
         "job.yaml:6: parallel.trim_fraction: found \"0.5\", expected a number >= 0 and < 0.5"},
        {"optimizer: {kind: adam}\nparallel: {aggregate: plugin}\n",
         "job.yaml: missing: parallel.aggregate_plugin"},
        {"optimizer: {kind: adam}\nevaluate: {early_stop: {metric: loss}}\n",
         "job.yaml:6: evaluate.early_stop.metric: found \"loss\" with evaluate.every 0, expected every > 0"},
        {"optimizer: {kind: adam}\nparallel: {data: ddp, aggregate: median}\n",
         "job.yaml:6: parallel.aggregate: found median with parallel.data ddp, expected mean or sum, or data ps"},
        {"optimizer: {kind: adam}\nparallel: {data: zero1}\ncluster: {workers: 2, elastic: {min: 3}}\n",
         "job.yaml:7: cluster.elastic.min: found 3, expected at most cluster.workers 2"},
        {"optimizer: {kind: adam}\nparallel: {data: zero3}\ncluster: {workers: 2, elastic: {min: 1}}\n",
         "job.yaml:7: cluster.elastic.min: found 1 without snapshot.dir, expected a folder that the others go on from, "
         "or 0"},
        {"optimizer: {kind: adam, clip_norm: 1, nonfinite: stop}\nparallel: {data: zero2, update: eager}\n",
         "job.yaml:6: parallel.update: found eager with optimizer.clip_norm 1, expected step, or clip_norm 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s%s",
                 "epochs: 5\nbatch_size: 128\ndata: {kind: idx, train: {images: A, labels: B}}\n"
                 "model: {kind: mlp, hidden: [8]}\n",
                 cases[i][0]);
        config_test_refused(text, NULL, cases[i][1]);
    }
}

static void data_and_model_must_fit(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"model.loss=binary_cross_entropy data.classes=3",
         "--set: data.classes: found 3 with model.loss binary_cross_entropy, expected 2"},
        {"model.loss=binary_cross_entropy model.outputs=2",
         "--set: model.outputs: found 2 with model.loss binary_cross_entropy, expected 1"},
        {"model.outputs=1",
         "--set: model.outputs: found 1 with model.loss softmax_cross_entropy, expected at least 2"},
        {"model.outputs=4 data.classes=5",
         "--set: model.outputs: found 4 with model.loss softmax_cross_entropy, expected at least 5"},
        {"data.classes=1",
         "--set: data.classes: found 1 with model.loss softmax_cross_entropy, expected at least 2"},
        {"model.init=zeros",
         "--set: model.init: found zeros with model.kind mlp, expected default (zeros would not train)"},
        {"data.classes=2 data.class_names=a,b,c",
         "--set: data.class_names: found 3 names, expected one for each of 2 classes"},
        {"data.scale.divide=2 data.scale.standardize=true",
         "--set: data.scale.divide: found beside standardize: true, expected only one of the two"},
        {"data.validation.fraction=0.1 data.validation.images=V data.validation.labels=V",
         "--set: data.validation.fraction: found beside validation files, expected only one of the two"},
        {"data.test.images=T", "job.yaml: missing: data.test.labels"},
        {"data.kind=npy", "job.yaml: missing: data.train.features"},
        {"data.kind=csv", "job.yaml: missing: data.train.file"},
        {"data.kind=synthetic", "job.yaml: missing: data.samples, data.features"},
        {"data.kind=none",
         "--set: data.kind: found none with model.kind mlp, expected none for both or for neither"},
        {"model.loss=mse snapshot.best.metric=accuracy",
         "--set: snapshot.best.metric: found \"accuracy\" with model.loss mse, expected loss"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[256];
        const char *sets[8] = {NULL};
        int count = 0;
        struct job *job;
        struct errbuf err;
        snprintf(line, sizeof line, "%s", cases[i][0]);
        for (char *part = strtok(line, " "); part; part = strtok(NULL, " ")) {
            sets[count++] = part;
        }
        assert_int_equal(config_test_load(&job, CONFIG_TEST_JOB, sets, &err), STATUS_INVALID);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void a_client_job_needs_only_the_optimizer(void **state)
{
    (void)state;
    struct job *job =
        config_test_good("data: {kind: none}\nmodel: {kind: none}\noptimizer: {kind: sgd, lr: 0.1}\n", NULL);
    assert_true(job->epochs == 0 && job->steps == 0 && job->batch_size == 0);
    job_destroy(job);
}

static void warnings_name_what_has_no_effect(void **state)
{
    (void)state;
    const char *sets[] = {"parallel.trim_fraction=0.2", "snapshot.every=10", "data.header_lines=0", NULL};
    struct job *job = config_test_good("epochs: 5\nbatch_size: 128\n"
                                       "data: {kind: idx, train: {images: A, labels: B}}\n"
                                       "model: {kind: mlp, hidden: [8], dropout: 0.5}\n"
                                       "optimizer: {kind: adam, momentum: 0.9,\n  l1: 0.5, weight_decay: 0.1}\n",
                                       sets);
    const struct job_strings *warnings = job_warnings(job);
    assert_int_equal(warnings->count, 4);
    assert_string_equal(
        warnings->items[0],
        "job.yaml:5: optimizer.momentum: has no effect, it works only with optimizer.kind sgd or plugin");
    assert_string_equal(
        warnings->items[1],
        "job.yaml:6: optimizer.l1: has no effect, it works only with optimizer.kind ftrl or plugin");
    assert_string_equal(
        warnings->items[2],
        "--set: parallel.trim_fraction: has no effect, it works only with parallel.aggregate trimmed_mean");
    assert_string_equal(warnings->items[3],
                        "--set: snapshot.every: has no effect, it works only with snapshot.dir");
    job_destroy(job);
}

static void a_ring_has_no_use_for_servers(void **state)
{
    (void)state;
    const char *sets[] = {"parallel.data=zero2", "cluster.servers=3", "parallel.update_at=worker",
                          "parallel.credit_bytes=65536", NULL};
    struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
    const struct job_strings *warnings = job_warnings(job);
    assert_int_equal(warnings->count, 3);
    assert_string_equal(warnings->items[0],
                        "--set: parallel.update_at: has no effect, it works only with parallel.data ps");
    assert_string_equal(warnings->items[2],
                        "--set: cluster.servers: has no effect, it works only with parallel.data ps");
    job_destroy(job);
    config_test_refused("data: {kind: none}\nmodel: {kind: none}\noptimizer: {kind: sgd, lr: 0.1}\n"
                        "parallel: {data: ddp}\n",
                        NULL, "job.yaml:4: parallel.data: found ddp with data.kind none, expected ps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_combinations_are_refused),
        cmocka_unit_test(data_and_model_must_fit),
        cmocka_unit_test(a_client_job_needs_only_the_optimizer),
        cmocka_unit_test(warnings_name_what_has_no_effect),
        cmocka_unit_test(a_ring_has_no_use_for_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
