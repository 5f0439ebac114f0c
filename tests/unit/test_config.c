/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"
#include "node/config.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char error[KVP_CONFIG_ERROR_MAX];
static char file[64];

static void clear_environment(void)
{
    static const char *const names[] = {
        "MOONCAKE_CONFIG_PATH", "MC_FORCE_MNNVL",      "MC_INTRANODE_NVLINK",
        "KVPLANE_CONFIG",       "KVPLANE_STORE_BYTES", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unsetenv(names[i]);
    }
    error[0] = '\0';
    (void)snprintf(file, sizeof file, "/tmp/kvp-config-XXXXXX");
    int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    (void)close(fd);
}

static void remove_file(void)
{
    (void)unlink(file);
}

TestSuite(config, .init = clear_environment, .fini = remove_file);

static void write_file(const char *text)
{
    FILE *out = fopen(file, "we");
    cr_assert_not_null(out);
    (void)fputs(text, out);
    (void)fclose(out);
}

#define READ(config_p, ...)                                                                        \
    kvp_config_read((int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(char *)),                   \
                    (const char *[]){__VA_ARGS__}, config_p, error)

static kvb_status_t read_nothing(struct kvp_config *config)
{
    return kvp_config_read(0, NULL, config, error);
}

#define REFUSED(word, ...)                                                                         \
    do {                                                                                           \
        struct kvp_config config_;                                                                 \
        cr_assert_eq(READ(&config_, __VA_ARGS__), KVB_ERR_INVALID);                                \
        cr_assert_not_null(strstr(error, word), "%s", error);                                      \
    } while (0)

Test(config, defaults_serve_on_loopback)
{
    struct kvp_config config;
    cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
    cr_assert_str_eq(config.listen, "127.0.0.1:8100");
    cr_assert_eq(config.drain_bound, 480000);
    cr_assert_eq(config.abort_bound, 200);
    cr_assert_eq(config.store_bytes, 1ull << 30);
    cr_assert_neq(config.engine_socket[0], '\0');
    kvp_config_cleanup(&config);
}

Test(config, the_command_line_wins_over_the_environment_and_that_over_the_file)
{
    struct kvp_config config;
    write_file("{\"store-bytes\": \"3GiB\", \"shards\": 7, \"insecure\": true}");
    (void)setenv("KVPLANE_CONFIG", file, 1);
    cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
    cr_assert_eq(config.store_bytes, 3ull << 30);
    cr_assert_eq(config.shards, 7);
    cr_assert(config.insecure);
    kvp_config_cleanup(&config);
    (void)setenv("KVPLANE_STORE_BYTES", "2GiB", 1);
    cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
    cr_assert_eq(config.store_bytes, 2ull << 30);
    kvp_config_cleanup(&config);
    cr_assert_eq(READ(&config, "--store-bytes", "5MiB", "--store-bytes=64MB"), KVB_OK, "%s", error);
    cr_assert_eq(config.store_bytes, 64ull << 20, "the last one");
    kvp_config_cleanup(&config);
}

Test(config, a_bad_value_is_refused_with_its_key_its_value_and_what_is_allowed)
{
    REFUSED("store-bytes", "--store-bytes=lots");
    cr_assert_not_null(strstr(error, "lots"));
    cr_assert_not_null(strstr(error, "0 to 64TiB"));
    REFUSED("1MiB to 64TiB", "--store-bytes=1");
    REFUSED("1MiB to 64TiB", "--store-bytes=0");
    REFUSED("0 to 64TiB", "--store-bytes=99999999999999999999GiB");
    REFUSED("shards", "--shards=0");
    REFUSED("shards", "--shards=-1");
    REFUSED("shards", "--shards=1.5");
    REFUSED("shards", "--shards=");
    REFUSED("auto rdma tcp loopback", "--transport=nvlink");
    REFUSED("none reset finish sleep", "--unversioned=Reset");
    REFUSED("drain-bound", "--drain-bound=forever");
    REFUSED("listen", "--listen=8100");
    REFUSED("listen", "--listen=127.0.0.1:65536");
    REFUSED("listen", "--listen=::1:80");
    REFUSED("tenants", "--tenants=a,b=much");
    REFUSED("tenants", "--tenants=a b");
    REFUSED("instances", "--instances=a,,b");
    REFUSED("--stroe-bytes", "--stroe-bytes=1GiB");
    REFUSED("needs a value", "--listen");
    REFUSED("serve", "serve");
}

