/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can sleep and what cannot, told at start (vLLM's connector has the same gate), and what
 * becomes of the files and variables of Mooncake's users.
 */
#include "config.h"
#include "gate.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ETCD "--etcd=http://10.0.0.1:2379"

static char error[KVP_CONFIG_ERROR_MAX];
static char file[64];

/* Nothing of Mooncake's or ours is in the environment, whatever the tests are run in. */
static void begin(void)
{
    char name[256];
    static const char *const ours[] = {"KVPLANE_", "MC_", "MOONCAKE_", "VLLM_"};
    for (char **at = environ; *at != NULL;) {
        size_t len = strcspn(*at, "=");
        bool is_ours = false;
        for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
            is_ours = is_ours || strncmp(*at, ours[i], strlen(ours[i])) == 0;
        }
        if (is_ours && len < sizeof name) {
            (void)snprintf(name, sizeof name, "%.*s", (int)len, *at);
            (void)unsetenv(name); /* the next one is at its place now */
        } else {
            at++;
        }
    }
    error[0] = '\0';
    (void)snprintf(file, sizeof file, "/tmp/kvp-gate-XXXXXX");
    int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    (void)close(fd);
}

static void end(void)
{
    (void)unlink(file);
}

TestSuite(gate, .init = begin, .fini = end);
TestSuite(mooncake, .init = begin, .fini = end);

static void bring(const char *json)
{
    FILE *out = fopen(file, "we");
    cr_assert_not_null(out);
    (void)fputs(json, out);
    (void)fclose(out);
    (void)setenv("MOONCAKE_CONFIG_PATH", file, 1);
}

#define N(array) (sizeof(array) / sizeof(array)[0])
#define READ(config_p, ...)                                                                        \
    kvp_config_read((int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)),                   \
                    (const char *[]){__VA_ARGS__}, config_p, error)
#define ACCEPTED(config_p, ...) cr_assert_eq(READ(config_p, __VA_ARGS__), KVB_OK, "%s", error)
#define REFUSED(word, ...)                                                                         \
    do {                                                                                           \
        struct kvp_config refused_;                                                                \
        cr_assert_eq(READ(&refused_, __VA_ARGS__), KVB_ERR_INVALID, "%s", word);                   \
        cr_assert_not_null(strstr(error, word), "%s instead of %s", error, word);                  \
    } while (0)

/* Alone; in a cluster with no share of its own. */
#define ALONE      "--shards=1"
#define IN_CLUSTER ETCD, "--store-bytes=0"

/* ---- the gate ---- */

Test(gate, over_rdma_and_tcp_engines_can_sleep)
{
    static const char *const protocols[] = {"rdma", "tcp"};
    for (size_t i = 0; i < N(protocols); i++) {
        char json[64];
        struct kvp_config config;
        (void)snprintf(json, sizeof json, "{\"protocol\": \"%s\"}", protocols[i]);
        bring(json);
        ACCEPTED(&config, ALONE);
        kvp_config_cleanup(&config);
        ACCEPTED(&config, IN_CLUSTER);
        cr_expect_str_eq(config.transport, protocols[i]);
        kvp_config_cleanup(&config);
    }
}

Test(gate, a_transport_of_ours_can_sleep_whichever_it_is)
{
    struct kvp_config config;
    static const char *const cluster[] = {"--transport=auto", "--transport=tcp",
                                          "--transport=rdma"};
    static const char *const alone[] = {"--transport=auto", "--transport=loopback"};
    for (size_t i = 0; i < N(cluster); i++) {
        ACCEPTED(&config, IN_CLUSTER, cluster[i]);
        kvp_config_cleanup(&config);
    }
    for (size_t i = 0; i < N(alone); i++) {
        ACCEPTED(&config, alone[i]);
        kvp_config_cleanup(&config);
    }
    const struct kvp_gate_facts later = {"shm", "", "", "", ""}; /* one that comes without a rule */
    cr_expect_eq(kvp_gate_check(&later, error), KVB_ERR_INVALID);
}

