/* Every allocation of common/config fails once: job_load says so and loses nothing (ASan counts). The linker sends
 * the room's calls of the allocator here (--wrap). */
#include "config_test.h"

#include "config/reference.h"

/* The test's own switch, one thread. */
static int calls, failing_call;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
char *__real_strdup(const char *text);
FILE *__real_open_memstream(char **text, size_t *bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
char *__wrap_strdup(const char *text);
FILE *__wrap_open_memstream(char **text, size_t *bytes);

static int fails(void)
{
    return ++calls == failing_call;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

FILE *__wrap_open_memstream(char **text, size_t *bytes)
{
    return fails() ? NULL : __real_open_memstream(text, bytes);
}

/* 1 when the call of that number was not reached. */
static int load_failing_at(int call, const struct job_source *source)
{
    struct job *job = NULL;
    struct errbuf err;
    errbuf_init(&err);
    calls = 0;
    failing_call = call;
    int status = job_load(&job, source, &err);
    failing_call = 0;
    if (status != 0) {
        assert_int_equal(status, STATUS_NOMEM);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_null(job);
    }
    job_destroy(job);
    return calls < call;
}

static void each_allocation_of_loading_may_fail(void **state)
{
    (void)state;
    char path[] = "/tmp/shoal-nomem-XXXXXX";
    char *const environment[] = {"SHOAL_MODEL_HIDDEN=1,2,3", NULL};
    const char *sets[] = {"optimizer.no_decay=a,b", "optimizer.momentum=0.5"};
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    fputs(CONFIG_TEST_JOB "snapshot: {dir: x}\n", file);
    fclose(file);
    const struct job_source source = {.path = path, .environment = environment, .sets = sets, .sets_count = 2};
    int call = 1;
    while (!load_failing_at(call, &source)) {
        call++;
    }
    assert_true(call > 40);
    remove(path);
}

static void texts_are_null_without_memory(void **state)
{
    (void)state;
    struct job *job = config_test_good(CONFIG_TEST_JOB, NULL);
    char *(*const of_job[])(const struct job *) = {job_to_yaml, job_print_config};
    char *(*const of_table[])(void) = {reference_markdown, reference_man_page, reference_help};
    for (int i = 0; i < 5; i++) {
        calls = 0;
        failing_call = 1;
        assert_null(i < 2 ? of_job[i](job) : of_table[i - 2]());
        failing_call = 0;
    }
    struct errbuf err;
    calls = 0;
    failing_call = 2;
    assert_int_equal(job_check_resume(job, job, &err), STATUS_NOMEM);
    failing_call = 0;
    job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_of_loading_may_fail),
        cmocka_unit_test(texts_are_null_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
