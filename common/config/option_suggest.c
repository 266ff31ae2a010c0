#include "config/option_suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/option_table.h"

#define SHARE "batch_size is global and a worker's share is batch_size / cluster.workers / accumulate"

/* Names of other trainers. `note`, where given, is said instead of the target. */
static const struct {
    const char *name, *target, *note;
} synonyms[] = {
    {"learning_rate", "optimizer.lr", NULL},
    {"alpha", "optimizer.lr", NULL},
    {"betas", "optimizer.beta1", "the two are optimizer.beta1 and optimizer.beta2"},
    {"epsilon", "optimizer.eps", NULL},
    {"decay", "optimizer.weight_decay", NULL},
    {"momentum_factor", "optimizer.momentum", NULL},
    {"max_grad_norm", "optimizer.clip_norm", NULL},
    {"gradient_clipping", "optimizer.clip_norm", NULL},
    {"max_norm", "optimizer.clip_norm", NULL},
    {"scheduler", "lr_schedule.kind", NULL},
    {"warmup", "lr_schedule.warmup_steps", NULL},
    {"num_epochs", "epochs", NULL},
    {"n_epochs", "epochs", NULL},
    {"max_steps", "steps", NULL},
    {"num_steps", "steps", NULL},
    {"random_seed", "seed", NULL},
    {"batch", "batch_size", NULL},
    {"global_batch_size", "batch_size", NULL},
    {"train_batch_size", "batch_size", NULL},
    {"mini_batch_size", "batch_size", NULL},
    {"gradient_accumulation_steps", "accumulate", NULL},
    {"accumulation_steps", "accumulate", NULL},
    {"per_worker_batch", "batch_size", SHARE},
    {"per_worker_batch_size", "batch_size", SHARE},
    {"worker_batch_size", "batch_size", SHARE},
    {"batch_size_per_worker", "batch_size", SHARE},
    {"batch_per_worker", "batch_size", SHARE},
    {"local_batch_size", "batch_size", SHARE},
    {"micro_batch", "batch_size", SHARE},
    {"micro_batch_size", "batch_size", SHARE},
    {"per_device_train_batch_size", "batch_size", SHARE},
    {"train_micro_batch_size_per_gpu", "batch_size", SHARE},
    {"n_workers", "cluster.workers", NULL},
    {"num_workers", "cluster.workers", NULL},
    {"world_size", "cluster.workers", NULL},
    {"n_servers", "cluster.servers", NULL},
    {"num_servers", "cluster.servers", NULL},
    {"hidden_sizes", "model.hidden", NULL},
    {"hidden_layers", "model.hidden", NULL},
    {"layers", "model.hidden", NULL},
    {"batchnorm", "model.batch_norm", NULL},
    {"num_classes", "data.classes", NULL},
    {"normalize", "data.scale.standardize", NULL},
    {"shuffle", "data.order", NULL},
    {"drop_last", "data.last_batch", NULL},
    {"mode", "parallel.data", NULL},
    {"reduction", "parallel.aggregate", NULL},
    {"checkpoint_dir", "snapshot.dir", NULL},
    {"checkpoint_every", "snapshot.every", NULL},
    {"eval_every", "evaluate.every", NULL},
    {"patience", "evaluate.early_stop.patience", NULL},
};
enum { SYNONYMS = sizeof synonyms / sizeof synonyms[0], WORD_MAX = 40 };

