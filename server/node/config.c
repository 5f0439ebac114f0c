/* SPDX-License-Identifier: Apache-2.0 */
#include "node/config.h"

#include "config_table.h"

static const struct kvp_key keys[] = {
#define X(name, type, key, standard, limits, what)                                                 \
    {key, KVP_VALUE_##type, standard, limits, what, offsetof(struct kvp_store_config, name)},
    KVP_STORE_CONFIG(X)
#undef X
};

struct kvp_cluster_config kvp_store_config_cluster(const struct kvp_store_config *config)
{
    return (struct kvp_cluster_config){
        KVP_CLUSTER_KEYS(KVP_CLUSTER_FIELD).transport = config->transport,
        .cluster_listen = config->cluster_listen, .insecure = config->insecure};
}

struct kvp_rest_config kvp_store_config_rest(const struct kvp_store_config *config)
{
    return (struct kvp_rest_config){KVP_REST_KEYS(KVP_CLUSTER_FIELD).listen = config->listen};
}

static kvb_status_t check(void *arg, char *error)
{
    struct kvp_store_config *config = arg;
    const struct kvp_cluster_config cluster = kvp_store_config_cluster(config);
    const struct kvp_rest_config rest = kvp_store_config_rest(config);
    kvb_status_t status = kvp_check_rest(&rest, error);
    if (status == KVB_OK && config->cluster_listen[0] == '\0') {
        status = kvp_refuse(error, "cluster-listen: a store node needs one: HOST:PORT");
    }
    return status == KVB_OK ? kvp_check_cluster(&cluster, error) : status;
}

static const struct kvp_config_table table = {
    .keys = keys,
    .nkeys = sizeof keys / sizeof keys[0],
    .size = sizeof(struct kvp_store_config),
    .check = check,
};

kvb_status_t kvp_store_config_read(int argc, const char *const *argv,
                                   struct kvp_store_config *config_p, char *error)
{
    return kvp_table_read(&table, argc, argv, config_p, error);
}

void kvp_store_config_cleanup(struct kvp_store_config *config)
{
    kvp_table_cleanup(&table, config);
}

void kvp_store_config_options(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    (void)command;
    kvp_table_options(&table, tell, ctx);
}

void kvp_store_config_table(FILE *out)
{
    kvp_table_markdown(&table, out);
}

void kvp_store_config_show(const struct kvp_store_config *config, FILE *out)
{
    kvp_table_show(&table, config, out);
}
