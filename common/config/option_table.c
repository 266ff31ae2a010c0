#include "config/option_table.h"

#include <math.h>

#include "config/job.h"

/* Integers are compared as doubles, which hold them exactly up to here. */
#define TOP 9007199254740992.0
#define AT(field) offsetof(struct job, field)

#define TEXT(section_, name_, field, fallback_, help_, ...)                                                        \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_STRING, .offset = AT(field), .fallback = fallback_,     \
        .help = help_, __VA_ARGS__                                                                                 \
    }
#define FILEPATH(section_, name_, field, help_, ...)                                                               \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_PATH, .offset = AT(field), .fallback = "",              \
        .help = help_, __VA_ARGS__                                                                                 \
    }
#define INT(section_, name_, field, low_, high_, fallback_, help_, ...)                                            \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_INT, .offset = AT(field), .low = low_, .high = high_,   \
        .fallback = fallback_, .help = help_, __VA_ARGS__                                                          \
    }
#define U64(section_, name_, field, fallback_, help_, ...)                                                         \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_U64, .offset = AT(field), .low = 0,                     \
        .high = 18446744073709551615.0, .fallback = fallback_, .help = help_, __VA_ARGS__                          \
    }
#define FLOAT(section_, name_, field, low_, high_, fallback_, help_, ...)                                          \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_FLOAT, .offset = AT(field), .low = low_, .high = high_, \
        .fallback = fallback_, .help = help_, __VA_ARGS__                                                          \
    }
#define BOOL(section_, name_, field, fallback_, help_, ...)                                                        \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_BOOL, .offset = AT(field), .fallback = fallback_,       \
        .help = help_, __VA_ARGS__                                                                                 \
    }
#define ENUM(section_, name_, field, choices_, fallback_, help_, ...)                                              \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_ENUM, .offset = AT(field), .choices = choices_,         \
        .fallback = fallback_, .help = help_, __VA_ARGS__                                                          \
    }
#define STRINGS(section_, name_, field, help_, ...)                                                                \
    {                                                                                                              \
        .section = section_, .name = name_, .type = OPTION_STRINGS, .offset = AT(field), .fallback = "",           \
        .help = help_, __VA_ARGS__                                                                                 \
    }

/* In the order of job.h's enumerations. */
static const char *const data_kinds[] = {"none", "idx", "csv", "libsvm", "npy", "synthetic", NULL};
static const char *const orders[] = {"shuffled", "sequential", NULL};
static const char *const last_batches[] = {"short", "wrap", "drop", NULL};
static const char *const missings[] = {"error", "zero", "mean", NULL};
static const char *const model_kinds[] = {"none", "linear", "mlp", NULL};
static const char *const losses[] = {"softmax_cross_entropy", "binary_cross_entropy", "mse", "half_squared_error",
                                     NULL};
static const char *const inits[] = {"default", "zeros", NULL};
static const char *const activations[] = {"relu", "gelu", "gelu_tanh", "tanh", "none", NULL};
static const char *const optimizer_kinds[] = {"sgd", "adam", "adamw", "adagrad", "ftrl", "lamb", "plugin", NULL};
static const char *const nonfinites[] = {"skip", "stop", NULL};
static const char *const lr_kinds[] = {"constant", "cosine", "linear", NULL};
static const char *const parallel_datas[] = {"ps", "ddp", "zero1", "zero2", "zero3", NULL};
static const char *const transports[] = {"auto", "tcp", "shm", NULL};
static const char *const placements[] = {"part", "layer", NULL};
static const char *const consistencies[] = {"bsp", NULL};
static const char *const aggregates[] = {"mean", "sum", "median", "trimmed_mean", "plugin", NULL};
static const char *const update_ats[] = {"server", "worker", NULL};
static const char *const updates[] = {"step", "eager", NULL};
static const char *const batch_norm_stats[] = {"local", "global", NULL};
static const char *const best_modes[] = {"max", "min", NULL};
static const char *const metrics[] = {"accuracy", "loss", NULL};

/* By optimizer.kind: sgd, adam, adamw, adagrad, ftrl, lamb, plugin. PyTorch's where it has the optimizer. */
static const char *const lr_defaults[] = {NULL, "0.001", "0.001", "0.01", NULL, "0.001", NULL};
static const char *const eps_defaults[] = {"1e-08", "1e-08", "1e-08", "1e-10", "1e-08", "1e-06", "1e-08"};
static const char *const decay_defaults[] = {"0", "0", "0.01", "0", "0", "0.01", "0"};

