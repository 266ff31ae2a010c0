#include "config_test.h"

static void the_file_fills_the_job(void **state)
{
    (void)state;
    struct job *job =
        config_test_good("name: fashion\n"
                         "seed: 7\n"
                         "epochs: 5   # or steps: N\n"
                         "batch_size: 128\n"
                         "data: {kind: idx, train: {images: A, labels: B}, test: {images: C, labels: D},\n"
                         "       class_names: [T-shirt/top, \"Ankle boot\"], scale: {divide: 255}}\n"
                         "model:\n"
                         "  kind: mlp\n"
                         "  hidden:\n"
                         "    - 512\n"
                         "    - 256\n"
                         "  batch_norm: true\n"
                         "optimizer: {kind: adamw, lr: 1.0e-3, no_decay: [\"*.bias\"]}\n"
                         "snapshot: {dir: \"\", best: {metric: loss}}\n"
                         "cluster: {workers: 4, timeouts: {start: 30}}\n",
                         NULL);
    assert_string_equal(job->name, "fashion");
    assert_true(job->seed == 7 && job->epochs == 5 && job->steps == 0 && job->batch_size == 128);
    assert_int_equal(job->data.kind, JOB_DATA_IDX);
    assert_string_equal(job->data.train.images, "A");
    assert_string_equal(job->data.test.labels, "D");
    assert_string_equal(job->data.test.file, "");
    assert_int_equal(job->data.class_names.count, 2);
    assert_string_equal(job->data.class_names.items[1], "Ankle boot");
    assert_true(job->data.scale_divide == 255);
    assert_int_equal(job->model.kind, JOB_MODEL_MLP);
    assert_int_equal(job->model.hidden_count, 2);
    assert_true(job->model.hidden[0] == 512 && job->model.hidden[1] == 256);
    assert_int_equal(job->model.batch_norm, 1);
    assert_int_equal(job->optimizer.kind, JOB_ADAMW);
    assert_true(job->optimizer.lr == 1e-3 && job->optimizer.weight_decay == 0.01);
    assert_string_equal(job->optimizer.no_decay.items[0], "*.bias");
    assert_int_equal(job->snapshot.best_mode, JOB_BEST_MIN);
    assert_true(job->cluster.workers == 4 && job->cluster.timeouts.start == 30);
    assert_true(job->cluster.timeouts.worker_dead == 60);
    job_destroy(job);
}

static void synthetic_keys_stand_in_data(void **state)
{
    (void)state;
    struct job *job = config_test_good("steps: 10\nbatch_size: 8\n"
                                       "data: {kind: synthetic, samples: 100, features: 20, classes: 3, seed: 9}\n"
                                       "model: {kind: linear}\noptimizer: {kind: sgd, lr: 0.1}\n",
                                       NULL);
    assert_true(job->data.synthetic.samples == 100 && job->data.synthetic.features == 20);
    assert_true(job->data.synthetic.classes == 3 && job->data.synthetic.seed == 9);
    job_destroy(job);
}

static void defaults_follow_the_optimizer(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        double lr, eps, weight_decay;
    } rows[] = {{"optimizer.kind=adam", 1e-3, 1e-8, 0},
                {"optimizer.kind=adamw", 1e-3, 1e-8, 0.01},
                {"optimizer.kind=adagrad", 1e-2, 1e-10, 0},
                {"optimizer.kind=lamb", 1e-3, 1e-6, 0.01}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *sets[] = {rows[i].set, NULL};
        char origin[64];
        struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
        assert_true(job->optimizer.lr == rows[i].lr && job->optimizer.eps == rows[i].eps);
        assert_true(job->optimizer.weight_decay == rows[i].weight_decay);
        job_origin(job, "optimizer.eps", origin, sizeof origin);
        assert_string_equal(origin, "default");
        job_destroy(job);
    }
    config_test_refused(CONFIG_TEST_JOB, "optimizer.kind=sgd", "job.yaml: missing: optimizer.lr");
    config_test_refused(CONFIG_TEST_JOB, "optimizer.kind=ftrl", "job.yaml: missing: optimizer.lr");
    config_test_refused(CONFIG_TEST_JOB, "optimizer.kind=plugin",
                        "job.yaml: missing: optimizer.lr, optimizer.plugin");
}

