/* Optimizer plug-ins: the example is loaded and used; files that cannot be are refused with the reason. */
#include "base/errbuf.h"
#include "base/status.h"
#include "config/job.h"
#include "optim/optimizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static int load(const char *path, const struct optimizer_ops **ops, void **handle, struct errbuf *err)
{
    struct job job = {0};
    struct optimizer_params params;
    char copy[1024];

    strncpy(copy, path, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    job.optimizer.kind = JOB_OPTIMIZER_PLUGIN;
    job.optimizer.plugin = copy;
    errbuf_init(err);
    return optimizer_of_job(&job, ops, &params, handle, err);
}

static void the_example_is_loaded_and_updates(void **state)
{
    (void)state;
    const struct optimizer_ops *ops;
    void *handle;
    struct errbuf err;
    struct optimizer_params params = {.momentum = 0.5};
    struct optimizer_step step = {.lr = 0.25, .t = 1, .grad_scale = 1};
    float w[3] = {1, 1, 1}, grad[3] = {3, -0.5f, 0}, buffer[3] = {0};
    float *slots[1] = {buffer};

    assert_int_equal(load(PLUGIN_SIGNSGD, &ops, &handle, &err), STATUS_OK);
    assert_string_equal(ops->name, "signsgd");
    assert_int_equal(ops->slots(&params), 1);
    ops->update(&params, &step, 1, w, grad, slots, 3);
    assert_true(w[0] == 0.75f && w[1] == 1.25f && w[2] == 1.0f);
    assert_true(buffer[0] == 1.5f && buffer[1] == -0.25f && buffer[2] == 0.0f);
    optimizer_unload(handle);
}

static void refused(const char *path, int want_status, const char *want_text)
{
    const struct optimizer_ops *ops;
    void *handle;
    struct errbuf err;

    assert_int_equal(load(path, &ops, &handle, &err), want_status);
    assert_null(ops);
    assert_null(handle);
    if (!strstr(err.text, want_text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, want_text);
    if (path[0] && !strstr(err.text, path))
        fail_msg("\"%s\" does not name %s", err.text, path);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    refused("/nowhere/rule.so", STATUS_IO, "No such file");
    refused("rule_without_a_folder.so", STATUS_IO, "No such file");
    refused("", STATUS_INVALID, "no file is given");
}

static void a_file_that_is_no_shared_object_is_refused(void **state)
{
    (void)state;
    refused(SHOAL_SOURCE_DIR "/CMakeLists.txt", STATUS_IO, "cannot be loaded");
}

static void an_object_without_the_symbol_is_refused(void **state)
{
    (void)state;
    refused(PLUGIN_CLIPPED_MEAN, STATUS_PROTOCOL, "does not export `shoal_optimizer`");
}

static void another_version_is_refused_with_both_versions(void **state)
{
    (void)state;
    refused(PLUGIN_OTHER_VERSION, STATUS_PROTOCOL, "has version 7, this program needs version 1");
}

static void an_incomplete_or_greedy_rule_is_refused(void **state)
{
    (void)state;
    refused(PLUGIN_HUNGRY, STATUS_PROTOCOL, "asks for 5 slots, allowed are 0 to 4");
    refused(PLUGIN_EMPTY, STATUS_PROTOCOL, "needs name, slots and update");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_is_loaded_and_updates),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_file_that_is_no_shared_object_is_refused),
        cmocka_unit_test(an_object_without_the_symbol_is_refused),
        cmocka_unit_test(another_version_is_refused_with_both_versions),
        cmocka_unit_test(an_incomplete_or_greedy_rule_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
