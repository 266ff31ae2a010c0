#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/errbuf.h"
#include "config/reference.h"
#include "files/fs.h"

/* The block between README's two markers is what `shoal help markdown` prints. */
static void readme_shows_every_option_as_the_table_has_it(void **state)
{
    (void)state;
    struct errbuf err;
    char *readme = NULL;
    size_t bytes = 0;
    errbuf_init(&err);
    assert_int_equal(fs_read_file(SHOAL_SOURCE_DIR "/README.md", 1 << 20, &readme, &bytes, &err), 0);
    char *begin = strstr(readme, "<!-- options: begin");
    char *end = strstr(readme, "<!-- options: end -->");
    assert_non_null(begin);
    assert_non_null(end);
    begin = strchr(begin, '\n') + 1;
    *end = '\0';
    char *reference = reference_markdown();
    assert_non_null(reference);
    assert_string_equal(begin, reference);
    free(reference);
    free(readme);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(readme_shows_every_option_as_the_table_has_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