static void later_sources_win(void **state)
{
    (void)state;
    char *const environment[] = {"SHOAL_SEED=2",
                                 "SHOAL_BATCH_SIZE=64",
                                 "SHOAL_MODEL_HIDDEN=32,16",
                                 "PATH=/bin",
                                 "SHOAL_CLUSTER_WORKERS=2",
                                 "SHOAL_CLUSTER=tcp://a:1",
                                 "SHOAL_LOG=x",
                                 "SHOAL_CLUSTER_TIMEOUTS_START=9",
                                 NULL};
    const char *sets[] = {"batch_size=256", "optimizer.freeze=[a.*, \"b,c\"]"};
    const struct job_override overrides[] = {{"cluster.workers", "8", "--workers"}};
    struct job_source source = {.text = CONFIG_TEST_JOB,
                                .text_name = "job.yaml",
                                .environment = environment,
                                .sets = sets,
                                .sets_count = 1,
                                .overrides = overrides,
                                .overrides_count = 1};
    struct job *job = NULL;
    struct errbuf err;
    char origin[64];
    assert_int_equal(job_load(&job, &source, &err), 0);
    assert_true(job->seed == 2 && job->batch_size == 256 && job->cluster.workers == 8);
    assert_true(job->model.hidden_count == 2 && job->model.hidden[1] == 16 && job->cluster.timeouts.start == 9);
    job_origin(job, "seed", origin, sizeof origin);
    assert_string_equal(origin, "environment SHOAL_SEED");
    job_origin(job, "batch_size", origin, sizeof origin);
    assert_string_equal(origin, "--set");
    job_origin(job, "cluster.workers", origin, sizeof origin);
    assert_string_equal(origin, "--workers");
    job_origin(job, "epochs", origin, sizeof origin);
    assert_string_equal(origin, "job.yaml:1");
    job_destroy(job);
}

static void steps_by_set_replace_the_files_epochs(void **state)
{
    (void)state;
    const char *sets[] = {"steps=20", NULL};
    struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
    assert_true(job->steps == 20 && job->epochs == 0);
    job_destroy(job);
    config_test_refused(CONFIG_TEST_JOB "steps: 3\n", NULL,
                        "job.yaml:6: steps: found 3 beside epochs 5, expected only one of the two");
}

static void environment_errors_name_the_variable(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"SHOAL_OPTIMIZER_LR=abc",
         "environment SHOAL_OPTIMIZER_LR: optimizer.lr: found \"abc\", expected a number > 0"},
        {"SHOAL_BATCH_SIZE=",
         "environment SHOAL_BATCH_SIZE: batch_size: found nothing, expected an integer from 1 to 1000000000"},
        {"SHOAL_OPTIMIZER_LEARNING_RATE=1", "environment SHOAL_OPTIMIZER_LEARNING_RATE: optimizer.learning_rate: "
                                            "unknown key; did you mean optimizer.lr?"},
        {"SHOAL_LEARNING_RATE=1",
         "environment SHOAL_LEARNING_RATE: learning_rate: unknown key; did you mean optimizer.lr?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char variable[128];
        char *const environment[] = {variable, NULL};
        struct job_source source = {.text = CONFIG_TEST_JOB, .environment = environment};
        struct job *job = NULL;
        struct errbuf err;
        snprintf(variable, sizeof variable, "%s", cases[i][0]);
        assert_int_not_equal(job_load(&job, &source, &err), 0);
        assert_string_equal(err.text, cases[i][1]);
    }
}

static void bad_set_is_refused(void **state)
{
    (void)state;
    config_test_refused(CONFIG_TEST_JOB, "seed", "--set: found \"seed\", expected key=value");
    config_test_refused(CONFIG_TEST_JOB, "=1", "--set: found \"=1\", expected key=value");
    config_test_refused(CONFIG_TEST_JOB, "snapshot=1",
                        "--set: snapshot: found a value, expected a mapping: snapshot has dir, every, keep, best");
    config_test_refused(CONFIG_TEST_JOB, "parallel.data=ring",
                        "--set: parallel.data: found \"ring\", expected one of ps, ddp, zero1, zero2, zero3");
    config_test_refused(CONFIG_TEST_JOB, "parallel.update=later",
                        "--set: parallel.update: found \"later\", expected one of step, eager");
}