Test(config, others_reach_it_only_with_tokens_or_insecure)
{
    struct kvp_config config;
    REFUSED("--token-file", "--listen=0.0.0.0:8100");
    REFUSED("--token-file", "--listen=[::]:8100");
    REFUSED("--token-file", "--listen=gpu-7:8100");
    REFUSED("--token-file", "--listen=gpu-7:8100", "--tls-cert-file=/c", "--tls-key-file=/k");
    static const char *const fine[][2] = {{"--listen=127.0.0.2:0", "--shards=1"},
                                          {"--listen=[::1]:0", "--shards=1"},
                                          {"--listen=localhost:0", "--shards=1"},
                                          {"--listen=0.0.0.0:0", "--insecure"},
                                          {"--listen=0.0.0.0:0", "--token-file=/x"}};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        cr_assert_eq(kvp_config_read(2, fine[i], &config, error), KVB_OK, "%s", error);
        kvp_config_cleanup(&config);
    }
}

Test(config, a_unix_socket_that_others_may_open_needs_tokens_or_insecure)
{
    struct kvp_config config;
    REFUSED("0600 or 0660", "--http-socket-mode=rw");
    REFUSED("0600 or 0660", "--http-socket-mode=");
    REFUSED("0600 or 0660", "--http-socket-mode=4755");
    REFUSED("0600 or 0660", "--http-socket-mode=68");
    REFUSED("--token-file", "--http-socket=/x", "--http-socket-mode=0660");
    REFUSED("--token-file", "--http-socket=/x", "--http-socket-mode=606");
    REFUSED("listen", "--listen=");
    static const char *const fine[][3] = {
        {"--http-socket=/x", "--listen=", "--http-socket-mode=0600"},
        {"--http-socket=/x", "--insecure", "--http-socket-mode=0666"},
        {"--http-socket=/x", "--token-file=/t", "--http-socket-mode=660"}};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        cr_assert_eq(kvp_config_read(3, fine[i], &config, error), KVB_OK, "%s", error);
        kvp_config_cleanup(&config);
    }
}

Test(config, tls_needs_certificate_and_key)
{
    REFUSED("give both or neither", "--tls-cert-file=/c");
    REFUSED("give both or neither", "--tls-key-file=/k");
    REFUSED("--tls-cert-file", "--tls-client-ca-file=/a");
}

Test(config, servers_that_are_driven_add_up_and_are_checked)
{
    struct kvp_config config;
    cr_assert_eq(READ(&config, "--engine", "vllm=http://a:1", "--engine=sglang=b@http://c:2",
                      "--engine", "vllm=http://d:3,vllm=http://e:4"),
                 KVB_OK, "%s", error);
    cr_assert_eq(config.nengines, 4);
    cr_assert_str_eq(config.engines[1].name, "b");
    cr_assert_str_eq(config.engines[3].name, "engine-3");
    cr_assert_str_eq(config.engine,
                     "vllm=http://a:1,sglang=b@http://c:2,vllm=http://d:3,vllm=http://e:4");
    kvp_config_cleanup(&config);
    REFUSED("engine: `vllm=a`", "--engine", "vllm=a");
    REFUSED("fleet-verbs", "--fleet-verbs", "some");
}

Test(config, a_bad_file_is_refused_by_name)
{
    write_file("{\"store-bytes\": ");
    REFUSED(file, "--config", file);
    write_file("[1]");
    REFUSED(file, "--config", file);
    write_file("{\"stor-bytes\": 1}");
    REFUSED("stor-bytes", "--config", file);
    write_file("{\"shards\": [1]}");
    REFUSED("shards", "--config", file);
    write_file("{\"shards\": 1, \"shards\": 2}");
    REFUSED(file, "--config", file);
    REFUSED("/nonexistent/kvplane", "--config=/nonexistent/kvplane");
    REFUSED("/tmp", "--config=/tmp");
}