Test(gate, over_everything_else_they_cannot_and_the_refusal_says_what_to_change)
{
    static const struct {
        const char *protocol;
        const char *why;
    } refused[] = {
        {"nvlink", "map the engine's memory"},
        {"nvlink_intra", "map the engine's memory"},
        {"mnnvl", "map the engine's memory"},
        {"hip", "map the engine's memory"},
        {"cxl", "map the engine's memory"},
        {"ub", "map the engine's memory"},
        {"ascend", "cannot"},
        {"hccl", "cannot"},
        {"nvmeof", "cannot"},
        {"barex", "a library of its own"},
        {"efa", "no reliable connections"},
        {"quic", "does not know it"},
        {"RDMA", "does not know it"},
        {"rdma ", "does not know it"},
        {"auto", "one of: rdma tcp"},
        {"loopback", "one of: rdma tcp"},
    };
    for (size_t i = 0; i < N(refused); i++) {
        char json[64];
        (void)snprintf(json, sizeof json, "{\"protocol\": \"%s\"}", refused[i].protocol);
        bring(json);
        for (int cluster = 0; cluster < 2; cluster++) {
            if (cluster) {
                REFUSED(refused[i].protocol, IN_CLUSTER);
            } else {
                REFUSED(refused[i].protocol, ALONE);
            }
            cr_expect_not_null(strstr(error, refused[i].why), "%s", error);
            cr_expect_not_null(strstr(error, "`protocol` of "), "%s", error);
            cr_expect_not_null(strstr(error, file), "%s", error);
            cr_expect_not_null(strstr(error, "rdma"), "what to say instead: %s", error);
        }
        (void)unsetenv("MOONCAKE_CONFIG_PATH");
        (void)setenv("MOONCAKE_PROTOCOL", refused[i].protocol, 1);
        REFUSED("MOONCAKE_PROTOCOL", ALONE);
        (void)unsetenv("MOONCAKE_PROTOCOL");
    }
}

Test(gate, memory_that_others_hold_cannot_sleep)
{
    struct kvp_config config;
    static const char *const pools[] = {"NVLINK", "INTRA_NODE_NVLINK", "BAREX", "OTHER"};
    for (size_t i = 0; i < N(pools); i++) {
        char json[64];
        (void)snprintf(json, sizeof json, "{\"custom_mem_pool\": \"%s\"}", pools[i]);
        bring(json);
        REFUSED(pools[i], ALONE);
        cr_expect_not_null(strstr(error, "`custom_mem_pool` of "), "%s", error);
        cr_expect_not_null(strstr(error, "Leave it out"), "%s", error);
        ACCEPTED(&config, "--sleep-mode=false");
        kvp_config_cleanup(&config);
    }
    bring("{\"custom_mem_pool\": \"\"}");
    ACCEPTED(&config, ALONE);
    kvp_config_cleanup(&config);
}

Test(gate, variables_that_ask_for_nvlink_count_whatever_their_value)
{
    static const char *const names[] = {"MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"};
    static const char *const values[] = {"", "0", "1", "false"};
    struct kvp_config config;
    for (size_t i = 0; i < N(names); i++) {
        for (size_t k = 0; k < N(values); k++) {
            (void)setenv(names[i], values[k], 1);
            REFUSED(names[i], ALONE);
            cr_expect_not_null(strstr(error, "Unset it"), "%s", error);
            cr_expect_not_null(strstr(error, "--sleep-mode=false"), "%s", error);
            REFUSED(names[i], IN_CLUSTER, "--transport=tcp"); /* not overridden by ours */
            bring("{\"protocol\": \"tcp\"}");
            REFUSED(names[i], ALONE); /* nor by a file's */
            (void)unsetenv("MOONCAKE_CONFIG_PATH");
            ACCEPTED(&config, "--sleep-mode=false");
            kvp_config_cleanup(&config);
        }
        (void)unsetenv(names[i]);
    }
}

Test(gate, without_a_file_or_with_one_that_is_silent_engines_can_sleep)
{
    struct kvp_config config;
    static const char *const silent[] = {"{}", "{\"protocol\": null}",
                                         "{\"device_name\": \"\", \"metadata_server\": \"\"}"};
    ACCEPTED(&config, ALONE);
    cr_expect(config.sleep_mode, "on where nothing is said");
    kvp_config_cleanup(&config);
    for (size_t i = 0; i < N(silent); i++) { /* Mooncake's own default is rdma */
        bring(silent[i]);
        ACCEPTED(&config, ALONE);
        cr_expect_str_eq(config.transport, "auto");
        kvp_config_cleanup(&config);
    }
}

