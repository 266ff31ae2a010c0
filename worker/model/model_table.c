#include "worker/model/model_table.h"

#include <stddef.h>
#include <string.h>

static const struct model_ops *const rows[] = {&model_linear, &model_mlp};

const struct model_ops *model_table_find(enum job_model_kind kind)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->kind == kind)
            return rows[i];
    return NULL;
}

const struct model_ops *model_table_find_name(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i]->name, name) == 0)
            return rows[i];
    return NULL;
}
