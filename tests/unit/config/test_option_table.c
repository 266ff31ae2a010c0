#include "config/option_table.h"

#include <math.h>

#include "config/option_suggest.h"
#include "config/option_value.h"
#include "config_test.h"

/* What a job has that says nothing at all; by hand, so that a changed default is noticed. */
static const char *const defaults[][2] = {
    {"name", "\"job\""},
    {"seed", "1"},
    {"epochs", NULL},
    {"steps", NULL},
    {"batch_size", NULL},
    {"accumulate", "1"},
    {"log_every", "10"},
    {"data.kind", NULL},
    {"data.train.file", "\"\""},
    {"data.train.images", "\"\""},
    {"data.train.features", "\"\""},
    {"data.train.labels", "\"\""},
    {"data.test.file", "\"\""},
    {"data.test.images", "\"\""},
    {"data.test.features", "\"\""},
    {"data.test.labels", "\"\""},
    {"data.validation.file", "\"\""},
    {"data.validation.images", "\"\""},
    {"data.validation.features", "\"\""},
    {"data.validation.labels", "\"\""},
    {"data.validation.fraction", "0"},
    {"data.order", "shuffled"},
    {"data.last_batch", "short"},
    {"data.label_column", "-1"},
    {"data.header_lines", "0"},
    {"data.index_base", "1"},
    {"data.features_max", "auto"},
    {"data.scale.divide", "auto"},
    {"data.scale.standardize", "false"},
    {"data.classes", "auto"},
    {"data.class_names", "[]"},
    {"data.missing", "error"},
    {"data.samples", NULL},
    {"data.features", NULL},
    {"data.seed", "1"},
    {"model.kind", NULL},
    {"model.hidden", "[]"},
    {"model.activation", "relu"},
    {"model.batch_norm", "false"},
    {"model.dropout", "0"},
    {"model.loss", "softmax_cross_entropy"},
    {"model.init", "default"},
    {"model.outputs", "auto"},
    {"optimizer.kind", NULL},
    {"optimizer.lr", NULL},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.999"},
    {"optimizer.eps", "1e-08"},
    {"optimizer.weight_decay", "0"},
    {"optimizer.momentum", "0"},
    {"optimizer.nesterov", "false"},
    {"optimizer.l1", "0"},
    {"optimizer.l2", "0"},
    {"optimizer.beta", "1"},
    {"optimizer.clip_norm", "0"},
    {"optimizer.nonfinite", "skip"},
    {"optimizer.no_decay", "[]"},
    {"optimizer.freeze", "[]"},
    {"optimizer.plugin", "\"\""},
    {"lr_schedule.kind", "constant"},
    {"lr_schedule.warmup_steps", "0"},
    {"lr_schedule.total_steps", "auto"},
    {"lr_schedule.min_lr", "0"},
    {"parallel.data", "ps"},
    {"parallel.consistency", "bsp"},
    {"parallel.aggregate", "mean"},
    {"parallel.aggregate_plugin", "\"\""},
    {"parallel.trim_fraction", "0.1"},
    {"parallel.update_at", "server"},
    {"parallel.update", "step"},
    {"parallel.bucket_bytes", "4194304"},
    {"parallel.message_bytes", "1048576"},
    {"parallel.credit_bytes", "16777216"},
    {"parallel.batch_norm_stats", "local"},
    {"parallel.threads", "0"},
    {"parallel.digest_every", "100"},
    {"parallel.transport", "auto"},
    {"parallel.placement", "part"},
    {"parallel.prefetch_layers", "1"},
    {"parallel.persistence_threshold", "0"},
    {"parallel.keep_last_layer", "false"},
    {"snapshot.dir", "\"\""},
    {"snapshot.every", "0"},
    {"snapshot.keep", "2"},
    {"snapshot.best.metric", "\"\""},
    {"snapshot.best.mode", "max"},
    {"cluster.workers", "1"},
    {"cluster.servers", "1"},
    {"cluster.elastic.min", "0"},
    {"cluster.mixed_processors", "false"},
    {"cluster.stop_timeout", "4"},
    {"cluster.timeouts.start", "120"},
    {"cluster.timeouts.stall_report", "10"},
    {"cluster.timeouts.worker_dead", "60"},
    {"cluster.timeouts.server_dead", "60"},
    {"cluster.timeouts.coordinator_dead", "60"},
    {"evaluate.every", "0"},
    {"evaluate.early_stop.metric", "\"\""},
    {"evaluate.early_stop.patience", "5"},
    {"evaluate.early_stop.min_delta", "0"},
};
enum { DEFAULTS = sizeof defaults / sizeof defaults[0] };

static struct job *empty_job(void)
{
    struct job_source source = {.need = JOB_NEED_NOTHING};
    struct job *job = NULL;
    struct errbuf err;
    assert_int_equal(job_load(&job, &source, &err), 0);
    return job;
}