Test(gate, a_file_that_is_missing_is_an_error_of_its_own)
{
    (void)setenv("MOONCAKE_CONFIG_PATH", "/nonexistent/mooncake.json", 1);
    REFUSED("MOONCAKE_CONFIG_PATH: /nonexistent/mooncake.json", ALONE);
    REFUSED("MOONCAKE_CONFIG_PATH: /nonexistent/mooncake.json", "--sleep-mode=false");
    (void)setenv("MOONCAKE_CONFIG_PATH", "", 1);
    REFUSED("MOONCAKE_CONFIG_PATH", ALONE);
    REFUSED("mooncake-config: /nonexistent/mine", "--mooncake-config=/nonexistent/mine");
}

Test(gate, with_sleep_mode_off_a_transport_must_still_exist)
{
    bring("{\"protocol\": \"nvlink\"}");
    REFUSED("one of: rdma tcp", "--sleep-mode=false");
    cr_expect_null(strstr(error, "cannot sleep"), "%s", error);
}

static uint32_t open_descriptors(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    cr_assert_not_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

/* vLLM's gate must not import Mooncake; ours neither verbs nor CUDA, nor open a device. */
Test(gate, nothing_is_loaded_or_opened_for_it)
{
    static const char *const never[] = {"libcuda", "libibverbs", "librdmacm", "libmlx", "librxe"};
    static char line[1024];
    struct kvp_config config;
    bring("{\"protocol\": \"rdma\", \"device_name\": \"mlx5_0\"}");
    uint32_t before = open_descriptors();
    ACCEPTED(&config, IN_CLUSTER);
    cr_expect_str_eq(config.transport, "rdma");
    kvp_config_cleanup(&config);
    cr_expect_eq(open_descriptors(), before);
    FILE *maps = fopen("/proc/self/maps", "re");
    cr_assert_not_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        for (size_t i = 0; i < N(never); i++) {
            cr_expect_null(strstr(line, never[i]), "%s", line);
        }
    }
    (void)fclose(maps);
}

/* ---- what is taken over ---- */

Test(mooncake, what_has_an_equivalent_is_taken_over)
{
    struct kvp_config config;
    bring("{\"local_hostname\": \"10.0.0.7\", \"metadata_server\": \"P2PHANDSHAKE\","
          " \"master_server_address\": \"10.0.0.1:50051\", \"protocol\": \"rdma\","
          " \"device_name\": \" mlx5_1 , mlx5_2\", \"mode\": \"embedded\","
          " \"global_segment_size\": \"4GB\", \"local_buffer_size\": \"1GB\","
          " \"tenant_id\": \"team-a\", \"enable_offload\": false, \"something_new\": [1]}");
    (void)setenv("MC_GID_INDEX", "3", 1);
    (void)setenv("MC_MTU", "1024", 1);
    (void)setenv("MC_TCP_SLICE_SIZE", "65536", 1);
    (void)setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "90", 1);
    ACCEPTED(&config, ETCD, "--cluster-listen=127.0.0.1:0");
    cr_expect_str_eq(config.transport, "rdma");
    cr_expect_str_eq(config.rdma_device, "mlx5_1");
    cr_expect_str_eq(config.rdma_gid_index, "3");
    cr_expect_str_eq(config.rdma_mtu, "1024");
    cr_expect_str_eq(config.tenants, "team-a");
    cr_expect_eq(config.store_bytes, 4ull << 30);
    cr_expect_eq(config.drain_bound, 90000);
    cr_expect_str_eq(config.mooncake.file, file);
    cr_expect_str_eq(config.mooncake.others, "something_new");
    kvp_config_cleanup(&config);
}

Test(mooncake, our_own_options_environment_and_file_count_more)
{
    struct kvp_config config;
    char own[80];
    bring("{\"protocol\": \"rdma\", \"device_name\": \"mlx5_1\", \"global_segment_size\": \"4GB\","
          " \"tenant_id\": \"theirs\"}");
    (void)setenv("KVPLANE_TENANTS", "ours", 1);
    (void)snprintf(own, sizeof own, "%s.own", file);
    FILE *out = fopen(own, "we");
    (void)fputs("{\"rdma-device\": \"ours_0\"}", out);
    (void)fclose(out);
    char option[128];
    (void)snprintf(option, sizeof option, "--config=%s", own);
    ACCEPTED(&config, ETCD, "--store-bytes=0", "--transport=tcp", option);
    cr_expect_str_eq(config.transport, "tcp");
    cr_expect_str_eq(config.rdma_device, "ours_0");
    cr_expect_str_eq(config.tenants, "ours");
    cr_expect_eq(config.store_bytes, 0);
    kvp_config_cleanup(&config);
    (void)unlink(own);
    bring("{\"protocol\": \"nvlink\"}"); /* so it is used for nothing */
    ACCEPTED(&config, IN_CLUSTER, "--transport=tcp");
    kvp_config_cleanup(&config);
}

