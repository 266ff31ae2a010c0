#include "config/env.h"

#include "config_test.h"

/* "A=1 B=2" as an environment. */
static int read_words(struct env_identity *identity, const char *words, struct errbuf *err)
{
    char line[512];
    char *list[16] = {NULL};
    int count = 0;
    snprintf(line, sizeof line, "%s", words);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        list[count++] = word;
    }
    errbuf_init(err);
    return env_identity_read(identity, list, err);
}

static void each_family_is_understood(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int rank, workers, servers;
        const char *cluster, *role, *rank_origin;
    } rows[] = {
        {"PATH=/bin", -1, -1, -1, "", "", ""},
        {"SHOAL_RANK=2 SHOAL_WORKERS=4 SHOAL_SERVERS=3 SHOAL_CLUSTER=tcp://h:7070", 2, 4, 3, "tcp://h:7070", "",
         "SHOAL_RANK"},
        {"DMLC_ROLE=worker DMLC_NUM_WORKER=4 DMLC_NUM_SERVER=2 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000",
         -1, 4, 2, "tcp://10.0.0.1:9000", "worker", ""},
        {"DMLC_ROLE=scheduler", -1, -1, -1, "", "coordinator", ""},
        {"DMLC_ROLE=server DMLC_RANK=3 DMLC_NUM_SERVER=4 DMLC_NUM_WORKER=2", 3, 2, 4, "", "server", "DMLC_RANK"},
        {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=29500", 1, 2, -1, "tcp://[::1]:29500", "", "RANK"},
        {"SLURM_PROCID=0 SLURM_NTASKS=8", 0, 8, -1, "", "", "SLURM_PROCID"},
        {"OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6", 5, 6, -1, "", "", "OMPI_COMM_WORLD_RANK"},
        {"RANK=1 SLURM_PROCID=1 WORLD_SIZE=2 SLURM_NTASKS=2", 1, 2, -1, "", "", "RANK"},
        {"SHOAL_CLUSTER=tcp://a:1 MASTER_ADDR=a MASTER_PORT=1", -1, -1, -1, "tcp://a:1", "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct env_identity identity;
        struct errbuf err;
        if (read_words(&identity, rows[i].words, &err) != 0) {
            fail_msg("%s: %s", rows[i].words, err.text);
        }
        assert_int_equal(identity.rank, rows[i].rank);
        assert_int_equal(identity.workers, rows[i].workers);
        assert_int_equal(identity.servers, rows[i].servers);
        assert_string_equal(identity.cluster, rows[i].cluster);
        assert_string_equal(identity.role, rows[i].role);
        assert_string_equal(identity.rank_origin, rows[i].rank_origin);
    }
}

static void bad_or_disagreeing_variables_are_named(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"RANK=1 SLURM_PROCID=2", "environment: RANK=1 and SLURM_PROCID=2 disagree"},
        {"SHOAL_WORKERS=2 WORLD_SIZE=4", "environment: SHOAL_WORKERS=2 and WORLD_SIZE=4 disagree"},
        {"SHOAL_CLUSTER=tcp://a:1 MASTER_ADDR=b MASTER_PORT=1",
         "environment: SHOAL_CLUSTER (tcp://a:1) and MASTER_ADDR (tcp://b:1) disagree"},
        {"DMLC_PS_ROOT_URI=a DMLC_PS_ROOT_PORT=1 MASTER_ADDR=a MASTER_PORT=2",
         "environment: DMLC_PS_ROOT_URI (tcp://a:1) and MASTER_ADDR (tcp://a:2) disagree"},
        {"RANK=4 WORLD_SIZE=4", "environment: RANK=4 with WORLD_SIZE=4, expected a rank from 0 to 3"},
        {"RANK=x", "environment RANK: found \"x\", expected an integer from 0 to 1000000"},
        {"RANK=", "environment RANK: found \"\", expected an integer from 0 to 1000000"},
        {"RANK=-1", "environment RANK: found \"-1\", expected an integer from 0 to 1000000"},
        {"WORLD_SIZE=0", "environment WORLD_SIZE: found \"0\", expected an integer from 1 to 1000000"},
        {"WORLD_SIZE=99999999999",
         "environment WORLD_SIZE: found \"99999999999\", expected an integer from 1 to 1000000"},
        {"MASTER_ADDR=a", "environment: MASTER_ADDR is set and MASTER_PORT is missing, expected both"},
        {"MASTER_PORT=1", "environment: MASTER_PORT is set and MASTER_ADDR is missing, expected both"},
        {"MASTER_PORT=1 MASTER_ADDR=", "environment: MASTER_PORT is set and MASTER_ADDR is empty, expected both"},
        {"MASTER_PORT=70000 MASTER_ADDR=a",
         "environment MASTER_PORT: found 70000, expected a port from 1 to 65535"},
        {"SHOAL_CLUSTER=", "environment SHOAL_CLUSTER: found \"\", expected tcp://host:port"},
        {"DMLC_ROLE=boss", "environment DMLC_ROLE: found \"boss\", expected one of worker, server, scheduler"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct env_identity identity;
        struct errbuf err;
        assert_int_not_equal(read_words(&identity, rows[i][0], &err), 0);
        assert_string_equal(err.text, rows[i][1]);
    }
}

static void values_are_found_by_whole_name(void **state)
{
    (void)state;
    char *const environment[] = {"ABC=1", "AB=2", NULL};
    assert_string_equal(env_find(environment, "AB"), "2");
    assert_null(env_find(environment, "A"));
    assert_null(env_find(NULL, "A"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_family_is_understood),
        cmocka_unit_test(bad_or_disagreeing_variables_are_named),
        cmocka_unit_test(values_are_found_by_whole_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
