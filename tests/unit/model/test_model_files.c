#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "base/sha256.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "tests/unit/model/fixture.h"

struct place {
    char folder[64], path[96], other[96];
};

static int set_up(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    snprintf(place->folder, sizeof place->folder, "/tmp/shoal_model_XXXXXX");
    if (!mkdtemp(place->folder))
        return -1;
    snprintf(place->path, sizeof place->path, "%s/a.safetensors", place->folder);
    snprintf(place->other, sizeof place->other, "%s/b.safetensors", place->folder);
    *state = place;
    return 0;
}

static int tear_down(void **state)
{
    struct place *place = *state;
    unlink(place->path);
    unlink(place->other);
    int failed = rmdir(place->folder); /* also when something was left in it */
    free(place);
    return failed;
}

/* A trained-looking mlp with norms: running statistics moved, three batches tracked. */
static void open_mlp(struct fixture *fixture)
{
    fixture_job(fixture);
    fixture->job.model.batch_norm = 1;
    fixture->job.model.dropout = 0.1;
    fixture_open(fixture, NULL);
    struct model_buffers *buffers = model_buffers(fixture->model);
    for (int64_t i = 0; i < buffers->count; i++)
        buffers->values[i] += 0.25f * (float)(i % 5);
    buffers->num_batches_tracked = 3;
}

/* Layers out of the fixture's w, each in memory of its own that is gone when it is done with. */
struct source {
    const struct fixture *fixture;
    float *held;
    int asked, fails_at; /* fails_at: layer, or -1 */
};

static int source_layer(void *context, int layer, const float **w, struct errbuf *err)
{
    struct source *source = context;
    const struct param_layer *at = &model_params(source->fixture->model)->layers[layer];
    assert_null(source->held);
    assert_int_equal(layer, source->asked);
    if (layer == source->fails_at)
        return errbuf_set(err, STATUS_TIMEOUT, "rank 2 is late");
    source->asked++;
    source->held = malloc((size_t)at->count * sizeof(float));
    assert_non_null(source->held);
    memcpy(source->held, source->fixture->w + at->offset, (size_t)at->count * sizeof(float));
    *w = source->held;
    return STATUS_OK;
}

static void source_done(void *context, int layer)
{
    struct source *source = context;
    assert_int_equal(layer, source->asked - 1);
    free(source->held);
    source->held = NULL;
}