/* B31: users of Mooncake bring their file along. */
Test(config, a_mooncake_file_gives_tenant_and_size)
{
    struct kvp_config config;
    static const struct {
        const char *json;
        const char *tenants;
    } good[] = {
        {"{}", ""},
        {"{\"tenant_id\": null}", ""},
        {"{\"tenant_id\": \"\"}", ""},
        {"{\"tenant_id\": \"  \"}", ""},
        {"{\"tenant_id\": \" a \", \"protocol\": \"tcp\"}", "a"},
    };
    (void)setenv("MOONCAKE_CONFIG_PATH", file, 1);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        write_file(good[i].json);
        cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
        cr_assert_str_eq(config.tenants, good[i].tenants);
        kvp_config_cleanup(&config);
    }
    write_file("{\"global_segment_size\": \"2 gb\", \"protocol\": \"rdma\"}");
    cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
    cr_assert_eq(config.store_bytes, 2ull << 30);
    kvp_config_cleanup(&config);
}

Test(config, a_bad_mooncake_file_is_refused_with_file_and_field)
{
    static const char *const bad[][2] = {
        {"{\"tenant_id\": 7}", "tenant_id"},
        {"{\"tenant_id\": [\"a\"]}", "tenant_id"},
        {"{\"tenant_id\": \"a/b\"}", "tenant_id"},
        {"{\"protocol\": \"nvlink\"}", "protocol"},
        {"{\"protocol\": 1}", "protocol"},
        {"{\"global_segment_size\": \"much\"}", "global_segment_size"},
        {"{\"global_segment_size\": -1}", "global_segment_size"},
        {"{\"tenant_id\": ", "line"},
    };
    (void)setenv("MOONCAKE_CONFIG_PATH", file, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file(bad[i][0]);
        REFUSED(bad[i][1], "--shards=1");
        cr_assert_not_null(strstr(error, file));
    }
    (void)setenv("MOONCAKE_CONFIG_PATH", "/nonexistent/mooncake.json", 1);
    REFUSED("/nonexistent/mooncake.json", "--shards=1");
    (void)setenv("MOONCAKE_CONFIG_PATH", "/tmp", 1);
    REFUSED("/tmp", "--shards=1");
}

Test(config, variables_that_make_sleep_unsafe_refuse_whatever_their_value)
{
    static const char *const names[] = {"MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"};
    static const char *const values[] = {"", "0", "1"};
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < 3; k++) {
            (void)setenv(names[i], values[k], 1);
            REFUSED(names[i], "--shards=1");
        }
        (void)unsetenv(names[i]);
    }
}

Test(config, vllms_drain_bound_is_understood_and_ours_wins)
{
    struct kvp_config config;
    (void)setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "90", 1);
    cr_assert_eq(read_nothing(&config), KVB_OK, "%s", error);
    cr_assert_eq(config.drain_bound, 90000);
    kvp_config_cleanup(&config);
    cr_assert_eq(READ(&config, "--drain-bound=2m"), KVB_OK, "%s", error);
    cr_assert_eq(config.drain_bound, 120000);
    kvp_config_cleanup(&config);
    (void)setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "soon", 1);
    REFUSED("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "--shards=1");
}

struct seen {
    uint32_t n;
    char names[4][KVB_NAME_MAX];
    uint64_t quotas[4];
};

static void see(void *arg, const char *tenant, uint64_t quota)
{
    struct seen *seen = arg;
    (void)snprintf(seen->names[seen->n], KVB_NAME_MAX, "%s", tenant);
    seen->quotas[seen->n++] = quota;
}

Test(config, tenants_have_names_and_perhaps_quotas)
{
    struct seen seen = {0};
    cr_assert(kvp_config_each_tenant("a=2GiB, b ,c=0", see, &seen));
    cr_assert_eq(seen.n, 3);
    cr_assert_str_eq(seen.names[1], "b");
    cr_assert_eq(seen.quotas[0], 2ull << 30);
    cr_assert_eq(seen.quotas[1], KVP_QUOTA_NONE);
    cr_assert_eq(seen.quotas[2], 0);
}

