/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CLUSTER_KEYS_H
#define SERVER_CLUSTER_KEYS_H

#include "config_values.h"

#include "base/link.h"
#include "base/status.h"

#include <sys/types.h>

/*
 * The keys that the daemon and a store node have in common (server/config_table.h): how a cluster
 * is reached and how a share is served to it, and how the REST API is served.
 */
#define KVP_CLUSTER_KEYS(X)                                                                        \
    X(node_name, TEXT, "node-name", "", "",                                                        \
      "name of this process's share in the cluster, the same after a restart; empty: made of the " \
      "address that is advertised")                                                                \
    X(advertise, TEXT, "advertise", "", "",                                                        \
      "HOST:PORT by which others reach cluster-listen; empty: that itself")                        \
    X(etcd, TEXT, "etcd", "", "",                                                                  \
      "endpoints of the etcd that the cluster agrees through, separated by commas, as "            \
      "http://10.0.0.1:2379,http://10.0.0.2:2379")                                                 \
    X(etcd_prefix, TEXT, "etcd-prefix", "/kvplane/", "",                                           \
      "of every key there; one for each cluster")                                                  \
    X(etcd_user, TEXT, "etcd-user", "", "", "user of etcd; needs etcd-password-file")              \
    X(etcd_password_file, TEXT, "etcd-password-file", "", "",                                      \
      "file whose first line is that user's password")                                             \
    X(etcd_ca_file, TEXT, "etcd-ca-file", "", "",                                                  \
      "PEM file of the authorities that etcd's certificate may come from; empty: the system's")    \
    X(etcd_cert_file, TEXT, "etcd-cert-file", "", "",                                              \
      "PEM file of the certificate shown to etcd; needs etcd-key-file")                            \
    X(etcd_key_file, TEXT, "etcd-key-file", "", "", "PEM file of that certificate's key")          \
    X(etcd_bound, TIME, "etcd-bound", "3s", "100ms 5m",                                            \
      "what etcd has not answered by then has failed, over all endpoints")                         \
    X(lease, TIME, "lease", "10s", "1s 10m",                                                       \
      "a process is gone from the cluster so long after its last sign of life")                    \
    X(secret_file, TEXT, "secret-file", "", "",                                                    \
      "file of the secret that all processes of the cluster prove to each other before anything "  \
      "else, 1 to 256 bytes; blanks at its end do not count")                                      \
    X(rdma_device, TEXT, "rdma-device", "", "",                                                    \
      "name of the RDMA device, as `rdma link` shows it; empty: the first that is usable")         \
    X(rdma_port, COUNT, "rdma-port", "0", "0 255",                                                 \
      "port of that device; 0: the first that is active")                                          \
    X(rdma_gid_index, TEXT, "rdma-gid-index", "auto", "",                                          \
      "which of its addresses: a number, or auto: the first of RoCE v2 that others can reach")     \
    X(rdma_listen, TEXT, "rdma-listen", "", "",                                                    \
      "HOST:PORT at which others reach the share by RDMA, HOST an address of the device's "        \
      "network; empty: the device's own, and a free port")                                         \
    X(rdma_mtu, CHOICE, "rdma-mtu", "auto", "auto 256 512 1024 2048 4096",                         \
      "bytes of a packet; auto: the port's. Both ends use the smaller of theirs")                  \
    X(rdma_depth, COUNT, "rdma-depth", "0", "0 65536",                                             \
      "work requests posted on a queue pair; 0: 256")                                              \
    X(rdma_sge, COUNT, "rdma-sge", "0", "0 256",                                                   \
      "pieces of memory in one of them; 0: 16, or what the device can")                            \
    X(rdma_inline, COUNT, "rdma-inline", "0", "0 4096",                                            \
      "messages of up to so many bytes travel within their work request; 0: 128, or what the "     \
      "device can")                                                                                \
    X(rdma_window, COUNT, "rdma-window", "0", "0 1024",                                            \
      "messages under way each way on a queue pair; 0: 64")                                        \
    X(rdma_reads, COUNT, "rdma-reads", "0", "0 255",                                               \
      "READs under way on a queue pair; 0: what both devices can")                                 \
    X(rdma_timeout, TIME, "rdma-timeout", "67ms", "1ms 30s",                                       \
      "a packet that was not acknowledged is sent again after it")                                 \
    X(rdma_retries, COUNT, "rdma-retries", "7", "1 7", "so often")                                 \
    X(rdma_rnr_retries, COUNT, "rdma-rnr-retries", "6", "1 7",                                     \
      "how often a message is sent to a peer that has no room for it; 7: for ever")                \
    X(io_threads, COUNT, "io-threads", "2", "1 64", "threads that serve the share to others")      \
    X(lanes_max, COUNT, "lanes-max", "1024", "1 65536",                                            \
      "connections of peers that each of these threads admits; beside them, 64 that have not "     \
      "proven the secret yet")                                                                     \
    X(lanes_each_max, COUNT, "lanes-each-max", "64", "1 65536", "of them from one remote address") \
    X(hold, TIME, "hold", "60s", "1ms 1h", "how long a lookup's promise lasts at most")