static void every_option_has_its_default(void **state)
{
    (void)state;
    struct job *job = empty_job();
    assert_int_equal(option_count(), DEFAULTS);
    for (int i = 0; i < DEFAULTS; i++) {
        const struct option *option = option_find(defaults[i][0]);
        char text[128], origin[64];
        assert_non_null(option);
        job_origin(job, defaults[i][0], origin, sizeof origin);
        if (!defaults[i][1]) {
            assert_string_equal(origin, "not given");
            continue;
        }
        option_write_text(job, option, text, sizeof text);
        assert_string_equal(origin, "default");
        if (strcmp(text, defaults[i][1]) != 0) {
            fail_msg("%s: default %s, expected %s", defaults[i][0], text, defaults[i][1]);
        }
    }
    job_destroy(job);
}

/* job_load with --set path=value ends in "--set: path: found …, expected …". */
static void assert_refused(const struct option *option, const char *value)
{
    char path[OPTION_PATH_MAX], set[512], start[128], expected[320];
    const char *sets[] = {set};
    struct job_source source = {.sets = sets, .sets_count = 1, .need = JOB_NEED_NOTHING};
    struct job *job = NULL;
    struct errbuf err;
    errbuf_init(&err);
    option_path(option, path);
    option_expected(option, expected, sizeof expected);
    snprintf(set, sizeof set, "%s=%s", path, value);
    snprintf(start, sizeof start, "--set: %s: found ", path);
    int status = job_load(&job, &source, &err);
    if (status == 0) {
        fail_msg("%s was taken", set);
    }
    if (strncmp(err.text, start, strlen(start)) != 0 || !strstr(err.text, ", expected ")) {
        fail_msg("%s: %s", set, err.text);
    }
    if (option->type != OPTION_STRING && option->type != OPTION_PATH && option->type != OPTION_STRINGS) {
        assert_non_null(strstr(err.text, expected));
    }
}

static void assert_taken(const struct option *option, const char *value)
{
    struct job *job = empty_job();
    char why[512] = "";
    if (option_set_line(job, option, value, why, sizeof why) != 0) {
        fail_msg("%s.%s=%s: %s", option->section, option->name, value, why);
    }
    job_destroy(job);
}

static void wrong_type_is_refused_for_every_option(void **state)
{
    (void)state;
    static const char *const not_integers[] = {
        "abc", "1.5", "0x10", "1e3", " 1", "1 ", "", "-", "+1", "nan", "99999999999999999999999999", "true", NULL};
    static const char *const not_numbers[] = {"abc", "nan", "inf", "0x1p3", "1e999", "",
                                              "1,5", ".",   "1 2", "--1",   NULL};
    static const char *const not_words[] = {"nonsense", "", "True", "1", "yes", NULL};
    static const char *const not_ints[] = {"a", "1,,2", "[1, 2", "1.5", "[[1]]", NULL};
    static const char *const not_text[] = {"a\x01"
                                           "b",
                                           "a\nb",
                                           "\xff",
                                           "\xc0\xaf",
                                           "\xed\xa0\x80",
                                           NULL};
    static const char *const *const wrong[OPTION_TYPES] = {
        not_text, not_text, not_integers, not_integers, not_numbers, not_words, not_words, not_ints, not_text};
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        for (const char *const *value = wrong[option->type]; *value; value++) {
            assert_refused(option, *value);
        }
    }
}

static void text_of_limit(const struct option *option, double value, char *out, size_t out_bytes)
{
    int is_list = option->type == OPTION_INTS;
    snprintf(out, out_bytes, is_list || option->type == OPTION_INT ? "%.0f" : "%.17g", value);
}

static void limits_are_taken_and_what_lies_beyond_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        int is_float = option->type == OPTION_FLOAT,
            is_int = option->type == OPTION_INT || option->type == OPTION_INTS;
        char text[64];
        if (!is_float && !is_int) {
            continue;
        }
        int low_open = (option->flags & OPTION_LOW_OPEN) != 0, high_open = (option->flags & OPTION_HIGH_OPEN) != 0;
        double step = option->multiple > 0 ? option->multiple : 1;
        double below = low_open ? option->low : is_float ? nextafter(option->low, -INFINITY) : option->low - step;
        double lowest = low_open ? nextafter(option->low, INFINITY) : option->low;
        text_of_limit(option, below, text, sizeof text);
        assert_refused(option, text);
        text_of_limit(option, lowest, text, sizeof text);
        assert_taken(option, text);
        if (isinf(option->high)) {
            assert_refused(option, "1e309");
            continue;
        }
        /* past 2^53 the next double is 2 away */
        double above = high_open  ? option->high
                       : is_float ? nextafter(option->high, INFINITY)
                                  : option->high + 2 * step;
        double highest = high_open ? nextafter(option->high, 0) : option->high;
        text_of_limit(option, above, text, sizeof text);
        assert_refused(option, text);
        text_of_limit(option, highest, text, sizeof text);
        assert_taken(option, text);
    }
}

