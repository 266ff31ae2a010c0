/* A job: what the YAML file, the environment and --set said, checked. Built once by job_load (option_table.h
 * drives it), then constant; any thread may read it. Strings are owned by the job and never NULL ("" when
 * not given). Enumerations are the rows' order in option_table.c. Names follow the job file: job->optimizer.lr
 * is `optimizer.lr`. */
#ifndef SHOAL_CONFIG_JOB_H
#define SHOAL_CONFIG_JOB_H

#include <stdint.h>

struct errbuf;

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
enum job_parallel_data { JOB_PS };
enum job_consistency { JOB_BSP };
enum job_aggregate { JOB_MEAN, JOB_SUM, JOB_MEDIAN, JOB_TRIMMED_MEAN, JOB_AGGREGATE_PLUGIN };
enum job_update_at { JOB_UPDATE_AT_SERVER, JOB_UPDATE_AT_WORKER };
enum job_update { JOB_UPDATE_STEP, JOB_UPDATE_EAGER };
enum job_bn_stats { JOB_BN_LOCAL, JOB_BN_GLOBAL };
enum job_best_mode { JOB_BEST_MAX, JOB_BEST_MIN };

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
            int64_t samples, features, classes;
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
};

#endif