Test(mooncake, a_file_counts_more_than_its_variables_and_ours_is_read_instead)
{
    struct kvp_config config;
    char option[128];
    bring("{\"global_segment_size\": \"2GB\"}");
    (void)setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "3GB", 1);
    (void)setenv("MOONCAKE_DEVICE", "mlx5_3", 1);
    ACCEPTED(&config, ALONE);
    cr_expect_eq(config.store_bytes, 2ull << 30);
    cr_expect_str_eq(config.rdma_device, "mlx5_3");
    kvp_config_cleanup(&config);
    (void)setenv("MOONCAKE_CONFIG_PATH", "/nonexistent", 1);
    (void)snprintf(option, sizeof option, "--mooncake-config=%s", file);
    ACCEPTED(&config, option);
    cr_expect_eq(config.store_bytes, 2ull << 30);
    kvp_config_cleanup(&config);
    ACCEPTED(&config, "--mooncake-config=");
    cr_expect_eq(config.store_bytes, 3ull << 30, "no file, whatever the environment says");
    kvp_config_cleanup(&config);
}

Test(mooncake, mc_force_tcp_counts_more_than_a_protocol)
{
    struct kvp_config config;
    bring("{\"protocol\": \"rdma\"}");
    (void)setenv("MC_FORCE_TCP", "", 1);
    ACCEPTED(&config, IN_CLUSTER);
    cr_expect_str_eq(config.transport, "tcp");
    kvp_config_cleanup(&config);
    ACCEPTED(&config, ALONE); /* where bytes go nowhere */
    cr_expect_str_eq(config.transport, "auto");
    kvp_config_cleanup(&config);
}

Test(mooncake, sizes_are_read_as_it_writes_them)
{
    static const struct {
        const char *json;
        uint64_t bytes;
    } good[] = {
        {"4294967296", 4ull << 30}, {"\"4294967296\"", 4ull << 30}, {"\"4GB\"", 4ull << 30},
        {"\" 4 gb \"", 4ull << 30}, {"\"512MB\"", 512ull << 20},    {"\"2048kb\"", 2ull << 20},
        {"\"1.5GB\"", 3ull << 29},  {"\"1048576b\"", 1ull << 20},   {"\"0.25 GB\"", 1ull << 28},
        {"\"4GiB\"", 4ull << 30},
    };
    static const char *const bad[] = {
        "\"much\"",
        "-1",
        "\"-1\"",
        "true",
        "1.5",
        "[4]",
        "\"\"",
        "\".5GB\"",
        "\"1.GB\"",
        "{}",
        "\"1.2.3GB\"",
        "\"4 PB\"",
        "\"1e9\"",
        "\"0x1000\"",
        "\"4GB 1\"",
        "1e300",
        "\"1,5GB\"",
        "\"99999999999TB\"",
        "\"17179869185.5GB\"",
        "\"1.0000000001GB\"",
    };
    char json[128];
    struct kvp_config config;
    for (size_t i = 0; i < N(good); i++) {
        (void)snprintf(json, sizeof json, "{\"global_segment_size\": %s}", good[i].json);
        bring(json);
        ACCEPTED(&config, ALONE);
        cr_expect_eq(config.store_bytes, good[i].bytes, "%s", good[i].json);
        kvp_config_cleanup(&config);
    }
    for (size_t i = 0; i < N(bad); i++) {
        (void)snprintf(json, sizeof json, "{\"global_segment_size\": %s}", bad[i]);
        bring(json);
        REFUSED("`global_segment_size` of ", ALONE);
        cr_expect_not_null(strstr(error, file), "%s", error);
    }
}