static void unsigned_numbers_reach_both_ends(void **state)
{
    (void)state;
    const char *sets[] = {"seed=18446744073709551615", NULL};
    struct job *job = config_test_good(CONFIG_TEST_JOB, sets);
    assert_true(job->seed == UINT64_MAX);
    job_destroy(job);
    assert_refused(option_find("seed"), "18446744073709551616");
    assert_refused(option_find("seed"), "-1");
    assert_refused(option_find("data.seed"), "18446744073709551616");
    assert_refused(option_find("data.seed"), "-1");
}

static void sizes_must_be_multiples(void **state)
{
    (void)state;
    config_test_refused(CONFIG_TEST_JOB, "parallel.message_bytes=100000",
                        "--set: parallel.message_bytes: found \"100000\", expected an integer from 65536 to "
                        "67108864, a multiple of 65536");
}

static void every_choice_is_taken(void **state)
{
    (void)state;
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        for (int c = 0; option->choices && option->choices[c]; c++) {
            struct job *job = empty_job();
            char why[512], text[64], expected[64];
            assert_int_equal(option_set_line(job, option, option->choices[c], why, sizeof why), 0);
            option_write_text(job, option, text, sizeof text);
            int quoted = option->type == OPTION_STRING;
            snprintf(expected, sizeof expected, "%s%s%s", quoted ? "\"" : "", option->choices[c],
                     quoted ? "\"" : "");
            assert_string_equal(text, expected);
            job_destroy(job);
        }
    }
}

static void a_mapping_is_refused_for_every_option(void **state)
{
    (void)state;
    for (int i = 0; i < option_count(); i++) {
        char path[OPTION_PATH_MAX], text[256] = "", start[160];
        int depth = 0;
        option_path(option_at(i), path);
        snprintf(start, sizeof start, "job.yaml:1: %s: found a mapping, expected ", path);
        for (char *part = strtok(path, "."); part; part = strtok(NULL, "."), depth++) {
            strcat(strcat(text, depth ? "{" : ""), part);
            strcat(text, ": ");
        }
        strcat(text, "{x: 1}");
        for (int d = 1; d < depth; d++) {
            strcat(text, "}");
        }
        struct job *job;
        struct errbuf err;
        assert_int_equal(config_test_load(&job, text, NULL, &err), STATUS_INVALID);
        assert_int_equal(strncmp(err.text, start, strlen(start)), 0);
    }
}

static void rows_are_well_formed(void **state)
{
    (void)state;
    for (int i = 0; i < option_count(); i++) {
        const struct option *option = option_at(i);
        char path[OPTION_PATH_MAX], condition[128];
        int known_section = 0;
        for (int s = 0; option_section(s); s++) {
            known_section |= strcmp(option_section(s), option->section) == 0;
        }
        option_path(option, path);
        assert_true(known_section);
        assert_ptr_equal(option_find(path), option);
        assert_true(option->help && option->help[0] && !strchr(option->help, '|'));
        if (option->only) {
            snprintf(condition, sizeof condition, "%s", option->only);
            const struct option *other = option_find(strtok(condition, "=|"));
            assert_non_null(other);
            for (const char *word = strtok(NULL, "=|"); word; word = strtok(NULL, "=|")) {
                assert_taken(other, word);
            }
        }
    }
}

static void unknown_keys_are_answered_with_the_nearest(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"optimizer.learning_rat", "did you mean optimizer.lr?"},
        {"learning_rate", "did you mean optimizer.lr?"},
        {"optimiser", "did you mean optimizer?"},
        {"batchsize", "did you mean batch_size?"},
        {"batch-size", "did you mean batch_size?"},
        {"batch", "did you mean batch_size?"},
        {"optimizer.momentum_factor", "did you mean optimizer.momentum?"},
        {"n_workers", "did you mean cluster.workers?"},
        {"parallel.workers", "did you mean cluster.workers?"},
        {"cluster.seed", "did you mean seed?"},
        {"data.sed", "did you mean data.seed?"},
        {"snapshot.evry", "did you mean snapshot.every?"},
        {"evaluate.evry", "did you mean evaluate.every?"},
        {"snapshot.best.metrics", "did you mean snapshot.best.metric?"},
        {"snapshot.zzzzzz", "snapshot has dir, every, keep, best"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char hint[512];
        option_suggest(pairs[i][0], hint, sizeof hint);
        if (strcmp(hint, pairs[i][1]) != 0) {
            fail_msg("%s: %s, expected %s", pairs[i][0], hint, pairs[i][1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_has_its_default),
        cmocka_unit_test(wrong_type_is_refused_for_every_option),
        cmocka_unit_test(limits_are_taken_and_what_lies_beyond_is_refused),
        cmocka_unit_test(unsigned_numbers_reach_both_ends),
        cmocka_unit_test(sizes_must_be_multiples),
        cmocka_unit_test(every_choice_is_taken),
        cmocka_unit_test(a_mapping_is_refused_for_every_option),
        cmocka_unit_test(rows_are_well_formed),
        cmocka_unit_test(unknown_keys_are_answered_with_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
