/* A job: what the YAML file, the environment and --set said, checked. Built once by job_load (option_table.h
 * drives it), then constant; any thread may read it. Strings are owned by the job and never NULL ("" when
 * not given). Enumerations are the rows' order in option_table.c. Names follow the job file: job->optimizer.lr
 * is `optimizer.lr`. */
#ifndef SHOAL_CONFIG_JOB_H
#define SHOAL_CONFIG_JOB_H

#include <stddef.h>
#include <stdint.h>

struct errbuf;
struct job_record; /* where each value came from, and the warnings; job_record.h */

struct job_strings {
    char **items;
    int count;
};

enum job_data_kind { JOB_DATA_NONE, JOB_DATA_IDX, JOB_DATA_CSV, JOB_DATA_LIBSVM, JOB_DATA_NPY, JOB_DATA_SYNTHETIC };
enum job_order { JOB_ORDER_SHUFFLED, JOB_ORDER_SEQUENTIAL };
enum job_last_batch { JOB_LAST_SHORT, JOB_LAST_WRAP, JOB_LAST_DROP };
enum job_missing { JOB_MISSING_ERROR, JOB_MISSING_ZERO, JOB_MISSING_MEAN };
enum job_model_kind { JOB_MODEL_NONE, JOB_MODEL_LINEAR, JOB_MODEL_MLP };
enum job_loss { JOB_LOSS_SOFTMAX_CROSS_ENTROPY, JOB_LOSS_BINARY_CROSS_ENTROPY, JOB_LOSS_MSE, JOB_LOSS_HALF_SQUARED_ERROR };
enum job_init { JOB_INIT_DEFAULT, JOB_INIT_ZEROS };
enum job_activation { JOB_ACTIVATION_RELU, JOB_ACTIVATION_GELU, JOB_ACTIVATION_GELU_TANH, JOB_ACTIVATION_TANH, JOB_ACTIVATION_NONE };
enum job_optimizer_kind { JOB_SGD, JOB_ADAM, JOB_ADAMW, JOB_ADAGRAD, JOB_FTRL, JOB_LAMB, JOB_OPTIMIZER_PLUGIN };
enum job_nonfinite { JOB_NONFINITE_SKIP, JOB_NONFINITE_STOP };
enum job_lr_kind { JOB_LR_CONSTANT, JOB_LR_COSINE, JOB_LR_LINEAR };
enum job_parallel_data { JOB_PS, JOB_DDP, JOB_ZERO1, JOB_ZERO2, JOB_ZERO3 };
enum job_transport { JOB_TRANSPORT_AUTO, JOB_TRANSPORT_TCP, JOB_TRANSPORT_SHM };
enum job_placement { JOB_PLACEMENT_PART, JOB_PLACEMENT_LAYER };
enum job_consistency { JOB_BSP };
enum job_aggregate { JOB_MEAN, JOB_SUM, JOB_MEDIAN, JOB_TRIMMED_MEAN, JOB_AGGREGATE_PLUGIN };
enum job_update_at { JOB_UPDATE_AT_SERVER, JOB_UPDATE_AT_WORKER };
enum job_update { JOB_UPDATE_STEP, JOB_UPDATE_EAGER };
enum job_bn_stats { JOB_BN_LOCAL, JOB_BN_GLOBAL };
enum job_best_mode { JOB_BEST_MAX, JOB_BEST_MIN };

/* Workers own the state and exchange among themselves; no servers. */
static inline int job_is_ring(enum job_parallel_data data)
{
    return data != JOB_PS;
}

struct job_data_files {
    char *file;               /* csv, libsvm */
    char *images, *labels;    /* idx; labels also npy */
    char *features;           /* npy */
};

