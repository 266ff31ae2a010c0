/* Loading OpenBLAS when it is missing, incomplete, wrong, or told its core type. Every case runs in a child, since
 * a process loads it once. The linker sends dlopen and dlsym here first (--wrap). */
#include "tensor_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errbuf.h"
#include "base/status.h"
#include "tensor/gemm.h"

enum fault { FAULT_NONE, FAULT_MISSING, FAULT_INCOMPLETE, FAULT_WRONG };
static enum fault fault;

void *__real_dlopen(const char *name, int flags);
void *__real_dlsym(void *handle, const char *symbol);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *handle, const char *symbol);

void *__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(fault == FAULT_MISSING ? "libopenblas-not-there.so.0" : name, flags);
}

/* Leaves c as it is. */
static void idle_sgemm(void)
{
}

void *__wrap_dlsym(void *handle, const char *symbol)
{
    void (*function)(void) = idle_sgemm;
    void *address;
    if (fault == FAULT_INCOMPLETE && strcmp(symbol, "openblas_get_corename") == 0)
        return NULL;
    if (fault != FAULT_WRONG || strcmp(symbol, "cblas_sgemm") != 0)
        return __real_dlsym(handle, symbol);
    memcpy(&address, &function, sizeof address);
    return address;
}

/* Starts in a child with the fault and, unless NULL, the core type; text is the error or the core type in use, or
 * how the environment was changed. Returns the status. */
static int start_in_child(enum fault kind, const char *core_type, char text[512])
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct errbuf err;
        errbuf_init(&err);
        fault = kind;
        unsetenv("OPENBLAS_CORETYPE");
        if (core_type != NULL)
            setenv("OPENBLAS_CORETYPE", core_type, 1);
        int result = gemm_start(&err);
        if (result == gemm_start(&err) && core_type == NULL && getenv("OPENBLAS_CORETYPE") != NULL)
            snprintf(err.text, sizeof err.text, "OPENBLAS_CORETYPE was left in the environment");
        else if (result == 0)
            snprintf(err.text, sizeof err.text, "%s", gemm_core_type());
        ssize_t written = write(ends[1], err.text, strlen(err.text));
        _exit(written < 0 ? 100 : -result);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], text, 511);
    text[length > 0 ? length : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void a_missing_library_is_named(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(start_in_child(FAULT_MISSING, NULL, text), STATUS_IO);
    assert_non_null(strstr(text, "libopenblas-not-there.so.0"));
}

static void a_library_without_a_function_is_refused(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(start_in_child(FAULT_INCOMPLETE, NULL, text), STATUS_IO);
    assert_non_null(strstr(text, "openblas_get_corename"));
}

static void wrong_products_are_refused(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(start_in_child(FAULT_WRONG, NULL, text), STATUS_NUMERIC);
    assert_non_null(strstr(text, "wrong products"));
}

static void a_core_type_is_chosen_and_the_environment_restored(void **state)
{
    char text[512];
    (void)state;
    assert_int_equal(start_in_child(FAULT_NONE, NULL, text), STATUS_OK);
    assert_true(text[0] != '\0');
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        assert_string_equal(text, "SkylakeX");
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        assert_string_equal(text, "Haswell");
#endif
}

static void the_users_core_type_is_left_alone(void **state)
{
    char text[512];
    (void)state;
#ifdef __x86_64__
    assert_int_equal(start_in_child(FAULT_NONE, "Nehalem", text), STATUS_OK);
    assert_string_equal(text, "Nehalem");
#else
    (void)text;
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(a_library_without_a_function_is_refused),
        cmocka_unit_test(wrong_products_are_refused),
        cmocka_unit_test(a_core_type_is_chosen_and_the_environment_restored),
        cmocka_unit_test(the_users_core_type_is_left_alone),
    };
    return cmocka_run_group_tests_name("tensor gemm start", tests, NULL, NULL);
}
