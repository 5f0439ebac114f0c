/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "config_table.h"

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

/* ---- what users of Mooncake bring along ---- */

static kvb_status_t refuse_field(const char *path, const char *field, const char *allowed,
                                 char *error)
{
    return kvp_refuse(error, "MOONCAKE_CONFIG_PATH: %s: `%s` must be %s", path, field, allowed);
}

static kvb_status_t mooncake_tenant(const json_t *json, const char *path, struct kvp_given *given,
                                    char *error)
{
    const json_t *value = json_object_get(json, "tenant_id");
    if (value == NULL || json_is_null(value)) {
        return KVB_OK;
    }
    char name[KVB_NAME_MAX];
    if (!json_is_string(value) || !kvp_trim(json_string_value(value), name, sizeof name)) {
        return refuse_field(path, "tenant_id", "text of at most 63 characters", error);
    }
    if (name[0] == '\0') {
        return KVB_OK;
    }
    if (!kvb_name_valid(name)) {
        return refuse_field(path, "tenant_id", "made of letters, digits and ._-", error);
    }
    return kvp_give(given, "tenants", name, path);
}

static kvb_status_t mooncake_fields(const json_t *json, const char *path, struct kvp_given *given,
                                    char *error)
{
    char text[64];
    const json_t *protocol = json_object_get(json, "protocol");
    if (protocol != NULL &&
        (!json_is_string(protocol) || (strcmp(json_string_value(protocol), "rdma") != 0 &&
                                       strcmp(json_string_value(protocol), "tcp") != 0))) {
        return refuse_field(path, "protocol",
                            "rdma or tcp: others hand out keys to engine memory, so no engine "
                            "could sleep safely",
                            error);
    }
    const json_t *size = json_object_get(json, "global_segment_size");
    uint64_t bytes;
    if (size != NULL &&
        (!kvp_scalar_text(size, text, sizeof text) || !kvp_parse_bytes(text, &bytes))) {
        return refuse_field(path, "global_segment_size", "a number of bytes, or like 4GB", error);
    }
    if (size != NULL && bytes > 0) {
        kvb_status_t status = kvp_give(given, "store-bytes", text, path);
        if (status != KVB_OK) {
            return status;
        }
    }
    return mooncake_tenant(json, path, given, error);
}

static kvb_status_t read_mooncake(struct kvp_given *given, char *error)
{
    /* Present is enough, whatever the value: that is how that system reads them. */
    static const char *const unsafe[] = {"MC_FORCE_MNNVL", "MC_INTRANODE_NVLINK"};
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++) {
        if (getenv(unsafe[i]) != NULL) {
            return kvp_refuse(error,
                              "%s is set (to `%s`): it asks for a transport that hands out keys to "
                              "engine memory, so sleep mode cannot be offered. Unset it",
                              unsafe[i], getenv(unsafe[i]));
        }
    }
    const char *bound = getenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
    if (bound != NULL) {
        kvb_status_t status =
            kvp_give(given, "drain-bound", bound, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
        if (status != KVB_OK) {
            return status;
        }
    }
    const char *path = getenv("MOONCAKE_CONFIG_PATH");
    if (path == NULL) {
        return KVB_OK;
    }
    json_t *json;
    char why[KVP_CONFIG_ERROR_MAX];
    kvb_status_t status = kvp_load_object(path, &json, why);
    if (status != KVB_OK) {
        (void)snprintf(error, KVP_CONFIG_ERROR_MAX, "MOONCAKE_CONFIG_PATH: %.*s",
                       KVP_CONFIG_ERROR_MAX - 32, why);
        return status;
    }
    status = mooncake_fields(json, path, given, error);
    json_decref(json);
    return status;
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

/* What values mean together. */
static kvb_status_t check(void *arg, char *error)
{
    struct kvp_config *config = arg;
    const struct kvp_cluster_config cluster = kvp_config_cluster(config);
    kvb_status_t status =
        kvp_check_listen(config->listen, config->token_file, config->insecure, error);
    if (status == KVB_OK) {
        status = check_names(config, error);
    }
    if (status == KVB_OK) {
        status = kvp_check_cluster(&cluster, error);
    }
    if (status == KVB_OK) {
        status = check_store(config, error);
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

void kvp_config_help(FILE *out)
{
    kvp_table_help(&table, out);
}

void kvp_config_table(FILE *out)
{
    kvp_table_markdown(&table, out);
}

void kvp_config_show(const struct kvp_config *config, FILE *out)
{
    kvp_table_show(&table, config, out);
}
