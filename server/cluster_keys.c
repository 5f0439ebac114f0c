/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster_keys.h"

#include "config_table.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

kvb_status_t kvp_split_address(const char *address, char *host, size_t host_cap, uint16_t *port_p)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address) {
        return KVB_ERR_INVALID;
    }
    const char *from = address;
    const char *to = colon;
    if (*from == '[') {
        from++;
        to--;
        if (to <= from || *to != ']') {
            return KVB_ERR_INVALID;
        }
    } else if (memchr(from, ':', (size_t)(to - from)) != NULL) {
        return KVB_ERR_INVALID; /* a bare IPv6 address: which colon is which? */
    }
    uint64_t port;
    if ((size_t)(to - from) >= host_cap || !kvp_parse_count(colon + 1, &port) || port > 65535) {
        return KVB_ERR_INVALID;
    }
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = '\0';
    *port_p = (uint16_t)port;
    return KVB_OK;
}

bool kvp_loopback_host(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

bool kvp_wildcard_host(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "*") == 0;
}

static kvb_status_t check_listen(const char *listen, const char *token_file, bool insecure,
                                 char *error)
{
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    if (kvp_split_address(listen, host, sizeof host, &port) != KVB_OK) {
        return kvp_refuse(error,
                          "listen: `%.64s` is not allowed: HOST:PORT, as 127.0.0.1:8100 or [::1]:0",
                          listen);
    }
    if (!kvp_loopback_host(host) && token_file[0] == '\0' && !insecure) {
        return kvp_refuse(error,
                          "listen: `%.64s` can be reached by others: give --token-file, or "
                          "--insecure if they may all do what its routes do",
                          listen);
    }
    return KVB_OK;
}

bool kvp_parse_mode(const char *text, mode_t *mode_p)
{
    size_t len = strspn(text, "01234567");
    if (text[len] != '\0' || len < 3 || len > 4 || (len == 4 && text[0] != '0')) {
        return false;
    }
    *mode_p = (mode_t)strtoul(text, NULL, 8);
    return true;
}

static kvb_status_t check_socket(const struct kvp_rest_config *config, char *error)
{
    mode_t mode;
    if (!kvp_parse_mode(config->http_socket_mode, &mode)) {
        return kvp_refuse(error, "http-socket-mode: `%.64s` is not allowed: octal, as 0600 or 0660",
                          config->http_socket_mode);
    }
    if (config->http_socket[0] != '\0' && (mode & 077) != 0 && config->token_file[0] == '\0' &&
        !config->insecure) {
        return kvp_refuse(error,
                          "http-socket-mode: %s lets others than its owner open http-socket: give "
                          "--token-file, or --insecure if they may all do what its routes do",
                          config->http_socket_mode);
    }
    return KVB_OK;
}

kvb_status_t kvp_check_rest(const struct kvp_rest_config *config, char *error)
{
    if ((config->tls_cert_file[0] == '\0') != (config->tls_key_file[0] == '\0')) {
        return kvp_refuse(error, "tls-cert-file and tls-key-file: give both or neither");
    }
    if (config->tls_client_ca_file[0] != '\0' && config->tls_cert_file[0] == '\0') {
        return kvp_refuse(error, "tls-client-ca-file: clients show certificates by TLS alone: give "
                                 "--tls-cert-file and --tls-key-file too");
    }
    kvb_status_t status = check_socket(config, error);
    if (status != KVB_OK || (config->listen[0] == '\0' && config->http_socket[0] != '\0')) {
        return status; /* or reached by no other way */
    }
    return check_listen(config->listen, config->token_file, config->insecure, error);
}