struct job {
    char *name;
    uint64_t seed;
    int64_t epochs; /* 0 when steps is given */
    int64_t steps;  /* 0 when epochs is given */
    int64_t batch_size;
    int64_t accumulate;
    int64_t log_every;
    struct {
        enum job_data_kind kind;
        struct job_data_files train, test, validation;
        double validation_fraction; /* 0: none */
        enum job_order order;
        enum job_last_batch last_batch;
        int64_t label_column; /* csv; negative counts from the end; default -1 */
        int64_t header_lines; /* csv */
        int64_t index_base;   /* libsvm: 1 (default) or 0 */
        int64_t features_max; /* libsvm, 0: the largest index of the training file */
        double scale_divide;  /* 0: the loader's default (idx 255, others 1) */
        int standardize;
        int64_t classes; /* 0: auto */
        struct job_strings class_names;
        enum job_missing missing;
        struct {
            int64_t samples, features, classes; /* data.samples, data.features; data.classes, or 2 when auto */
            uint64_t seed;
        } synthetic;
    } data;
    struct {
        enum job_model_kind kind;
        enum job_loss loss;
        enum job_init init;
        int64_t *hidden; /* mlp: hidden_count widths */
        int hidden_count;
        enum job_activation activation;
        int batch_norm;
        double dropout;
        int64_t outputs; /* 0: from the data (classes, or 1) */
    } model;
    struct {
        enum job_optimizer_kind kind;
        double lr, beta1, beta2, eps, weight_decay, momentum, l1, l2, beta, clip_norm;
        int nesterov;
        enum job_nonfinite nonfinite;
        struct job_strings no_decay, freeze;
        char *plugin; /* path of a .so when kind is plugin */
    } optimizer;
    struct {
        enum job_lr_kind kind;
        int64_t warmup_steps, total_steps; /* total 0: all steps */
        double min_lr;
    } lr_schedule;
    struct {
        enum job_parallel_data data;
        enum job_consistency consistency;
        enum job_aggregate aggregate;
        char *aggregate_plugin;
        double trim_fraction;
        enum job_update_at update_at;
        enum job_update update;
        int64_t bucket_bytes, message_bytes;
        enum job_bn_stats batch_norm_stats;
        int64_t threads; /* 0: from cores and processes on this host */
        int64_t digest_every;
        int64_t credit_bytes; /* per (worker, server) */
        enum job_transport transport;
        enum job_placement placement;
        int64_t prefetch_layers;       /* zero3: gathered ahead of their use */
        int64_t persistence_threshold; /* zero3: layers of fewer elements stay gathered */
        int keep_last_layer;           /* zero3: from forward to backward */
    } parallel;
    struct {
        char *dir;     /* "": no snapshots */
        int64_t every; /* steps; 0: only at the end and on signals */
        int64_t keep;
        char *best_metric; /* "": none */
        enum job_best_mode best_mode;
    } snapshot;
    struct {
        int64_t workers, servers;
        int64_t elastic_min; /* 0: a lost worker ends the job */
        int mixed_processors;
        double stop_timeout;
        struct {
            double start, stall_report, worker_dead, server_dead, coordinator_dead;
        } timeouts; /* seconds */
    } cluster;
    struct {
        int64_t every; /* steps; 0: only at the end */
        char *early_stop_metric; /* "": none */
        int64_t early_stop_patience;
        double early_stop_min_delta;
    } evaluate;
    struct job_record *record; /* owned; NULL in a job that was filled by hand */
};

/* Sets one option above all else; what `shoal run --workers 4` gives. */
struct job_override {
    const char *key, *value; /* "cluster.workers", "4" */
    const char *origin;      /* "--workers", for messages and --print-config */
};

enum job_need {
    JOB_NEED_TRAINING, /* everything a training job must say */
    JOB_NEED_NOTHING   /* only what is given is checked: predict, evaluate */
};

/* Everything is borrowed during job_load. Later rows win: file or text, environment, sets, overrides. */
struct job_source {
    const char *path;         /* the YAML file; NULL: text */
    const char *text;         /* YAML, NUL-terminated; NULL with a NULL path: no file, the rest says all */
    const char *text_name;    /* stands for the file in messages; NULL: "job" */
    char *const *environment; /* NULL-terminated, as environ; NULL: not looked at */
    const char *const *sets;  /* "optimizer.lr=0.1" */
    int sets_count;
    const struct job_override *overrides;
    int overrides_count;
    enum job_need need;
};

/* *job: owned, for job_destroy; untouched on error. The errbuf says in one line: file and line (or environment
 * variable, or --set), key, found, allowed. STATUS_INVALID, STATUS_UNKNOWN (a key), STATUS_RANGE, STATUS_FORMAT
 * (YAML), STATUS_IO, STATUS_NOMEM. Any thread. */
int job_load(struct job **job, const struct job_source *source, struct errbuf *err);
void job_destroy(struct job *job); /* takes NULL */

/* Keys that were given but do nothing in this job, one line each; borrowed from the job. */
const struct job_strings *job_warnings(const struct job *job);

/* "job.yaml:7", "environment SHOAL_SEED", "--set", "--workers" or "default"; for later checks' messages. */
void job_origin(const struct job *job, const char *key, char *out, size_t out_bytes);

/* The complete resolved job as YAML that job_load reads back to the same values. Owned; NULL when out of memory. */
char *job_to_yaml(const struct job *job);
/* "key: value  # origin" for every option. Owned; NULL when out of memory. */
char *job_print_config(const struct job *job);
/* "128 = 4 workers x 2 accumulate x 16"; remainders are shown: "10 = 2 workers x 3 + 2 workers x 2". */
void job_batch_text(const struct job *job, int64_t workers, char *out, size_t out_bytes);

/* 64 bits over what a resume may not change: model, data, seed, batch_size, optimizer.kind. */
uint64_t job_hash(const struct job *job);
/* STATUS_INVALID names the first such key that differs, with both values. */
int job_check_resume(const struct job *saved, const struct job *now, struct errbuf *err);

#endif
