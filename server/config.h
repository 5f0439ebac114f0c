/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_CONFIG_H
#define SERVER_CONFIG_H

#include "cluster_keys.h"
#include "commands.h"
#include "driver/spec.h"
#include "mooncake.h"

#include <stdio.h>

/*
 * Every key of the daemon, once. From this list come the struct below, --help, the check, the
 * config file, the environment and the table of the README (`kvplane config table`).
 *
 * A key `store-bytes` is given as --store-bytes 4GiB (or --store-bytes=4GiB), as
 * KVPLANE_STORE_BYTES, or in the file of --config as {"store-bytes": "4GiB"}; the first of these
 * that is there wins.
 *
 *   TEXT    text                          CHOICE  one of the words of its limits
 *   BYTES   4096, 512MiB, 4GiB (also KB, MB, GB: the same)
 *   COUNT   a whole number                TIME    480s, 200ms, 10m; a bare number is seconds
 *   SWITCH  true or false; --key alone is true
 */
#define KVP_CONFIG(X)                                                                              \
    /* name, type, key, default, limits (CHOICE: words; else least and most), what it says */      \
    X(listen, TEXT, "listen", "127.0.0.1:8100", "",                                                \
      "HOST:PORT of the REST API; port 0 takes a free one. Another host than a loopback one "      \
      "needs "                                                                                     \
      "token-file or insecure")                                                                    \
    X(engine_socket, TEXT, "engine-socket", "", "",                                                \
      "path of the Unix socket for engines; empty: $XDG_RUNTIME_DIR/kvplane.sock, or "             \
      "/tmp/kvplane-UID.sock")                                                                     \
    X(engine_any_uid, SWITCH, "engine-any-uid", "false", "",                                       \
      "admit engines of every user, not only of this one and root")                                \
    X(instances, TEXT, "instances", "", "",                                                        \
      "names of the instances that must attach before /startupz and /health are well, separated "  \
      "by commas")                                                                                 \
    X(tenants, TEXT, "tenants", "", "",                                                            \
      "tenants that engines may claim, separated by commas, each NAME or NAME=QUOTA; empty: any, " \
      "without quotas")                                                                            \
    X(store_bytes, BYTES, "store-bytes", "1GiB", "0 64TiB",                                        \
      "memory of this process's share of the store, at least 1MiB; 0, with etcd: none")            \
    X(shards, COUNT, "shards", "4", "1 256", "shards of the store, each with its own lock")        \
    X(transport, CHOICE, "transport", "auto", "auto rdma tcp loopback",                            \
      "how bytes move between engines and the store: auto is, with etcd, rdma where both sides "   \
      "can, else tcp; without etcd loopback (this process alone)")                                 \
    X(cluster_listen, TEXT, "cluster-listen", "", "",                                              \
      "HOST:PORT at which others of the cluster reach this process's share; port 0 takes a free "  \
      "one")                                                                                       \
    KVP_CLUSTER_KEYS(X)                                                                            \
    X(unversioned, CHOICE, "unversioned", "none", "none reset finish sleep",                       \
      "for trainers that give no versions and take all instances through each step in lockstep: "  \
      "the event that ends a step")                                                                \
    X(sleep_mode, SWITCH, "sleep-mode", "true", "",                                                \
      "engines may give their memory up; false: /sleep (but for level 0) and all that releases "   \
      "memory are refused, and it is not checked at start whether they could")                     \
    X(mooncake_config, TEXT, "mooncake-config", "", "",                                            \
      "a JSON file of Mooncake's, of which is taken over what there is here, and only where "      \
      "nothing else gave it; also MOONCAKE_CONFIG_PATH")                                           \
    X(drain_bound, TIME, "drain-bound", "480s", "1ms 24h",                                         \
      "an engine must be idle by then, or the operation fails and it serves on; also "             \
      "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, in seconds")                                           \
    X(share_drain_bound, TIME, "share-drain-bound", "20s", "0s 24h",                               \
      "a daemon that is asked to end waits so long for the readers of its share in a cluster")     \
    X(transfer_bound, TIME, "transfer-bound", "60s", "1ms 1h",                                     \
      "one batch of puts or gets; also GPU memory to be had, or let go of, for a rank")            \
    X(node_bound, TIME, "node-bound", "5s", "100ms 10m",                                           \
      "a store node that has not answered a put or get by then, beside the time for its bytes, "   \
      "has failed; a lookup by a tenth of it")                                                     \
    X(abort_bound, TIME, "abort-bound", "200ms", "1ms 60s", "the same once it was asked to stop")  \
    X(slot_wait, TIME, "slot-wait", "30s", "0s 1h",                                                \
      "how long an operation waits while another one runs")                                        \
    X(retire_bound, TIME, "retire-bound", "10s", "1ms 10m",                                        \
      "all instances must have left a retired lineage by then")                                    \
    X(forward_retry, TIME, "forward-retry", "1s", "1ms 10m",                                       \
      "pause between the tries of a step that cannot be undone")                                   \
    X(forward_tries, COUNT, "forward-tries", "10", "1 100000", "tries of such a step")             \
    X(name_grace, TIME, "name-grace", "60s", "0s 24h",                                             \
      "how long a name of weights is kept after its last instance left it")                        \
    X(sessions_max, COUNT, "sessions-max", "256", "1 65536", "connections on the engine socket")   \
    X(queue_max, COUNT, "queue-max", "1024", "1 65536",                                            \
      "batches that wait in each queue of an engine rank")                                         \
    X(running_max, COUNT, "running-max", "16", "1 1024",                                           \
      "batches that run in each queue of an engine rank")                                          \
    X(cuda_pool_bytes, BYTES, "cuda-pool-bytes", "64MiB", "1MiB 64GiB",                            \
      "pinned memory through which the GPU memory of one engine rank moves: at least one batch "   \
      "entry's bytes; taken when a rank hands GPU memory over")                                    \
    X(gpu_rdma, CHOICE, "gpu-rdma", "staged", "staged direct",                                     \
      "how GPU memory moves by rdma: staged goes through cuda-pool-bytes and is checksummed; "     \
      "direct lets the RDMA device reach it where it and the driver can, and then no checksum is " \
      "made or compared at the engine's end (integrity=transport)")                                \
    X(upstream, TEXT, "upstream", "", "",                                                          \
      "http://HOST:PORT or https://HOST:PORT of the engine's own server: every request that is "   \
      "for no route of this one is passed on to it, and its answer back; empty: to those of "      \
      "engine, or, without any, such requests are 404")                                            \
    X(upstream_while_paused, CHOICE, "upstream-while-paused", "pass", "pass hold refuse",          \
      "what becomes of a request that would generate while the engine is paused: pass, as "        \
      "engines queue it themselves; hold keeps it here until it runs; refuse answers 503")         \
    X(upstream_while_asleep, CHOICE, "upstream-while-asleep", "refuse", "pass hold refuse",        \
      "the same while memory of the engine is not resident, where to compute would crash it")      \
    X(upstream_hold_max, COUNT, "upstream-hold-max", "1024", "0 65536",                            \
      "requests held at a time; further ones are answered 503")                                    \
    X(upstream_hold_bound, TIME, "upstream-hold-bound", "120s", "1ms 24h",                         \
      "a request held for longer is answered 503")                                                 \
    X(upstream_requests_max, COUNT, "upstream-requests-max", "2048", "1 65536",                    \
      "requests passed on at a time, held ones among them, and never more than half of "           \
      "connections-max; further ones are answered 503")                                            \
    X(upstream_connect_timeout, TIME, "upstream-connect-timeout", "5s", "1ms 10m",                 \
      "the engine's own server must be reached by then")                                           \
    X(upstream_idle_timeout, TIME, "upstream-idle-timeout", "1h", "0s 24h",                        \
      "no byte of an answer for so long is answered 504, or breaks it off; 0: no bound. There is " \
      "none on the whole of an answer")                                                            \
    X(upstream_connections_kept, COUNT, "upstream-connections-kept", "256", "1 65536",             \
      "connections to that server kept open for the next requests")                                \
    X(upstream_auth, CHOICE, "upstream-auth", "token", "token engine",                             \
      "who judges requests that are passed on where there is a token-file: token, this process "   \
      "asks for a token of its own, in X-Kvplane-Token or as Authorization; engine, it does not. " \
      "Authorization travels on unless it has a token of this process")                            \
    X(upstream_key_file, TEXT, "upstream-key-file", "", "",                                        \
      "file of the engine's own API key, sent as a bearer token with requests that bring no "      \
      "Authorization for it")                                                                      \
    X(upstream_ca_file, TEXT, "upstream-ca-file", "", "",                                          \
      "PEM file of the authorities that its certificate, or that of an engine's server that is "   \
      "driven, may come from; empty: the system's")                                                \
    X(engine, LIST, "engine", "", "",                                                              \
      "KIND=[NAME@]URL of an unmodified server that is driven by its own routes, as "              \
      "vllm=http://10.0.0.1:8000 or sglang=policy@http://10.0.0.2:30000; without NAME: "           \
      "engine-0, engine-1 and so on; separated by commas, or given again")                         \
    X(engine_token_file, TEXT, "engine-token-file", "", "",                                        \
      "file whose first line is sent to these servers as bearer token")                            \
    X(engine_health_interval, TIME, "engine-health-interval", "2s", "10ms 10m",                    \
      "how often their /health is looked at")                                                      \
    X(engine_health_bound, TIME, "engine-health-bound", "5s", "10ms 10m", "of one such look")      \
    X(engine_health_misses, COUNT, "engine-health-misses", "3", "1 1000",                          \
      "so many without an answer in a row, and the server is gone; one that nobody listens for, "  \
      "or that answers 503, is gone at once")                                                      \
    X(engine_call_bound, TIME, "engine-call-bound", "120s", "10ms 24h",                            \
      "of a call of such a server; a pause has drain-bound")                                       \
    X(engine_relay_bound, TIME, "engine-relay-bound", "1h", "10ms 24h",                            \
      "of a call that is handed through to it, as a weight update")                                \
    X(fleet_verbs, CHOICE, "fleet-verbs", "auto", "auto all one",                                  \
      "what a verb without ?instance= is, while there are several: for all of them, all or "       \
      "nothing where it can be taken back, or refused (one); auto: all with engine, else one")     \
    KVP_REST_KEYS(X)                                                                               \
    X(fault, TEXT, "fault", "", "",                                                                \
      "take a protection out, to see that the rehearsal notices (only in builds for that; "        \
      "`kvplane rehearse --fault list`)")