/* Levenshtein's distance of words of fewer than WORD_MAX bytes. */
static int edit_distance(const char *a, const char *b)
{
    int row[WORD_MAX + 1];
    int a_length = (int)strlen(a), b_length = (int)strlen(b);
    for (int j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (int i = 1; i <= a_length; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            int change = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < change ? replace : change;
        }
    }
    return row[b_length];
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The last part in lower case with - as _; 0 when it is too long to be a slip of a known name. */
static int plain_word(const char *path, char out[WORD_MAX])
{
    const char *word = last_part(path);
    if (strlen(word) >= WORD_MAX) {
        return 0;
    }
    size_t i = 0;
    for (; word[i]; i++) {
        out[i] = word[i] == '-' ? '_' : (char)tolower((unsigned char)word[i]);
    }
    out[i] = '\0';
    return 1;
}

static int synonym_of(const char *word)
{
    for (int i = 0; i < SYNONYMS; i++) {
        if (strcmp(synonyms[i].name, word) == 0) {
            return i;
        }
    }
    return -1;
}

int option_is_synonym(const char *path)
{
    char word[WORD_MAX];
    return plain_word(path, word) && synonym_of(word) >= 0;
}

/* The nearest option's name by its last part; a match in the same mapping wins. 0 when nothing is near. */
static int nearest(const char *path, const char *word, char out[OPTION_PATH_MAX])
{
    size_t parent = (size_t)(last_part(path) - path);
    int limit = strlen(word) <= 3 ? 1 : strlen(word) <= 6 ? 2 : 3;
    int best = 2 * limit + 2;
    for (int i = 0; i < option_count(); i++) {
        char name[OPTION_PATH_MAX];
        option_path(option_at(i), name);
        int distance = edit_distance(word, last_part(name));
        int elsewhere = strncmp(name, path, parent) != 0;
        if (distance <= limit && 2 * distance + elsewhere < best) {
            best = 2 * distance + elsewhere;
            memcpy(out, name, OPTION_PATH_MAX);
        }
    }
    for (int i = 0; i < SYNONYMS; i++) {
        int distance = edit_distance(word, synonyms[i].name);
        if (distance <= limit && 2 * distance + 1 < best) {
            best = 2 * distance + 1;
            snprintf(out, OPTION_PATH_MAX, "%s", synonyms[i].target);
        }
    }
    for (int i = 1; option_section(i); i++) {
        int distance = edit_distance(word, option_section(i));
        if (parent == 0 && distance <= limit && 2 * distance < best) {
            best = 2 * distance;
            snprintf(out, OPTION_PATH_MAX, "%s", option_section(i));
        }
    }
    return best < 2 * limit + 2;
}

/* The keys directly in the mapping that would have held path. */
static void list_keys(const char *path, char *out, size_t out_bytes)
{
    const char *last = last_part(path);
    int parent = (int)(last - path);
    int used =
        parent ? snprintf(out, out_bytes, "%.*s has ", parent - 1, path) : snprintf(out, out_bytes, "there are ");
    char previous[OPTION_PATH_MAX] = "";
    for (int i = 0; i < option_count() && used >= 0 && (size_t)used < out_bytes; i++) {
        char name[OPTION_PATH_MAX];
        option_path(option_at(i), name);
        if (strncmp(name, path, (size_t)parent) != 0) {
            continue;
        }
        char *key = name + parent;
        key[strcspn(key, ".")] = '\0';
        if (strcmp(key, previous) != 0) {
            used += snprintf(out + used, out_bytes - (size_t)used, "%s%s", previous[0] ? ", " : "", key);
            memcpy(previous, key, strlen(key) + 1);
        }
    }
}

void option_suggest(const char *path, char *out, size_t out_bytes)
{
    char word[WORD_MAX], name[OPTION_PATH_MAX];
    int known = plain_word(path, word);
    int synonym = known ? synonym_of(word) : -1;
    if (known && nearest(path, word, name) && edit_distance(word, last_part(name)) == 0) {
        snprintf(out, out_bytes, "did you mean %s?", name);
    } else if (synonym >= 0 && synonyms[synonym].note) {
        snprintf(out, out_bytes, "did you mean %s? %s", synonyms[synonym].target, synonyms[synonym].note);
    } else if (synonym >= 0) {
        snprintf(out, out_bytes, "did you mean %s?", synonyms[synonym].target);
    } else if (known && nearest(path, word, name)) {
        snprintf(out, out_bytes, "did you mean %s?", name);
    } else {
        list_keys(path, out, out_bytes);
    }
}
