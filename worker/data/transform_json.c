/* struct dataset_transform as the JSON text of a model file's __metadata__, and back. The text may come from
 * anyone, so every field is checked. Numbers have 17 significant digits: they come back with the same bits. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/label_map.h"

static json_t *array_of_doubles(const double *values, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_real(values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *array_of_names(char *const *names, int count)
{
    json_t *array = json_array();
    for (int k = 0; array && k < count; k++) {
        json_t *name = json_string(names[k]);
        if (!name || json_array_append_new(array, name) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

char *dataset_transform_to_json(const struct dataset_transform *transform)
{
    char *text = NULL;
    json_t *root = json_object();
    int failed = !root;
    if (failed)
        return NULL;
    failed |= json_object_set_new(root, "features", json_integer(transform->features));
    failed |= json_object_set_new(root, "divide", json_real(transform->divide));
    failed |= json_object_set_new(root, "index_base", json_integer(transform->index_base));
    failed |= json_object_set_new(root, "classes", json_integer(transform->classes));
    if (transform->class_values)
        failed |= json_object_set_new(root, "class_values",
                                      array_of_doubles(transform->class_values, transform->classes));
    if (transform->class_names)
        failed |=
            json_object_set_new(root, "class_names", array_of_names(transform->class_names, transform->classes));
    if (transform->mean)
        failed |= json_object_set_new(root, "mean", array_of_doubles(transform->mean, transform->features));
    if (transform->deviation)
        failed |=
            json_object_set_new(root, "deviation", array_of_doubles(transform->deviation, transform->features));
    if (!failed)
        text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    return text;
}

static int bad_field(struct errbuf *err, const char *key, const char *expected)
{
    return errbuf_set(err, STATUS_FORMAT, "data transform: %s: expected %s", key, expected);
}

static int read_integer(const json_t *root, const char *key, int64_t low, int64_t high, int64_t *out,
                        struct errbuf *err)
{
    const json_t *value = json_object_get(root, key);
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
        return errbuf_set(err, STATUS_FORMAT, "data transform: %s: expected a whole number in %lld..%lld", key,
                          (long long)low, (long long)high);
    *out = json_integer_value(value);
    return 0;
}

/* *out stays NULL where the key is not there. */
static int read_doubles(const json_t *root, const char *key, int64_t count, double **out, struct errbuf *err)
{
    const json_t *array = json_object_get(root, key);
    if (!array)
        return 0;
    if (!json_is_array(array) || json_array_size(array) != (size_t)count)
        return errbuf_set(err, STATUS_FORMAT, "data transform: %s: expected an array of %lld numbers", key,
                          (long long)count);
    *out = malloc((size_t)(count ? count : 1) * sizeof **out);
    if (!*out)
        return errbuf_set(err, STATUS_NOMEM, "data transform: out of memory");
    for (int64_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, (size_t)i);
        if (!json_is_number(value) || !isfinite(json_number_value(value)))
            return bad_field(err, key, "only finite numbers");
        (*out)[i] = json_number_value(value);
    }
    return 0;
}

static int read_names(const json_t *root, struct dataset_transform *transform, struct errbuf *err)
{
    const json_t *array = json_object_get(root, "class_names");
    if (!array)
        return 0;
    if (!json_is_array(array) || json_array_size(array) != (size_t)transform->classes)
        return bad_field(err, "class_names", "one text a class");
    transform->class_names = calloc((size_t)transform->classes + 1, sizeof *transform->class_names);
    if (!transform->class_names)
        return errbuf_set(err, STATUS_NOMEM, "data transform: out of memory");
    for (int k = 0; k < transform->classes; k++) {
        const json_t *name = json_array_get(array, (size_t)k);
        if (!json_is_string(name))
            return bad_field(err, "class_names", "one text a class");
        transform->class_names[k] = strdup(json_string_value(name));
        if (!transform->class_names[k])
            return errbuf_set(err, STATUS_NOMEM, "data transform: out of memory");
    }
    return 0;
}

static int check_whole(const struct dataset_transform *transform, struct errbuf *err)
{
    if (transform->classes > 0 && !transform->class_values && !transform->class_names)
        return bad_field(err, "classes", "class_values or class_names with them");
    for (int k = 1; transform->class_values && k < transform->classes; k++)
        if (!(transform->class_values[k - 1] < transform->class_values[k]))
            return bad_field(err, "class_values", "ascending numbers");
    if (transform->deviation && !transform->mean)
        return bad_field(err, "deviation", "a mean with it");
    for (int64_t j = 0; transform->deviation && j < transform->features; j++)
        if (!(transform->deviation[j] > 0))
            return bad_field(err, "deviation", "only numbers above 0");
    return 0;
}

static int read_all(const json_t *root, struct dataset_transform *transform, struct errbuf *err)
{
    int64_t classes = 0;
    const json_t *divide = json_object_get(root, "divide");
    if (!json_is_object(root))
        return bad_field(err, "text", "a JSON object");
    int rc = read_integer(root, "features", 1, INT32_MAX, &transform->features, err);
    if (rc == 0)
        rc = read_integer(root, "index_base", 0, 1, &transform->index_base, err);
    if (rc == 0)
        rc = read_integer(root, "classes", 0, LABEL_CLASSES_MAX, &classes, err);
    if (rc)
        return rc;
    transform->classes = (int)classes;
    if (!json_is_number(divide) || !isfinite(json_number_value(divide)) || json_number_value(divide) == 0)
        return bad_field(err, "divide", "a finite number other than 0");
    transform->divide = json_number_value(divide);
    rc = read_doubles(root, "class_values", classes, &transform->class_values, err);
    if (rc == 0)
        rc = read_names(root, transform, err);
    if (rc == 0)
        rc = read_doubles(root, "mean", transform->features, &transform->mean, err);
    if (rc == 0)
        rc = read_doubles(root, "deviation", transform->features, &transform->deviation, err);
    return rc ? rc : check_whole(transform, err);
}

int dataset_transform_from_json(struct dataset_transform *transform, const char *json, struct errbuf *err)
{
    json_error_t error;
    memset(transform, 0, sizeof *transform);
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return errbuf_set(err, STATUS_FORMAT, "data transform: not JSON: line %d, column %d: %s", error.line,
                          error.column, error.text);
    int rc = read_all(root, transform, err);
    json_decref(root);
    if (rc)
        dataset_transform_close(transform);
    return rc;
}