Test(mooncake, every_field_of_another_type_is_refused_with_its_name_and_file)
{
    static const struct {
        const char *field;
        const char *bad[6];
    } fields[] = {
        {"protocol", {"1", "true", "[]", "{}", "\"\""}},
        {"device_name", {"1", "true", "[\"mlx5_0\"]", "{}"}},
        {"mode", {"1", "false", "[]", "\"cluster\"", "\"\""}},
        {"global_segment_size", {"true", "[]", "{}", "\"x\"", "0.5"}},
        {"local_buffer_size", {"true", "[]", "\"x\"", "0", "\"0GB\"", "-1"}},
        {"tenant_id", {"7", "true", "[\"a\"]", "\"a/b\"", "{}"}},
        {"metadata_server", {"1", "[]", "false"}},
        {"master_server_address", {"50051", "[]", "{}"}},
        {"local_hostname", {"1", "[]", "true"}},
        {"enable_offload", {"7", "\"maybe\"", "[]"}},
        {"enable_ssd_offload", {"7", "\"maybe\"", "{}"}},
        {"ssd_offload_path", {"7", "true", "{}"}},
        {"custom_mem_pool", {"7", "true", "[]"}},
    };
    for (size_t i = 0; i < N(fields); i++) {
        for (size_t k = 0; k < N(fields[i].bad) && fields[i].bad[k] != NULL; k++) {
            char json[128];
            char name[64];
            (void)snprintf(json, sizeof json, "{\"%s\": %s}", fields[i].field, fields[i].bad[k]);
            (void)snprintf(name, sizeof name, "`%s` of ", fields[i].field);
            bring(json);
            REFUSED(name, ALONE);
            cr_expect_not_null(strstr(error, file), "%s", error);
            cr_expect_not_null(strstr(error, " must be "), "%s", error);
        }
    }
}

Test(mooncake, a_value_that_our_key_does_not_take_is_refused_by_its_source)
{
    (void)setenv("MC_MTU", "9000", 1);
    REFUSED("rdma-mtu: `9000` (MC_MTU)", ALONE);
    (void)unsetenv("MC_MTU");
    bring("{\"global_segment_size\": 4096}");
    REFUSED("store-bytes", ALONE);
    bring("{\"global_segment_size\": \"100TB\"}");
    REFUSED("store-bytes: `109951162777600` (`global_segment_size` of ", ALONE);
}

Test(mooncake, modes_and_segments_fit)
{
    struct kvp_config config;
    static const struct {
        const char *json;
        const char *refused; /* NULL: accepted */
        uint64_t alone, cluster;
    } cases[] = {
        {"{\"global_segment_size\": 0}", NULL, 1ull << 30, 0}, /* of before there were modes */
        {"{\"mode\": \"standalone-store\"}", NULL, 1ull << 30, 1ull << 30},
        {"{\"mode\": \"standalone-store\", \"global_segment_size\": 0}", NULL, 1ull << 30, 0},
        {"{\"mode\": \"embedded\", \"global_segment_size\": \"2GB\"}", NULL, 2ull << 30,
         2ull << 30},
        {"{\"mode\": \"embedded\"}", NULL, 1ull << 30, 1ull << 30},
        {"{\"mode\": \"embedded\", \"global_segment_size\": 0}", "embedded", 0, 0},
        {"{\"mode\": \"standalone-store\", \"global_segment_size\": \"2GB\"}", "standalone", 0, 0},
    };
    for (size_t i = 0; i < N(cases); i++) {
        bring(cases[i].json);
        if (cases[i].refused != NULL) {
            REFUSED(cases[i].refused, ALONE);
            cr_expect_not_null(strstr(error, "`global_segment_size` of "), "%s", error);
            continue;
        }
        ACCEPTED(&config, ALONE);
        cr_expect_eq(config.store_bytes, cases[i].alone, "%s", cases[i].json);
        kvp_config_cleanup(&config);
        ACCEPTED(&config, ETCD, "--cluster-listen=127.0.0.1:0");
        cr_expect_eq(config.store_bytes, cases[i].cluster, "%s", cases[i].json);
        kvp_config_cleanup(&config);
    }
}

Test(mooncake, what_became_of_each_is_remembered)
{
    struct kvp_config config;
    struct kvp_mooncake found;
    bring("{\"protocol\": \"tcp\", \"device_name\": \"a\", \"tenant_id\": \"t\","
          " \"master_server_address\": \"m:1\"}");
    ACCEPTED(&config, "--tenants=ours");
    found = config.mooncake;
    kvp_config_cleanup(&config);
    uint32_t n[KVP_MOONCAKE_LEFT + 1] = {0};
    for (size_t i = 0; i < KVP_MOONCAKE_ROWS_MAX; i++) {
        n[found.rows[i].fate]++;
    }
    cr_expect_eq(n[KVP_MOONCAKE_TAKEN], 1, "device_name");
    cr_expect_eq(n[KVP_MOONCAKE_OVERRIDDEN], 1, "tenant_id");
    cr_expect_eq(n[KVP_MOONCAKE_LEFT], 2, "protocol, since there is no etcd, and the master");
}