#define KVP_REST_KEYS(X)                                                                           \
    X(token_file, TEXT, "token-file", "", "",                                                      \
      "file of accepted bearer tokens, one a line: TOKEN, or `read TOKEN` for one that may only "  \
      "read")                                                                                      \
    X(insecure, SWITCH, "insecure", "false", "",                                                   \
      "serve without tokens, and without a secret, although others than this host can reach it")   \
    X(http_socket, TEXT, "http-socket", "", "",                                                    \
      "path of a Unix socket that the REST API is served on, too, without TLS; with an empty "     \
      "listen on it alone. A socket that others than its owner may open (http-socket-mode) needs " \
      "token-file or insecure")                                                                    \
    X(http_socket_mode, TEXT, "http-socket-mode", "0600", "", "permissions of that socket")        \
    X(tls_cert_file, TEXT, "tls-cert-file", "", "",                                                \
      "PEM file of the certificate that the REST API is served with by TLS (1.2 or later), "       \
      "followed by those between it and its authority; needs tls-key-file. Read anew at SIGHUP")   \
    X(tls_key_file, TEXT, "tls-key-file", "", "", "PEM file of that certificate's key")            \
    X(tls_client_ca_file, TEXT, "tls-client-ca-file", "", "",                                      \
      "PEM file of the authorities that clients' certificates must come from; all but probes and " \
      "the status page then needs one")                                                            \
    X(requests_max, COUNT, "requests-max", "256", "1 65536",                                       \
      "REST requests in work; further ones are answered 503")                                      \
    X(requests_each_max, COUNT, "requests-each-max", "0", "0 65536",                               \
      "of them from one remote address; 0: three quarters of them. A Unix socket has no such "     \
      "limit")                                                                                     \
    X(connections_max, COUNT, "connections-max", "4096", "8 65536", "HTTP connections")            \
    X(connections_each_max, COUNT, "connections-each-max", "0", "0 65536",                         \
      "of them from one remote address, a further one is closed at once; 0: no limit of its own")  \
    X(idle_timeout, TIME, "idle-timeout", "150s", "1s 24h",                                        \
      "an HTTP connection without a request is closed after it")                                   \
    X(receive_timeout, TIME, "receive-timeout", "300s", "1s 24h",                                  \
      "a connection whose request, or whose TLS handshake, has begun and is not whole by then is " \
      "closed, when another comes or asks")                                                        \
    X(metrics_compat, SWITCH, "metrics-compat", "false", "",                                       \
      "/metrics also shows names of vLLM and of Mooncake")                                         \
    X(log_level, CHOICE, "log-level", "info", "error warn info debug trace", "lines to stderr")    \
    X(log_format, CHOICE, "log-format", "logfmt", "logfmt json", "of those lines")                 \
    X(dump_dir, TEXT, "dump-dir", "", "",                                                          \
      "folder in which SIGUSR1 leaves the whole state as a file; empty: $RUNTIME_DIRECTORY, "      \
      "$XDG_RUNTIME_DIR or /tmp")

/* The same of either program. Texts are borrowed. */
struct kvp_cluster_config {
#define X(name, type, key, standard, limits, what) KVP_CONFIG_##type name;
    KVP_CLUSTER_KEYS(X)
#undef X
    const char *transport;
    const char *cluster_listen; /* "": this process serves no share */
    bool insecure;
};
/* name, of the fields of a program's config */
#define KVP_CLUSTER_FIELD(name, type, key, standard, limits, what) .name = config->name,

/* HOST:PORT, [IPV6]:PORT; host at least KVB_LAYOUT_MAX bytes. INVALID. */
KVB_MUST_USE kvb_status_t kvp_split_address(const char *address, char *host, size_t host_cap,
                                            uint16_t *port_p);
bool kvp_loopback_host(const char *host);
/* Every address: nobody can be told to connect to it. */
bool kvp_wildcard_host(const char *host);

/* The same of either program. Texts are borrowed. */
struct kvp_rest_config {
#define X(name, type, key, standard, limits, what) KVP_CONFIG_##type name;
    KVP_REST_KEYS(X)
#undef X
    const char *listen;
};

/* Checks what is common, for a program's own check. INVALID: error says what to change. */
/* False: not three or four octal digits. */
bool kvp_parse_mode(const char *text, mode_t *mode_p);
KVB_MUST_USE kvb_status_t kvp_check_rest(const struct kvp_rest_config *config, char *error);
KVB_MUST_USE kvb_status_t kvp_check_cluster(const struct kvp_cluster_config *config, char *error);

#endif
