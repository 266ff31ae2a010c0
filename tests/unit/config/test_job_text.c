#include "config_test.h"

#include "config/option_table.h"
#include "config/option_value.h"

static void assert_same_values(const struct job *a, const struct job *b)
{
    for (int i = 0; i < option_count(); i++) {
        char left[512], right[512];
        option_write_text(a, option_at(i), left, sizeof left);
        option_write_text(b, option_at(i), right, sizeof right);
        assert_string_equal(left, right);
    }
}

static void yaml_reads_back_to_the_same_job(void **state)
{
    (void)state;
    const char *sets[] = {"name=a \"b\" \\ # c: [d] é 😀 \xc2\xa0",
                          "optimizer.lr=0.1234567890123456789",
                          "optimizer.no_decay=[\"*.bias\", &x, !y, - z, null, true, 12]",
                          "seed=18446744073709551615",
                          "data.label_column=-3",
                          "optimizer.momentum=0.25",
                          "optimizer.eps=4.9406564584124654e-324",
                          "data.class_names=a,b",
                          "snapshot.dir=/x y",
                          "snapshot.best.metric=loss",
                          "cluster.timeouts.start=0.5",
                          "optimizer.kind=adamw",
                          NULL};
    struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
    char *yaml = job_to_yaml(job);
    assert_non_null(yaml);
    struct job *back = config_test_good(yaml, NULL);
    assert_same_values(job, back);
    assert_true(job->optimizer.lr == back->optimizer.lr && back->optimizer.lr == 0.1234567890123456789);
    assert_string_equal(job->name, back->name);
    assert_true(job_hash(job) == job_hash(back));
    char *again = job_to_yaml(back);
    assert_string_equal(yaml, again);
    free(again);
    free(yaml);
    job_destroy(back);
    job_destroy(job);
}

static void a_job_of_defaults_reads_back_too(void **state)
{
    (void)state;
    struct job_source source = {.text = "name: x\n", .need = JOB_NEED_NOTHING};
    struct job *job = NULL, *back = NULL;
    struct errbuf err;
    assert_int_equal(job_load(&job, &source, &err), 0);
    char *yaml = job_to_yaml(job);
    source.text = yaml;
    assert_int_equal(job_load(&back, &source, &err), 0);
    assert_same_values(job, back);
    assert_int_equal(job_warnings(back)->count, 0);
    free(yaml);
    job_destroy(back);
    job_destroy(job);
}

static void print_config_shows_values_with_origins(void **state)
{
    (void)state;
    static const char *const lines[] = {"epochs: 5  # job.yaml:1\n",
                                        "steps:  # not given\n",
                                        "seed: 3  # --set\n",
                                        "model.hidden: [512, 256]  # job.yaml:4\n",
                                        "optimizer.lr: 0.001  # default\n",
                                        "data.train.images: \"A\"  # job.yaml:3\n"};
    const char *sets[] = {"seed=3", NULL};
    struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
    char *text = job_print_config(job);
    int count = 0;
    for (const char *c = text; *c; c++) {
        count += *c == '\n';
    }
    assert_int_equal(count, option_count());
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_non_null(strstr(text, lines[i]));
    }
    free(text);
    job_destroy(job);
}

static void a_resume_may_change_only_what_the_order_of_training_allows(void **state)
{
    (void)state;
    static const struct {
        const char *set, *message; /* NULL: allowed */
    } rows[] = {
        {"epochs=9", NULL},
        {"parallel.bucket_bytes=65536", NULL},
        {"cluster.workers=3", NULL},
        {"snapshot.dir=x", NULL},
        {"evaluate.every=5", NULL},
        {"optimizer.lr=0.5", NULL},
        {"seed=2", "seed: found 2, expected 1 as in the snapshot; a resume may not change it"},
        {"batch_size=64", "batch_size: found 64, expected 128 as in the snapshot; a resume may not change it"},
        {"optimizer.kind=adamw",
         "optimizer.kind: found adamw, expected adam as in the snapshot; a resume may not change it"},
        {"model.hidden=512",
         "model.hidden: found [512], expected [512, 256] as in the snapshot; a resume may not change it"},
        {"data.train.images=Z",
         "data.train.images: found \"Z\", expected \"A\" as in the snapshot; a resume may not change it"},
    };
    struct job *saved = config_test_good(CONFIG_TEST_JOB, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *sets[] = {rows[i].set, NULL};
        struct job *now = config_test_good(CONFIG_TEST_JOB, sets);
        struct errbuf err;
        errbuf_init(&err);
        int status = job_check_resume(saved, now, &err);
        assert_int_equal(status, rows[i].message ? STATUS_INVALID : 0);
        assert_string_equal(err.text, rows[i].message ? rows[i].message : "");
        assert_int_equal(job_hash(saved) == job_hash(now), rows[i].message == NULL);
        job_destroy(now);
    }
    job_destroy(saved);
}

static void the_share_of_a_batch_is_spelled_out(void **state)
{
    (void)state;
    static const struct {
        int64_t batch, workers, accumulate;
        const char *text;
    } rows[] = {{128, 4, 1, "128 = 4 workers x 32"},
                {128, 4, 2, "128 = 4 workers x 2 accumulate x 16"},
                {130, 4, 1, "130 = 2 workers x 33 + 2 workers x 32"},
                {7, 1, 2, "7 = 1 worker x 7"},
                {5, 4, 1, "5 = 1 worker x 2 + 3 workers x 1"},
                {7, 4, 1, "7 = 3 workers x 2 + 1 worker x 1"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct job job = {.batch_size = rows[i].batch, .accumulate = rows[i].accumulate};
        char text[128];
        job.cluster.workers = rows[i].workers;
        job_batch_text(&job, job.cluster.workers, text, sizeof text);
        assert_string_equal(text, rows[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_reads_back_to_the_same_job),
        cmocka_unit_test(a_job_of_defaults_reads_back_too),
        cmocka_unit_test(print_config_shows_values_with_origins),
        cmocka_unit_test(a_resume_may_change_only_what_the_order_of_training_allows),
        cmocka_unit_test(the_share_of_a_batch_is_spelled_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