Test(config, what_is_shown_can_be_read_again)
{
    struct kvp_config config;
    cr_assert_eq(READ(&config, "--shards=9", "--drain-bound=7s", "--insecure"), KVB_OK);
    FILE *out = fopen(file, "we");
    kvp_config_show(&config, out);
    (void)fclose(out);
    kvp_config_cleanup(&config);
    cr_assert_eq(READ(&config, "--config", file), KVB_OK, "%s", error);
    cr_assert_eq(config.shards, 9);
    cr_assert_eq(config.drain_bound, 7000);
    cr_assert(config.insecure);
    kvp_config_cleanup(&config);
}

/* ---- of a cluster ---- */

#define ETCD "--etcd=http://10.0.0.1:2379, https://b:2379"

Test(config, with_etcd_a_share_needs_a_place_where_others_reach_it)
{
    struct kvp_config config;
    cr_assert_eq(READ(&config, ETCD, "--store-bytes=0"), KVB_OK, "%s", error);
    cr_assert_eq(config.store_bytes, 0);
    kvp_config_cleanup(&config);
    cr_assert_eq(READ(&config, ETCD, "--cluster-listen=127.0.0.1:0", "--transport=tcp"), KVB_OK,
                 "%s", error);
    struct kvp_cluster_config cluster = kvp_config_cluster(&config);
    cr_expect_str_eq(cluster.cluster_listen, "127.0.0.1:0");
    cr_expect_eq(cluster.lease, 10000);
    kvp_config_cleanup(&config);
    REFUSED("--cluster-listen", ETCD);
    REFUSED("--etcd", "--cluster-listen=127.0.0.1:0");
    REFUSED("1MiB to 64TiB", ETCD, "--store-bytes=5");
}

Test(config, a_transport_that_cannot_be_is_refused_with_what_is_possible)
{
    REFUSED("one of: auto rdma tcp loopback", ETCD, "--store-bytes=0", "--transport=cxl");
    REFUSED("one of: auto rdma tcp", ETCD, "--store-bytes=0", "--transport=loopback");
    REFUSED("one of: auto loopback", "--transport=tcp");
    REFUSED("one of: auto loopback", "--transport=rdma");
}

Test(config, gpu_memory_is_reached_by_rdma_only_where_there_is_some)
{
    struct kvp_config config = {0};
    cr_assert_eq(READ(&config, ETCD, "--store-bytes=0", "--gpu-rdma=direct"), KVB_OK);
    cr_expect_str_eq(config.gpu_rdma, "direct");
    kvp_config_cleanup(&config);
    cr_assert_eq(READ(&config, "--store-bytes=2MiB"), KVB_OK);
    cr_expect_str_eq(config.gpu_rdma, "staged");
    kvp_config_cleanup(&config);
    REFUSED("one of: staged", "--gpu-rdma=direct");
    REFUSED("one of: staged", ETCD, "--store-bytes=0", "--transport=tcp", "--gpu-rdma=direct");
    REFUSED("staged direct", ETCD, "--store-bytes=0", "--gpu-rdma=both");
}

Test(config, rdma_is_asked_for_with_its_limits)
{
    struct kvp_config config;
    cr_assert_eq(READ(&config, ETCD, "--cluster-listen=127.0.0.1:0", "--transport=rdma",
                      "--rdma-device=mlx5_0", "--rdma-gid-index=3", "--rdma-listen=[fe80::1]:0",
                      "--rdma-mtu=1024", "--rdma-timeout=1s"),
                 KVB_OK, "%s", error);
    struct kvp_cluster_config cluster = kvp_config_cluster(&config);
    cr_expect_str_eq(cluster.transport, "rdma");
    cr_expect_str_eq(cluster.rdma_device, "mlx5_0");
    cr_expect_str_eq(cluster.rdma_gid_index, "3");
    cr_expect_str_eq(cluster.rdma_listen, "[fe80::1]:0");
    cr_expect_eq(cluster.rdma_timeout, 1000);
    kvp_config_cleanup(&config);
    REFUSED("rdma-gid-index", ETCD, "--store-bytes=0", "--rdma-gid-index=x");
    REFUSED("0 to 65535", ETCD, "--store-bytes=0", "--rdma-gid-index=65536");
    REFUSED("rather than a name", ETCD, "--cluster-listen=127.0.0.1:0", "--rdma-listen=host:1");
    REFUSED("rdma-listen", ETCD, "--cluster-listen=127.0.0.1:0", "--rdma-listen=10.0.0.1");
    REFUSED("no share to serve", ETCD, "--store-bytes=0", "--rdma-listen=10.0.0.1:1");
    REFUSED("auto 256 512", ETCD, "--store-bytes=0", "--rdma-mtu=1500");
    REFUSED("1 to 7", ETCD, "--store-bytes=0", "--rdma-retries=8");
}