static kvb_status_t check_etcd(const struct kvp_cluster_config *config, char *error)
{
    for (const char *at = config->etcd; *at != '\0';) {
        char url[KVB_LAYOUT_MAX];
        at = kvp_next_item(at, url, sizeof url);
        if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) {
            return kvp_refuse(error,
                              "etcd: `%.128s` is not allowed: URLs separated by commas, as "
                              "http://127.0.0.1:2379",
                              config->etcd);
        }
    }
    if (config->etcd_prefix[0] != '/') {
        return kvp_refuse(error, "etcd-prefix: `%.64s` is not allowed: it begins with /",
                          config->etcd_prefix);
    }
    if ((config->etcd_user[0] == '\0') != (config->etcd_password_file[0] == '\0')) {
        return kvp_refuse(error, "etcd-user and etcd-password-file: give both or neither");
    }
    if ((config->etcd_cert_file[0] == '\0') != (config->etcd_key_file[0] == '\0')) {
        return kvp_refuse(error, "etcd-cert-file and etcd-key-file: give both or neither");
    }
    return KVB_OK;
}

/* How others come to the share. */
static kvb_status_t check_share(const struct kvp_cluster_config *config, char *error)
{
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    if (config->node_name[0] != '\0' && !kvb_name_valid(config->node_name)) {
        return kvp_refuse(error,
                          "node-name: `%.64s` is not allowed: letters, digits and ._-, at most 63",
                          config->node_name);
    }
    if (config->advertise[0] != '\0' &&
        (kvp_split_address(config->advertise, host, sizeof host, &port) != KVB_OK || port == 0 ||
         kvp_wildcard_host(host))) {
        return kvp_refuse(error,
                          "advertise: `%.64s` is not allowed: a HOST:PORT that others can connect "
                          "to",
                          config->advertise);
    }
    if (config->cluster_listen[0] == '\0') {
        return KVB_OK;
    }
    if (kvp_split_address(config->cluster_listen, host, sizeof host, &port) != KVB_OK) {
        return kvp_refuse(error,
                          "cluster-listen: `%.64s` is not allowed: HOST:PORT, as 10.0.0.1:8102",
                          config->cluster_listen);
    }
    if (kvp_wildcard_host(host) && config->advertise[0] == '\0') {
        return kvp_refuse(error,
                          "cluster-listen: `%.64s` is every address of this host: give --advertise "
                          "HOST:PORT, by which others reach it",
                          config->cluster_listen);
    }
    if (!kvp_loopback_host(host) && config->secret_file[0] == '\0' && !config->insecure) {
        return kvp_refuse(error,
                          "cluster-listen: `%.64s` can be reached by others: give --secret-file, "
                          "or --insecure if they may all read and write this share",
                          config->cluster_listen);
    }
    return KVB_OK;
}

static kvb_status_t check_rdma(const struct kvp_cluster_config *config, char *error)
{
    char host[KVB_LAYOUT_MAX];
    uint16_t port;
    uint64_t number;
    struct in6_addr address;
    if (strcmp(config->rdma_gid_index, "auto") != 0 &&
        (!kvp_parse_count(config->rdma_gid_index, &number) || number > UINT16_MAX)) {
        return kvp_refuse(error, "rdma-gid-index: `%.64s` is not allowed: auto, or 0 to 65535",
                          config->rdma_gid_index);
    }
    if (config->rdma_listen[0] == '\0') {
        return KVB_OK;
    }
    if (kvp_split_address(config->rdma_listen, host, sizeof host, &port) != KVB_OK ||
        (inet_pton(AF_INET, host, &address) != 1 && inet_pton(AF_INET6, host, &address) != 1)) {
        return kvp_refuse(error,
                          "rdma-listen: `%.64s` is not allowed: HOST:PORT, HOST an address rather "
                          "than a name, as 10.0.0.1:8102",
                          config->rdma_listen);
    }
    if (config->cluster_listen[0] == '\0') {
        return kvp_refuse(error, "rdma-listen: there is no share to serve: give --cluster-listen "
                                 "too");
    }
    return KVB_OK;
}

kvb_status_t kvp_check_cluster(const struct kvp_cluster_config *config, char *error)
{
    kvb_status_t status = check_etcd(config, error);
    if (status == KVB_OK) {
        status = check_share(config, error);
    }
    return status == KVB_OK ? check_rdma(config, error) : status;
}
