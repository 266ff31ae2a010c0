/* shoal: the operator's command. */
#include <string.h>

#include "base/account.h"
#include "deploy/cli/command.h"

int main(int argc, char **argv)
{
    memory_keep_heap();
    if (argc < 2) {
        command_print_all(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        command_print_all(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("shoal " SHOAL_VERSION);
        return 0;
    }
    const struct command *command = command_find(argv[1]);
    if (command)
        return command->run(argc - 1, argv + 1);
    const char *nearest = command_nearest(argv[1]);
    if (nearest)
        return command_fail(2, "no command \"%.80s\"; did you mean %s?", argv[1], nearest);
    return command_fail(2, "no command \"%.80s\"; see shoal --help", argv[1]);
}