Test(config, what_others_reach_needs_a_secret_and_an_address_of_its_own)
{
    struct kvp_config config;
    REFUSED("--secret-file", ETCD, "--cluster-listen=10.0.0.1:0");
    REFUSED("--advertise", ETCD, "--cluster-listen=0.0.0.0:8102", "--secret-file=/x");
    REFUSED("advertise", ETCD, "--store-bytes=0", "--advertise=0.0.0.0:8102");
    REFUSED("advertise", ETCD, "--store-bytes=0", "--advertise=10.0.0.1:0");
    REFUSED("node-name", ETCD, "--store-bytes=0", "--node-name=a/b");
    REFUSED("cluster-listen", ETCD, "--cluster-listen=8102");
    static const char *const fine[][4] = {
        {ETCD, "--cluster-listen=10.0.0.1:0", "--secret-file=/x", "--node-name=a"},
        {ETCD, "--cluster-listen=10.0.0.1:0", "--insecure", "--node-name=a.b_c-1"},
        {ETCD, "--cluster-listen=0.0.0.0:1", "--secret-file=/x", "--advertise=gpu-7:1"},
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        cr_assert_eq(kvp_config_read(4, fine[i], &config, error), KVB_OK, "%s", error);
        kvp_config_cleanup(&config);
    }
}

Test(config, etcd_is_urls_with_credentials_in_pairs)
{
    REFUSED("http://127.0.0.1:2379", "--etcd=10.0.0.1:2379", "--store-bytes=0");
    REFUSED("http://127.0.0.1:2379", "--etcd=http://a:1,,http://b:1", "--store-bytes=0");
    REFUSED("etcd-prefix", ETCD, "--store-bytes=0", "--etcd-prefix=x");
    REFUSED("etcd-password-file", ETCD, "--store-bytes=0", "--etcd-user=a");
    REFUSED("etcd-key-file", ETCD, "--store-bytes=0", "--etcd-cert-file=/x");
}

Test(config, a_store_node_has_its_own_keys_read_in_the_same_way)
{
    struct kvp_store_config config;
    static const char *const none[] = {"--shards=3", "--huge-pages", "--listen=127.0.0.1:0"};
    static const char *const bad[][2] = {
        {"--engine-socket=/x", "--engine-socket"}, {"--store-bytes=0", "1MiB to 64TiB"},
        {"--listen=0.0.0.0:1", "--token-file"},    {"--cluster-listen=10.0.0.1:1", "--secret-file"},
        {"--cluster-listen=", "cluster-listen"},   {"--etcd=x", "etcd"},
        {"--tls-cert-file=/c", "tls-key-file"},
    };
    (void)setenv("KVPLANE_STORE_BYTES", "2GiB", 1);
    cr_assert_eq(kvp_store_config_read(3, none, &config, error), KVB_OK, "%s", error);
    cr_expect_eq(config.shards, 3);
    cr_expect(config.huge_pages);
    cr_expect_eq(config.store_bytes, 2ull << 30);
    cr_expect_str_eq(config.cluster_listen, "127.0.0.1:8102");
    kvp_store_config_cleanup(&config);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(kvp_store_config_read(1, &bad[i][0], &config, error), KVB_ERR_INVALID);
        cr_expect_not_null(strstr(error, bad[i][1]), "%s", error);
    }
}