static const struct option rows[] = {
    TEXT("", "name", name, "job", "what the job is called in logs and metrics"),
    U64("", "seed", seed, "1", "of every random number: initial weights, order, dropout",
        .flags = OPTION_RESUME_FIXED),
    INT("", "epochs", epochs, 1, 1e9, NULL, "passes over the training data; give this or steps"),
    INT("", "steps", steps, 1, TOP, NULL, "optimizer steps; give this or epochs"),
    INT("", "batch_size", batch_size, 1, 1e9, NULL, "samples an optimizer step takes over all workers",
        .unit = "samples", .flags = OPTION_REQUIRED | OPTION_RESUME_FIXED),
    INT("", "accumulate", accumulate, 1, 1e6, "1", "micro-steps a worker divides its share of a step into"),
    INT("", "log_every", log_every, 1, TOP, "10", "steps between progress lines on the terminal", .unit = "steps"),

    ENUM("data", "kind", data.kind, data_kinds, NULL,
         "format of the data; none when a client program brings its own",
         .flags = OPTION_ALWAYS_NEEDED | OPTION_RESUME_FIXED),
#define DATA_FILES(set, field, what)                                                                               \
    FILEPATH("data", set ".file", data.field.file, what ": its file", .only = "data.kind=csv|libsvm",              \
             .flags = OPTION_RESUME_FIXED),                                                                        \
        FILEPATH("data", set ".images", data.field.images, what ": images, plain or gz", .only = "data.kind=idx",  \
                 .flags = OPTION_RESUME_FIXED),                                                                    \
        FILEPATH("data", set ".features", data.field.features, what ": features, rows by columns",                 \
                 .only = "data.kind=npy", .flags = OPTION_RESUME_FIXED),                                           \
        FILEPATH("data", set ".labels", data.field.labels, what ": labels, one a row",                             \
                 .only = "data.kind=idx|npy", .flags = OPTION_RESUME_FIXED)
    DATA_FILES("train", train, "training set"),
    DATA_FILES("test", test, "test set"),
    DATA_FILES("validation", validation, "validation set"),
    FLOAT("data", "validation.fraction", data.validation_fraction, 0, 1, "0",
          "part of the training rows that is set apart to validate on",
          .flags = OPTION_HIGH_OPEN | OPTION_RESUME_FIXED),
    ENUM("data", "order", data.order, orders, "shuffled", "shuffled permutes each epoch from the seed",
         .flags = OPTION_RESUME_FIXED),
    ENUM("data", "last_batch", data.last_batch, last_batches, "short",
         "what is left of an epoch: a short batch, filled from the next epoch, or dropped",
         .flags = OPTION_RESUME_FIXED),
    INT("data", "label_column", data.label_column, -1e6, 1e6, "-1",
        "column of the label; negative counts from the end", .only = "data.kind=csv", .flags = OPTION_RESUME_FIXED),
    INT("data", "header_lines", data.header_lines, 0, 1e6, "0", "lines to pass over at the top", .unit = "lines",
        .only = "data.kind=csv", .flags = OPTION_RESUME_FIXED),
    INT("data", "index_base", data.index_base, 0, 1, "1", "index of the first feature", .only = "data.kind=libsvm",
        .flags = OPTION_RESUME_FIXED),
    INT("data", "features_max", data.features_max, 1, 1e9, "auto",
        "features a row has; auto takes the largest index of the training file", .zero_word = "auto",
        .only = "data.kind=libsvm", .flags = OPTION_RESUME_FIXED),
    FLOAT("data", "scale.divide", data.scale_divide, 0, INFINITY, "auto",
          "features are divided by it; auto is 255 for idx, else 1", .zero_word = "auto",
          .flags = OPTION_LOW_OPEN | OPTION_RESUME_FIXED),
    BOOL("data", "scale.standardize", data.standardize, "false",
         "features less their mean, by their deviation, both of the training rows", .flags = OPTION_RESUME_FIXED),
    INT("data", "classes", data.classes, 1, 1e6, "auto",
        "auto counts the labels of the training rows (synthetic: 2)", .zero_word = "auto",
        .only = "model.loss=softmax_cross_entropy|binary_cross_entropy", .flags = OPTION_RESUME_FIXED),
    STRINGS("data", "class_names", data.class_names, "in ascending order of the labels",
            .only = "model.loss=softmax_cross_entropy|binary_cross_entropy", .flags = OPTION_RESUME_FIXED),
    ENUM("data", "missing", data.missing, missings, "error", "what an empty field becomes", .only = "data.kind=csv",
         .flags = OPTION_RESUME_FIXED),
    INT("data", "samples", data.synthetic.samples, 1, 1e9, NULL, "rows to make", .unit = "samples",
        .only = "data.kind=synthetic", .flags = OPTION_RESUME_FIXED),
    INT("data", "features", data.synthetic.features, 1, 1e9, NULL, "features of a row",
        .only = "data.kind=synthetic", .flags = OPTION_RESUME_FIXED),
    U64("data", "seed", data.synthetic.seed, "1", "of the data that is made", .only = "data.kind=synthetic",
        .flags = OPTION_RESUME_FIXED),

    ENUM("model", "kind", model.kind, model_kinds, NULL, "none when a client program brings its own",
         .flags = OPTION_ALWAYS_NEEDED | OPTION_RESUME_FIXED),
    {.section = "model",
     .name = "hidden",
     .type = OPTION_INTS,
     .offset = AT(model.hidden),
     .count_offset = AT(model.hidden_count),
     .low = 1,
     .high = 16777216,
     .fallback = "",
     .only = "model.kind=mlp",
     .flags = OPTION_RESUME_FIXED,
     .help = "widths of the hidden layers"},
    ENUM("model", "activation", model.activation, activations, "relu", "gelu is the erf form, gelu_tanh GPT-2's",
         .only = "model.kind=mlp", .flags = OPTION_RESUME_FIXED),
    BOOL("model", "batch_norm", model.batch_norm, "false", "BatchNorm after each hidden linear layer",
         .only = "model.kind=mlp", .flags = OPTION_RESUME_FIXED),
    FLOAT("model", "dropout", model.dropout, 0, 1, "0", "probability that a hidden value is dropped",
          .only = "model.kind=mlp", .flags = OPTION_HIGH_OPEN | OPTION_RESUME_FIXED),
    ENUM("model", "loss", model.loss, losses, "softmax_cross_entropy", "binary_cross_entropy takes logits",
         .flags = OPTION_RESUME_FIXED),
    ENUM("model", "init", model.init, inits, "default", "initial weights; default is PyTorch's",
         .flags = OPTION_RESUME_FIXED),
    INT("model", "outputs", model.outputs, 1, 1e6, "auto", "auto: the classes, or 1", .zero_word = "auto",
        .flags = OPTION_RESUME_FIXED),

    ENUM("optimizer", "kind", optimizer.kind, optimizer_kinds, NULL, "the update rule",
         .flags = OPTION_ALWAYS_NEEDED | OPTION_RESUME_FIXED),
    FLOAT("optimizer", "lr", optimizer.lr, 0, INFINITY, NULL, "learning rate; ftrl's alpha",
          .flags = OPTION_LOW_OPEN, .kind_fallback = lr_defaults),
    FLOAT("optimizer", "beta1", optimizer.beta1, 0, 1, "0.9", "decay of the first moment",
          .flags = OPTION_HIGH_OPEN, .only = "optimizer.kind=adam|adamw|lamb|plugin"),
    FLOAT("optimizer", "beta2", optimizer.beta2, 0, 1, "0.999", "decay of the second moment",
          .flags = OPTION_HIGH_OPEN, .only = "optimizer.kind=adam|adamw|lamb|plugin"),
    FLOAT("optimizer", "eps", optimizer.eps, 0, INFINITY, NULL, "added to the denominator",
          .kind_fallback = eps_defaults, .only = "optimizer.kind=adam|adamw|adagrad|lamb|plugin"),
    FLOAT("optimizer", "weight_decay", optimizer.weight_decay, 0, INFINITY, NULL,
          "decay of weights: decoupled in adamw, added to the gradient elsewhere", .kind_fallback = decay_defaults),
    FLOAT("optimizer", "momentum", optimizer.momentum, 0, 1, "0", "part of the last move that is kept",
          .flags = OPTION_HIGH_OPEN, .only = "optimizer.kind=sgd|plugin"),
    BOOL("optimizer", "nesterov", optimizer.nesterov, "false", "look ahead along the momentum",
         .only = "optimizer.kind=sgd|plugin"),
    FLOAT("optimizer", "l1", optimizer.l1, 0, INFINITY, "0", "L1 penalty", .only = "optimizer.kind=ftrl|plugin"),
    FLOAT("optimizer", "l2", optimizer.l2, 0, INFINITY, "0", "L2 penalty", .only = "optimizer.kind=ftrl|plugin"),
    FLOAT("optimizer", "beta", optimizer.beta, 0, INFINITY, "1", "smoothing of the rate per weight",
          .only = "optimizer.kind=ftrl|plugin"),
    FLOAT("optimizer", "clip_norm", optimizer.clip_norm, 0, INFINITY, "0",
          "largest global norm of the gradient; 0: any"),
    ENUM("optimizer", "nonfinite", optimizer.nonfinite, nonfinites, "skip",
         "what a NaN or infinite gradient does: the step is left out, or the job ends"),
    STRINGS("optimizer", "no_decay", optimizer.no_decay, "patterns of tensor names that do not decay"),
    STRINGS("optimizer", "freeze", optimizer.freeze, "patterns of tensor names that are not trained"),
    FILEPATH("optimizer", "plugin", optimizer.plugin, "a .so that exports shoal_optimizer",
             .only = "optimizer.kind=plugin"),

    ENUM("lr_schedule", "kind", lr_schedule.kind, lr_kinds, "constant", "how lr falls after the warm-up"),
    INT("lr_schedule", "warmup_steps", lr_schedule.warmup_steps, 0, TOP, "0", "lr grows from 0 over these steps",
        .unit = "steps"),
    INT("lr_schedule", "total_steps", lr_schedule.total_steps, 1, TOP, "auto",
        "where min_lr is reached; auto: the end", .zero_word = "auto", .unit = "steps",
        .only = "lr_schedule.kind=cosine|linear"),
    FLOAT("lr_schedule", "min_lr", lr_schedule.min_lr, 0, INFINITY, "0", "lr at the end",
          .only = "lr_schedule.kind=cosine|linear"),

    ENUM("parallel", "data", parallel.data, parallel_datas, "ps",
         "who owns parameters and optimizer state: servers (ps), every worker (ddp), or each worker a part (zero1 to zero3)"),
    ENUM("parallel", "consistency", parallel.consistency, consistencies, "bsp", "bsp: all workers, step by step"),
    ENUM("parallel", "aggregate", parallel.aggregate, aggregates, "mean", "how the workers' gradients become one"),
    FILEPATH("parallel", "aggregate_plugin", parallel.aggregate_plugin, "a .so that exports shoal_aggregator",
             .only = "parallel.aggregate=plugin"),
    FLOAT("parallel", "trim_fraction", parallel.trim_fraction, 0, 0.5, "0.1",
          "part of the values left out at each end", .flags = OPTION_HIGH_OPEN,
          .only = "parallel.aggregate=trimmed_mean"),
    ENUM("parallel", "update_at", parallel.update_at, update_ats, "server", "who applies the optimizer",
         .only = "parallel.data=ps"),
    ENUM("parallel", "update", parallel.update, updates, "step",
         "step: all or nothing; eager: each part as soon as it is complete"),
    INT("parallel", "bucket_bytes", parallel.bucket_bytes, 1, 1073741824, "4194304",
        "layers are exchanged together up to this", .unit = "bytes"),
    INT("parallel", "message_bytes", parallel.message_bytes, 65536, 67108864, "1048576",
        "largest payload of a message", .unit = "bytes", .multiple = 65536),
    INT("parallel", "credit_bytes", parallel.credit_bytes, 65536, 17179869184.0, "16777216",
        "unanswered payload of one worker at one server", .unit = "bytes", .only = "parallel.data=ps"),
    ENUM("parallel", "batch_norm_stats", parallel.batch_norm_stats, batch_norm_stats, "local",
         "whose samples normalise: each worker's own, or all workers'", .only = "model.batch_norm=true"),
    INT("parallel", "threads", parallel.threads, 0, 4096, "0",
        "of a process; 0: from the cores and the job's processes here"),
    INT("parallel", "digest_every", parallel.digest_every, 0, TOP, "100",
        "steps between comparisons of the weights' digest; 0: never", .unit = "steps"),
    ENUM("parallel", "transport", parallel.transport, transports, "auto",
         "payload between processes of one host: shared memory where possible, or forced"),
    ENUM("parallel", "placement", parallel.placement, placements, "part",
         "each owner has a part of every layer, or whole layers in turn"),
    INT("parallel", "prefetch_layers", parallel.prefetch_layers, 0, 1024, "1", "layers gathered ahead of their use",
        .only = "parallel.data=zero3", .unit = "layers"),
    INT("parallel", "persistence_threshold", parallel.persistence_threshold, 0, TOP, "0",
        "layers of fewer elements stay gathered", .only = "parallel.data=zero3", .unit = "elements"),
    BOOL("parallel", "keep_last_layer", parallel.keep_last_layer, "false",
         "the last layer stays gathered from forward to backward", .only = "parallel.data=zero3"),

    FILEPATH("snapshot", "dir", snapshot.dir, "folder of the snapshots; none are taken without it"),
    INT("snapshot", "every", snapshot.every, 0, TOP, "0", "steps between snapshots; 0: at the end and on signals",
        .unit = "steps", .only = "snapshot.dir"),
    INT("snapshot", "keep", snapshot.keep, 1, 1e6, "2", "newest snapshots that are kept", .only = "snapshot.dir"),
    TEXT("snapshot", "best.metric", snapshot.best_metric, "", "the best snapshot by this metric is kept too",
         .choices = metrics, .only = "snapshot.dir"),
    ENUM("snapshot", "best.mode", snapshot.best_mode, best_modes, "max", "of loss the default is min",
         .only = "snapshot.best.metric"),

    INT("cluster", "workers", cluster.workers, 1, 4096, "1", "worker processes"),
    INT("cluster", "servers", cluster.servers, 1, 4096, "1", "server processes", .only = "parallel.data=ps"),
    INT("cluster", "elastic.min", cluster.elastic_min, 0, 4096, "0",
        "go on without lost workers down to so many; 0: a lost worker ends the job", .unit = "workers",
        .only = "parallel.data=ddp|zero1|zero2|zero3"),
    BOOL("cluster", "mixed_processors", cluster.mixed_processors, "false",
         "let ranks of other BLAS core types join; results then differ in their last bits"),
    FLOAT("cluster", "stop_timeout", cluster.stop_timeout, 0, 86400, "4", "SIGTERM waits this long for the step",
          .unit = "seconds"),
    FLOAT("cluster", "timeouts.start", cluster.timeouts.start, 0, 86400, "120", "for all to join",
          .unit = "seconds", .flags = OPTION_LOW_OPEN),
    FLOAT("cluster", "timeouts.stall_report", cluster.timeouts.stall_report, 0, 86400, "10",
          "between lines that say who is missing", .unit = "seconds", .flags = OPTION_LOW_OPEN),
    FLOAT("cluster", "timeouts.worker_dead", cluster.timeouts.worker_dead, 0, 86400, "60",
          "silence after which a worker is given up", .unit = "seconds", .flags = OPTION_LOW_OPEN),
    FLOAT("cluster", "timeouts.server_dead", cluster.timeouts.server_dead, 0, 86400, "60",
          "silence after which a server is given up", .unit = "seconds", .flags = OPTION_LOW_OPEN),
    FLOAT("cluster", "timeouts.coordinator_dead", cluster.timeouts.coordinator_dead, 0, 86400, "60",
          "silence after which the coordinator is given up", .unit = "seconds", .flags = OPTION_LOW_OPEN),

    INT("evaluate", "every", evaluate.every, 0, TOP, "0", "steps between evaluations; 0: only at the end",
        .unit = "steps"),
    TEXT("evaluate", "early_stop.metric", evaluate.early_stop_metric, "", "end when this no longer improves",
         .choices = metrics),
    INT("evaluate", "early_stop.patience", evaluate.early_stop_patience, 1, TOP, "5",
        "evaluations without improvement before the end", .unit = "evaluations",
        .only = "evaluate.early_stop.metric"),
    FLOAT("evaluate", "early_stop.min_delta", evaluate.early_stop_min_delta, 0, INFINITY, "0",
          "smallest change that counts", .only = "evaluate.early_stop.metric"),
};

static const char *const sections[] = {"",         "data",     "model",   "optimizer", "lr_schedule",
                                       "parallel", "snapshot", "cluster", "evaluate",  NULL};

int option_count(void)
{
    return (int)(sizeof rows / sizeof rows[0]);
}

const struct option *option_at(int index)
{
    return &rows[index];
}

int option_index(const struct option *option)
{
    return (int)(option - rows);
}

const char *option_section(int index)
{
    int count = (int)(sizeof sections / sizeof sections[0]);
    return index >= 0 && index < count ? sections[index] : NULL;
}