struct kvp_config {
#define X(name, type, key, standard, limits, what) KVP_CONFIG_##type name;
    KVP_CONFIG(X)
#undef X
    struct kvp_engine_spec engines[KVP_ENGINES_MAX]; /* of `engine` */
    uint32_t nengines;
    struct kvp_mooncake mooncake; /* what users of it brought along */
};

/*
 * Reads arguments (options only: without program and subcommand), environment and file, checks
 * every value, what values mean together, and, with sleep mode on, whether engines could sleep at
 * all (server/gate.h). INVALID or IO: error (KVP_CONFIG_ERROR_MAX bytes)
 * names key, value and what is allowed; *config_p is untouched. NO_MEMORY.
 */
KVB_MUST_USE kvb_status_t kvp_config_read(int argc, const char *const *argv,
                                          struct kvp_config *config_p, char *error);
void kvp_config_cleanup(struct kvp_config *config);

/* Borrows the texts. */
struct kvp_cluster_config kvp_config_cluster(const struct kvp_config *config);
struct kvp_rest_config kvp_config_rest(const struct kvp_config *config);

/* Calls each for each tenant of a `tenants` value; quota KVP_QUOTA_NONE: none. False: malformed. */
#define KVP_QUOTA_NONE UINT64_MAX
bool kvp_config_each_tenant(const char *tenants,
                            void (*each)(void *arg, const char *tenant, uint64_t quota), void *arg);

void kvp_config_options(const char *command, kvp_tell_option_fn tell, void *ctx);
void kvp_config_table(FILE *out); /* markdown */
/* The values in force, as a file that --config takes. */
void kvp_config_show(const struct kvp_config *config, FILE *out);

#endif