static void export_ok(const struct fixture *fixture, const char *path, char sha[65])
{
    struct source source = {.fixture = fixture, .fails_at = -1};
    const struct model_values values = {source_layer, source_done, &source};
    struct errbuf err;
    errbuf_init(&err);
    if (model_export(fixture->model, &fixture->job, &values, "{\"features\":5}", path, sha, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(source.asked, model_layers(fixture->model));
    assert_null(source.held);
}

static void what_was_exported_comes_back(void **state)
{
    struct place *place = *state;
    struct fixture fixture, fresh;
    char sha[65], again[65];
    open_mlp(&fixture);
    export_ok(&fixture, place->path, sha);
    fixture_job(&fresh);
    fresh.job.model.batch_norm = 1;
    fresh.job.model.dropout = 0.1;
    fresh.job.seed = 99;
    fixture_open(&fresh, NULL);
    assert_int_equal(model_import(fresh.model, place->path, fresh.w, NULL), STATUS_OK);
    assert_memory_equal(fresh.w, fixture.w, (size_t)model_params(fixture.model)->count * sizeof(float));
    assert_memory_equal(model_buffers(fresh.model)->values, model_buffers(fixture.model)->values,
                        (size_t)model_buffers(fixture.model)->count * sizeof(float));
    assert_int_equal(model_buffers(fresh.model)->num_batches_tracked, 3);
    fresh.job.parallel.batch_norm_stats = JOB_BN_GLOBAL; /* how it was trained is not in the file */
    fresh.job.cluster.workers = 4;
    export_ok(&fresh, place->other, again);
    assert_string_equal(sha, again);
    fixture_close(&fixture);
    fixture_close(&fresh);
}

static void the_file_alone_makes_the_model(void **state)
{
    struct place *place = *state;
    struct fixture fixture;
    struct model *model;
    open_mlp(&fixture);
    export_ok(&fixture, place->path, NULL);
    struct model_batch batch = fixture_batch(&fixture, 0, FIXTURE_ROWS);
    batch.training = 0;
    double loss = fixture_loss(&fixture, &batch, NULL);
    assert_int_equal(model_create_from_file(&model, place->path, FIXTURE_ROWS, NULL, &fixture.account, NULL),
                     STATUS_OK);
    assert_true(param_table_fingerprint(model_params(model)) ==
                param_table_fingerprint(model_params(fixture.model)));
    assert_int_equal(model_import(model, place->path, fixture.grad, NULL), STATUS_OK);
    struct model *first = fixture.model;
    float *w = fixture.w;
    fixture.model = model;
    fixture.w = fixture.grad;
    assert_true(fixture_loss(&fixture, &batch, NULL) == loss);
    fixture.model = first;
    fixture.w = w;
    model_destroy(model);
    fixture_close(&fixture);
}

static void names_and_metadata_are_as_documented(void **state)
{
    struct place *place = *state;
    struct fixture fixture;
    struct safetensors *file;
    open_mlp(&fixture);
    export_ok(&fixture, place->path, NULL);
    assert_int_equal(safetensors_open(&file, place->path, NULL), STATUS_OK);
    assert_int_equal(safetensors_count(file), 10 + 6);
    assert_string_equal(safetensors_at(file, 4)->name, "layers.0.norm.running_mean");
    const struct safetensors_tensor *tracked = safetensors_find(file, "layers.1.norm.num_batches_tracked");
    assert_non_null(tracked);
    assert_int_equal(tracked->dims, 0);
    assert_int_equal(tracked->dtype, SAFETENSORS_I64);
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_string_equal(safetensors_metadata(file, "transform"), "{\"features\":5}");
    assert_string_equal(safetensors_metadata(file, "model"),
                        "{\"activation\":\"tanh\",\"batch_norm\":true,\"dropout\":0.1,\"features\":5,"
                        "\"hidden\":[7,6],\"kind\":\"mlp\",\"loss\":\"softmax_cross_entropy\",\"outputs\":3}");
    safetensors_close(file);
    fixture_close(&fixture);
}

static void the_hash_needs_no_file(void **state)
{
    struct place *place = *state;
    struct fixture fixture;
    char of_file[65], alone[65], computed[65];
    open_mlp(&fixture);
    export_ok(&fixture, place->path, of_file);
    export_ok(&fixture, NULL, alone);
    assert_int_equal(sha256_of_file(place->path, computed), STATUS_OK);
    assert_string_equal(of_file, computed);
    assert_string_equal(of_file, alone);
    fixture_close(&fixture);
}

static void a_source_that_fails_leaves_the_file_that_was_there(void **state)
{
    struct place *place = *state;
    struct fixture fixture;
    struct errbuf err;
    char before[65], after[65];
    open_mlp(&fixture);
    export_ok(&fixture, place->path, before);
    fixture.w[0] += 1;
    for (int layer = 0; layer < model_layers(fixture.model); layer++) {
        struct source source = {.fixture = &fixture, .fails_at = layer};
        const struct model_values values = {source_layer, source_done, &source};
        errbuf_init(&err);
        assert_int_equal(model_export(fixture.model, &fixture.job, &values, NULL, place->path, after, &err),
                         STATUS_TIMEOUT);
        assert_non_null(strstr(err.text, "rank 2 is late"));
        assert_int_equal(source.asked, layer);
        assert_null(source.held);
        assert_int_equal(sha256_of_file(place->path, after), STATUS_OK);
        assert_string_equal(before, after);
    }
    fixture_close(&fixture);
}

/* What the ranks that do not export call. */
static void a_pass_asks_for_the_same_layers(void **state)
{
    struct fixture fixture;
    struct errbuf err;
    (void)state;
    errbuf_init(&err);
    open_mlp(&fixture);
    for (int fails_at = -1; fails_at < model_layers(fixture.model); fails_at++) {
        struct source source = {.fixture = &fixture, .fails_at = fails_at};
        const struct model_values values = {source_layer, source_done, &source};
        assert_int_equal(model_values_pass(fixture.model, &values, &err), fails_at < 0 ? STATUS_OK : STATUS_TIMEOUT);
        assert_int_equal(source.asked, fails_at < 0 ? model_layers(fixture.model) : fails_at);
        assert_null(source.held);
    }
    fixture_close(&fixture);
}

static void layers_are_imported_in_any_order_and_apart_from_the_buffers(void **state)
{
    struct place *place = *state;
    struct fixture fixture, fresh;
    struct model_import *import;
    open_mlp(&fixture);
    export_ok(&fixture, place->path, NULL);
    fixture_job(&fresh);
    fresh.job.model.batch_norm = 1;
    fresh.job.seed = 99;
    fixture_open(&fresh, NULL);
    assert_int_equal(model_import_open(&import, fresh.model, place->path, NULL), STATUS_OK);
    const struct param_table *table = model_params(fresh.model);
    for (int layer = table->layer_count - 1; layer >= 0; layer--)
        model_import_layer(import, layer, fresh.w + table->layers[layer].offset);
    assert_memory_equal(fresh.w, fixture.w, (size_t)table->count * sizeof(float));
    assert_true(model_buffers(fresh.model)->values[0] == 0 && model_buffers(fresh.model)->num_batches_tracked == 0);
    model_import_buffers(import);
    assert_memory_equal(model_buffers(fresh.model)->values, model_buffers(fixture.model)->values,
                        (size_t)model_buffers(fixture.model)->count * sizeof(float));
    assert_int_equal(model_buffers(fresh.model)->num_batches_tracked, 3);
    model_import_close(import);
    fixture_close(&fixture);
    fixture_close(&fresh);
}

/* Writes `tensors` and expects import into a linear 5 -> 3 model to fail with `status`, saying `text`, untouched.
 */
static void import_refuses(const char *path, const struct safetensors_tensor *tensors, int count, int status,
                           const char *text)
{
    struct fixture fixture;
    struct errbuf err;
    errbuf_init(&err);
    fixture_job(&fixture);
    fixture.job.model.kind = JOB_MODEL_LINEAR;
    fixture_open(&fixture, NULL);
    float before[18];
    memcpy(before, fixture.w, sizeof before);
    assert_int_equal(safetensors_write(path, tensors, count, NULL, 0, NULL, NULL), STATUS_OK);
    assert_int_equal(model_import(fixture.model, path, fixture.w, &err), status);
    if (!strstr(err.text, text) || !strstr(err.text, path))
        fail_msg("\"%s\" does not say %s", err.text, text);
    assert_memory_equal(before, fixture.w, sizeof before);
    fixture_close(&fixture);
}

static void a_file_of_another_model_is_refused_and_nothing_is_loaded(void **state)
{
    struct place *place = *state;
    static const float values[32];
    struct safetensors_tensor tensors[3] = {{.name = "head.weight",
                                             .dtype = SAFETENSORS_F32,
                                             .dims = 2,
                                             .shape = {3, 5},
                                             .count = 15,
                                             .data = values,
                                             .bytes = 60},
                                            {.name = "head.bias",
                                             .dtype = SAFETENSORS_F32,
                                             .dims = 1,
                                             .shape = {3},
                                             .count = 3,
                                             .data = values,
                                             .bytes = 12},
                                            {.name = "head.scale",
                                             .dtype = SAFETENSORS_F32,
                                             .dims = 1,
                                             .shape = {1},
                                             .count = 1,
                                             .data = values,
                                             .bytes = 4}};
    import_refuses(place->path, tensors, 1, STATUS_UNKNOWN, "head.bias is missing");
    import_refuses(place->path, tensors, 3, STATUS_UNKNOWN, "head.scale is not of this model");
    tensors[0].shape[0] = 5;
    tensors[0].shape[1] = 3;
    import_refuses(place->path, tensors, 2, STATUS_SHAPE, "head.weight: wanted shape (3,5), found (5,3)");
    tensors[0].shape[0] = 3;
    tensors[0].shape[1] = 5;
    tensors[1].dtype = SAFETENSORS_I32;
    import_refuses(place->path, tensors, 2, STATUS_FORMAT, "head.bias: wanted F32");
}

static void half_precision_weights_load(void **state)
{
    struct place *place = *state;
    static const uint16_t one_and_a_half[15] = {0x3FC0, 0x3FC0}; /* bf16 */
    static const float bias[3] = {1, 2, 3};
    const struct safetensors_tensor tensors[2] = {{.name = "head.bias",
                                                   .dtype = SAFETENSORS_F32,
                                                   .dims = 1,
                                                   .shape = {3},
                                                   .count = 3,
                                                   .data = bias,
                                                   .bytes = 12},
                                                  {.name = "head.weight",
                                                   .dtype = SAFETENSORS_BF16,
                                                   .dims = 2,
                                                   .shape = {3, 5},
                                                   .count = 15,
                                                   .data = one_and_a_half,
                                                   .bytes = 30}};
    struct fixture fixture;
    fixture_job(&fixture);
    fixture.job.model.kind = JOB_MODEL_LINEAR;
    fixture_open(&fixture, NULL);
    assert_int_equal(safetensors_write(place->path, tensors, 2, NULL, 0, NULL, NULL), STATUS_OK);
    assert_int_equal(model_import(fixture.model, place->path, fixture.w, NULL), STATUS_OK);
    assert_true(fixture.w[0] == 1.5f && fixture.w[1] == 1.5f && fixture.w[2] == 0 && fixture.w[17] == 3);
    fixture_close(&fixture);
}

/* Writes a file whose model section is `json` (NULL: none) and expects no model from it. */
static void section_refused(const char *path, const char *json, int status, const char *text)
{
    struct account account;
    struct errbuf err;
    struct model *model = NULL;
    account_init(&account);
    errbuf_init(&err);
    const struct safetensors_meta meta = {"model", json};
    assert_int_equal(safetensors_write(path, NULL, 0, &meta, json ? 1 : 0, NULL, NULL), STATUS_OK);
    assert_int_equal(model_create_from_file(&model, path, 4, NULL, &account, &err), status);
    assert_null(model);
    if (!strstr(err.text, text) || !strstr(err.text, path))
        fail_msg("\"%s\" does not say %s", err.text, text);
}

static void a_broken_model_section_is_refused(void **state)
{
    struct place *place = *state;
    section_refused(place->path, NULL, STATUS_FORMAT, "no model section");
    section_refused(place->path, "{", STATUS_FORMAT, "model section");
    section_refused(place->path, "[]", STATUS_FORMAT, "kind is missing");
    section_refused(place->path, "{\"kind\":\"tree\"}", STATUS_FORMAT, "kind is tree");
    section_refused(place->path, "{\"kind\":\"linear\",\"loss\":\"hinge\"}", STATUS_FORMAT, "loss is hinge");
    section_refused(place->path, "{\"kind\":\"linear\",\"loss\":\"mse\",\"features\":-1,\"outputs\":1}",
                    STATUS_INVALID, "features");
    section_refused(place->path, "{\"kind\":\"mlp\",\"loss\":\"mse\",\"activation\":\"relu\"}", STATUS_FORMAT,
                    "hidden");
    section_refused(place->path,
                    "{\"kind\":\"mlp\",\"loss\":\"mse\",\"activation\":\"relu\",\"hidden\":[\"a\"],\"features\":1,"
                    "\"outputs\":1}",
                    STATUS_INVALID, "model.hidden");
}

static void a_missing_file_is_an_error_with_its_path(void **state)
{
    struct place *place = *state;
    struct fixture fixture;
    struct errbuf err;
    struct model *model;
    errbuf_init(&err);
    fixture_job(&fixture);
    fixture_open(&fixture, NULL);
    assert_int_equal(model_import(fixture.model, place->path, fixture.w, &err), STATUS_IO);
    assert_non_null(strstr(err.text, place->path));
    assert_int_equal(model_create_from_file(&model, place->path, 4, NULL, &fixture.account, &err), STATUS_IO);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_exported_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_file_alone_makes_the_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_and_metadata_are_as_documented, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_hash_needs_no_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_source_that_fails_leaves_the_file_that_was_there, set_up, tear_down),
        cmocka_unit_test(a_pass_asks_for_the_same_layers),
        cmocka_unit_test_setup_teardown(layers_are_imported_in_any_order_and_apart_from_the_buffers, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_file_of_another_model_is_refused_and_nothing_is_loaded, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(half_precision_weights_load, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_broken_model_section_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_missing_file_is_an_error_with_its_path, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("model_files", tests, NULL, NULL);
}
