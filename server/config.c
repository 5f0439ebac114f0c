/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "config_table.h"
#include "gate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STORE_BYTES_MIN (1ull << 20)

static const struct kvp_key keys[] = {
#define X(name, type, key, standard, limits, what)                                                 \
    {key, KVP_VALUE_##type, standard, limits, what, offsetof(struct kvp_config, name)},
    KVP_CONFIG(X)
#undef X
};

static kvb_status_t read_mooncake(struct kvp_given *given, void *config, char *error)
{
    return kvp_mooncake_read(given, &((struct kvp_config *)config)->mooncake, error);
}

/* ---- the check ---- */

static void ignore_tenant(void *arg, const char *tenant, uint64_t quota)
{
    (void)arg;
    (void)tenant;
    (void)quota;
}

static bool instances_valid(const char *list)
{
    char name[KVB_NAME_MAX];
    while (*list != '\0') {
        list = kvp_next_item(list, name, sizeof name);
        if (!kvb_name_valid(name)) {
            return false;
        }
    }
    return true;
}

static kvb_status_t check_store(const struct kvp_config *config, char *error)
{
    bool cluster = config->etcd[0] != '\0';
    if (config->store_bytes < STORE_BYTES_MIN && (config->store_bytes > 0 || !cluster)) {
        return kvp_refuse(error, "store-bytes: `%llu` is not allowed: 1MiB to 64TiB%s",
                          (unsigned long long)config->store_bytes,
                          cluster ? ", or 0" : "; 0 only with etcd");
    }
    if (cluster && strcmp(config->transport, "loopback") == 0) {
        return kvp_refuse(error, "transport: loopback reaches this process alone; with etcd it is "
                                 "one of: auto rdma tcp");
    }
    if (!cluster && strcmp(config->transport, "auto") != 0 &&
        strcmp(config->transport, "loopback") != 0) {
        return kvp_refuse(error,
                          "transport: %s goes to other store nodes, which are found through etcd: "
                          "give --etcd, or one of: auto loopback",
                          config->transport);
    }
    bool rdma = strcmp(config->transport, "auto") == 0 || strcmp(config->transport, "rdma") == 0;
    if (strcmp(config->gpu_rdma, "direct") == 0 && (!cluster || !rdma)) {
        return kvp_refuse(error, "gpu-rdma: direct is for rdma to store nodes, which there is none "
                                 "of: give --etcd and --transport auto or rdma, or one of: staged");
    }
    if (!cluster && config->cluster_listen[0] != '\0') {
        return kvp_refuse(error, "cluster-listen: nobody would hear of it: give --etcd too");
    }
    if (cluster && config->store_bytes > 0 && config->cluster_listen[0] == '\0') {
        return kvp_refuse(error, "store-bytes: this process's share would be part of the cluster: "
                                 "give --cluster-listen HOST:PORT, where the others reach it, or "
                                 "--store-bytes 0");
    }
    return KVB_OK;
}

struct kvp_cluster_config kvp_config_cluster(const struct kvp_config *config)
{
    return (struct kvp_cluster_config){
        KVP_CLUSTER_KEYS(KVP_CLUSTER_FIELD).transport = config->transport,
        .cluster_listen = config->cluster_listen, .insecure = config->insecure};
}

struct kvp_rest_config kvp_config_rest(const struct kvp_config *config)
{
    return (struct kvp_rest_config){KVP_REST_KEYS(KVP_CLUSTER_FIELD).listen = config->listen};
}

static kvb_status_t check_names(const struct kvp_config *config, char *error)
{
    if (!kvp_config_each_tenant(config->tenants, ignore_tenant, NULL)) {
        return kvp_refuse(
            error,
            "tenants: `%.64s` is not allowed: NAME or NAME=QUOTA, separated by commas, "
            "as a=2GiB,b",
            config->tenants);
    }
    if (!instances_valid(config->instances)) {
        return kvp_refuse(error,
                          "instances: `%.64s` is not allowed: names of letters, digits and ._-, "
                          "separated by commas",
                          config->instances);
    }
    return KVB_OK;
}

static kvb_status_t default_socket(struct kvp_config *config)
{
    if (config->engine_socket[0] != '\0') {
        return KVB_OK;
    }
    char path[512];
    const char *dir = getenv("XDG_RUNTIME_DIR");
    if (dir != NULL && dir[0] == '/') {
        (void)snprintf(path, sizeof path, "%s/kvplane.sock", dir);
    } else {
        (void)snprintf(path, sizeof path, "/tmp/kvplane-%u.sock", (unsigned)geteuid());
    }
    char *copy = strdup(path);
    if (copy == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    free(config->engine_socket);
    config->engine_socket = copy;
    return KVB_OK;
}

/* Whether engines could sleep is asked only where they may; what there is no such thing as is
 * refused in any case. */
static kvb_status_t check_sleep(const struct kvp_config *config, char *error)
{
    const struct kvp_mooncake *mooncake = &config->mooncake;
    const struct kvp_gate_facts facts = {.transport = config->transport,
                                         .protocol = mooncake->protocol,
                                         .protocol_source = mooncake->protocol_source,
                                         .pool = mooncake->pool,
                                         .pool_source = mooncake->pool_source};
    kvb_status_t status = config->sleep_mode ? kvp_gate_check(&facts, error) : KVB_OK;
    return status == KVB_OK ? kvp_mooncake_check(mooncake, error) : status;
}

static kvb_status_t check_engines(struct kvp_config *config, char *error)
{
    char why[256];
    if (kvp_engine_specs(config->engine, config->engines, &config->nengines, why) != KVB_OK) {
        return kvp_refuse(error, "engine: %s", why);
    }
    return KVB_OK;
}

/* What values mean together. */
static kvb_status_t check(void *arg, char *error)
{
    struct kvp_config *config = arg;
    const struct kvp_cluster_config cluster = kvp_config_cluster(config);
    const struct kvp_rest_config rest = kvp_config_rest(config);
    kvb_status_t status = kvp_check_rest(&rest, error);
    if (status == KVB_OK) {
        status = check_names(config, error);
    }
    if (status == KVB_OK) {
        status = check_engines(config, error);
    }
    if (status == KVB_OK) {
        status = kvp_check_cluster(&cluster, error);
    }
    if (status == KVB_OK) {
        status = check_store(config, error);
    }
    if (status == KVB_OK) {
        status = check_sleep(config, error);
    }
    return status == KVB_OK ? default_socket(config) : status;
}

static const struct kvp_config_table table = {
    .keys = keys,
    .nkeys = sizeof keys / sizeof keys[0],
    .size = sizeof(struct kvp_config),
    .weakest = read_mooncake,
    .check = check,
};

kvb_status_t kvp_config_read(int argc, const char *const *argv, struct kvp_config *config_p,
                             char *error)
{
    return kvp_table_read(&table, argc, argv, config_p, error);
}

void kvp_config_cleanup(struct kvp_config *config)
{
    kvp_table_cleanup(&table, config);
}

bool kvp_config_each_tenant(const char *tenants,
                            void (*each)(void *arg, const char *tenant, uint64_t quota), void *arg)
{
    char item[KVB_NAME_MAX + 32];
    while (*tenants != '\0') {
        tenants = kvp_next_item(tenants, item, sizeof item);
        uint64_t quota = KVP_QUOTA_NONE;
        char *equals = strchr(item, '=');
        if (equals != NULL) {
            *equals = '\0';
            if (!kvp_parse_bytes(equals + 1, &quota)) {
                return false;
            }
        }
        if (!kvb_name_valid(item)) {
            return false;
        }
        each(arg, item, quota);
    }
    return true;
}

void kvp_config_options(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    (void)command;
    kvp_table_options(&table, tell, ctx);
}

void kvp_config_table(FILE *out)
{
    kvp_table_markdown(&table, out);
}

void kvp_config_show(const struct kvp_config *config, FILE *out)
{
    kvp_table_show(&table, config, out);
}
