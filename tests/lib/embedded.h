/* A whole cluster in one process, as `shoal run --embedded` starts it: a coordinator, servers (none for a ring) and workers as
 * threads that share one ZeroMQ context and talk over inproc. A test fills an order, embedded_run returns when every role has returned
 * and keeps what they said. Nothing can hang: at the deadline every role is told to stop, and one that does not obey ends
 * the test program with what is known. One test thread; cmocka's fail for what a test could not go on from. */
#ifndef SHOAL_TESTS_EMBEDDED_H
#define SHOAL_TESTS_EMBEDDED_H

#include <stdint.h>

#include <jansson.h>

struct client;

enum { EMBEDDED_RANKS = 8, EMBEDDED_SETS = 32, EMBEDDED_TEXT = 512, EMBEDDED_SHA = 65 };

struct embedded_order {
    const char *yaml; /* text of the job file; borrowed */
    char sets[EMBEDDED_SETS][EMBEDDED_TEXT];
    int sets_count;
    int workers, servers; /* 0: 1 */
    int threads;          /* of each worker and server; 0: 1 */
    int sockets;          /* servers listen on tcp loopback: parallel.transport then decides how payload moves */
    const char *folder;   /* embedded_folder_create's: metrics, export and log go there */
    const char *init;     /* NULL: none */
    int resume;
    const char *resume_path; /* NULL: snapshot.dir */
    const char *name;        /* stem of the files in folder; NULL: "run" */
    int stop_at;             /* >= 1: the coordinator is told to stop once this step was announced; needs log_every 1 */
    int trace;               /* 1: the timeline is written, into result's trace_path */
    int stop_all;            /* with stop_at: every role is, as when a terminal sends SIGINT */
    int jobs;                /* 0 and 1: one job with `once`; 2: the same once more, submitted, on the same cluster */
    double seconds;          /* deadline; 0: 60 */
};

struct embedded_step {
    int64_t step, samples;
    double loss, lr, grad_norm; /* NaN and infinities as they were */
    int skipped;
};

struct embedded_evaluation {
    int64_t step;
    double loss, accuracy;
    char set[16];
};

struct embedded_result {
    int coordinator, server[EMBEDDED_RANKS], worker[EMBEDDED_RANKS]; /* statuses */
    char why[EMBEDDED_TEXT];                                         /* the coordinator's reason */
    char worker_why[EMBEDDED_RANKS][EMBEDDED_TEXT];
    int refused; /* job_load said no; why has the line, nothing ran */
    int servers; /* that were started: 0 in a ring */
    struct embedded_step *steps;
    int steps_count;
    struct embedded_evaluation *evaluations;
    int evaluations_count;
    json_t *summary; /* NULL: none was written */
    char sha256[EMBEDDED_SHA]; /* of the export, computed here; "" without one */
    char export_path[EMBEDDED_TEXT], trace_path[EMBEDDED_TEXT];
    char *output, *log; /* what a person saw; what the roles logged */
};

/* Removed by embedded_folder_remove with all that is in it. */
void embedded_folder_create(char folder[EMBEDDED_TEXT]);
void embedded_folder_remove(const char *folder);

/* Adds "key=value" as --set would. */
void embedded_set(struct embedded_order *order, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs and parses. Books that were written are compared with their formulas whatever the status. */
void embedded_run(const struct embedded_order *order, struct embedded_result *result);
/* embedded_books.c: fails the test when the books of a run do not balance; embedded_run calls it. */
void embedded_check_books(const struct embedded_result *result);
void embedded_result_close(struct embedded_result *result);

/* Fails the test, with everything that was said, unless every role returned `status`. */
void embedded_expect(const struct embedded_order *order, const struct embedded_result *result, int status);
/* embedded_run, and every role must have returned 0. */
void embedded_run_well(const struct embedded_order *order, struct embedded_result *result);
/* The last evaluation, which must be there. */
const struct embedded_evaluation *embedded_last(const struct embedded_result *result);
/* Right predictions of the last evaluation, over rows rows. */
int64_t embedded_right(const struct embedded_result *result, int64_t rows);
/* A number of the summary, of worker `rank`: {"model_state_bytes", "parameters"}; fails when it is not there. */
int64_t embedded_bytes(const struct embedded_result *result, int rank, const char *group, const char *name);
/* A tensor of the export, count floats; fails when it is not there. */
void embedded_tensor(const struct embedded_result *result, const char *name, float *out, int64_t count);
/* Fails unless found is within tolerance of wanted. */
void embedded_near(const char *what, double found, double wanted, double tolerance);

#endif
