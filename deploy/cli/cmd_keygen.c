#include "base/errbuf.h"
#include "base/status.h"
#include "deploy/cli/command.h"
#include "files/fs.h"
#include "net/net.h"

struct options {
    const char *keys, *name;
};
#define AT(field) offsetof(struct options, field)
static const struct arg rows[] = {
    {"keys", ARG_TEXT, AT(keys), "DIR", "the folder; made when it is not there", 0, 0},
    {"name", ARG_TEXT, AT(name), "NAME", "coordinator, server, worker, operator, or a name for --key-name", 0, 0},
};
static const struct args_table table = {
    "shoal keygen --keys DIR --name NAME",
    "Makes a CURVE key pair: NAME.public, for every machine, and NAME.secret, for the one that is NAME.\n"
    "Who may talk is listed in DIR/allow.list, a line each: PUBLIC_KEY role, where role is worker, server,\n"
    "operator or reader.",
    rows,
    sizeof rows / sizeof *rows,
    0,
    0,
    "",
    NULL};

static int generate(const struct options *options)
{
    struct errbuf err;
    errbuf_init(&err);
    if (!options->keys || !options->name)
        return command_fail(2, "keygen: missing: %s%s%s", options->keys ? "" : "--keys DIR",
                            options->keys || options->name ? "" : ", ", options->name ? "" : "--name NAME");
    int status = fs_make_folders(options->keys, &err);
    if (status == 0)
        status = net_keys_generate(options->keys, options->name, &err);
    if (status != 0)
        return command_fail(status == STATUS_INVALID ? 2 : 1, "keygen: %s", err.text);
    printf("%s/%s.public\n%s/%s.secret\n", options->keys, options->name, options->keys, options->name);
    return 0;
}

static int keygen_run(int argc, char **argv)
{
    struct options options = {0};
    struct args_list operands;
    int code = 0;
    if (!command_parse(&table, argc, argv, &options, &operands, &code))
        return code;
    code = generate(&options);
    args_close(&table, &options, &operands);
    return code;
}

const struct command command_keygen = {"keygen", "make keys for a cluster beyond one machine", keygen_run};