static void yaml_that_a_job_does_not_use_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"seed: &a 1\n", "job.yaml:1: anchors and tags are not used in a job file (put such text in quotes)"},
        {"name: *a\n", "job.yaml:1: aliases are not used in a job file (put text that begins with * in quotes)"},
        {"optimizer: {no_decay: [*.bias]}\n", "job.yaml:1: not YAML: did not find expected alphabetic or numeric "
                                              "character (put text that begins with * or & "
                                              "in quotes)"},
        {"seed: [\n", "job.yaml:2: not YAML: did not find expected node content"},
        {"seed: !!int 1\n", "job.yaml:1: anchors and tags are not used in a job file (put such text in quotes)"},
        {"data: &a {kind: csv}\n", "job.yaml:1: anchors and tags are not used in a job file"},
        {"model: {hidden: &a [1]}\n", "job.yaml:1: anchors and tags are not used in a job file"},
        {"%TAG ! tag:x,2000:\n---\nseed: 1\n", "job.yaml:1: tags are not used in a job file"},
        {"seed: 1\n---\nseed: 1\n", "job.yaml:2: a job file is one YAML document; another begins here"},
        {"- 1\n", "job.yaml:1: a list cannot stand here"},
        {"hello\n", "job.yaml:1: expected keys and values (\"seed: 1\")"},
        {"{a: b}: 1\n", "job.yaml:1: a mapping cannot stand here"},
        {"[a]: 1\n", "job.yaml:1: a list cannot stand here"},
        {"model:\n  hidden: [[1]]\n", "job.yaml:2: a list cannot stand here"},
        {"model:\n  hidden: [{a: 1}]\n", "job.yaml:2: a mapping cannot stand here"},
        {"model:\n  hidden: 5\n",
         "job.yaml:2: model.hidden: found \"5\", expected a list of integers from 1 to 16777216"},
        {"seed: [1]\n", "job.yaml:1: seed: found \"[...]\", expected an integer from 0 to 18446744073709551615"},
        {"name: \"a\\0b\"\n", "job.yaml:1: a value holds a NUL"},
        {"\"\": 1\n", "job.yaml:1: a key must be a plain word"},
        {"name: \"a\\nb\"\n",
         "job.yaml:1: name: found control characters or invalid UTF-8, expected text in one line"},
        {"# nothing\n", "job.yaml: is empty, expected a job"},
        {"", "job.yaml: is empty, expected a job"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config_test_refused(cases[i][0], NULL, cases[i][1]);
    }
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    struct job *job;
    struct errbuf err;
    char text[4096] = "";
    for (int i = 0; i < 1000; i++) {
        strcat(text, "{a: ");
    }
    assert_int_not_equal(config_test_load(&job, text, NULL, &err), 0);
    memset(text, '[', 4000);
    text[4000] = '\0';
    assert_int_not_equal(config_test_load(&job, text, NULL, &err), 0);
}

static void messages_keep_to_one_line(void **state)
{
    (void)state;
    struct job *job;
    struct errbuf err;
    assert_int_equal(config_test_load(&job, "seed: \"a\\n\\x1b[31mb\"\n", NULL, &err), STATUS_INVALID);
    for (const char *c = err.text; *c; c++) {
        assert_true((unsigned char)*c >= 0x20);
    }
}

static void destroy_takes_null(void **state)
{
    (void)state;
    job_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_fills_the_job),
        cmocka_unit_test(synthetic_keys_stand_in_data),
        cmocka_unit_test(defaults_follow_the_optimizer),
        cmocka_unit_test(later_sources_win),
        cmocka_unit_test(steps_by_set_replace_the_files_epochs),
        cmocka_unit_test(environment_errors_name_the_variable),
        cmocka_unit_test(bad_set_is_refused),
        cmocka_unit_test(yaml_that_a_job_does_not_use_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(messages_keep_to_one_line),
        cmocka_unit_test(destroy_takes_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
