/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include "config_table.h"

#include <stdlib.h>
#include <string.h>

struct kind {
    const char *name;
    const char *refused; /* why it cannot sleep; NULL: it can */
    const char *what;    /* of one that can */
};

#define EXPORTS "its peers map the engine's memory and keep its pages, asleep or not"
#define FOREIGN "it reaches memory that kvplane can neither map nor take back"

static const struct kind transports[] = {
    {"auto", NULL, "rdma or tcp, alone loopback"},
    {"loopback", NULL, "bytes never leave the process"},
    {"tcp", NULL, "bytes are copied; nobody holds a key"},
    {"rdma", NULL, "the engine's memory has local keys only (a device of iWARP cannot: tcp)"},
    {"nvlink", EXPORTS, NULL},
    {"nvlink_intra", EXPORTS, NULL},
    {"mnnvl", EXPORTS, NULL},
    {"hip", EXPORTS, NULL},
    {"cxl", EXPORTS, NULL},
    {"ub", EXPORTS, NULL},
    {"barex", "it registers the engine's memory in a library of its own", NULL},
    {"efa", "its devices have no reliable connections with local keys only; use tcp on them", NULL},
    {"ascend", FOREIGN, NULL},
    {"hccl", FOREIGN, NULL},
    {"nvmeof", FOREIGN, NULL},
};

static const struct kind memories[] = {
    {"host", NULL, "a sealed memfd: mapped here, unmapped before the sleep goes on"},
    {"cuda", NULL,
     "CUDA virtual memory, exported as a descriptor or fabric handle: held by the helper process "
     "alone, and gone with it"},
    {"NVLINK", EXPORTS, NULL},
    {"INTRA_NODE_NVLINK", EXPORTS, NULL},
    {"BAREX", "it is registered in a library of its own", NULL},
};

static const struct {
    const char *name;
    const char *asks_for;
} variables[] = {
    {"MC_FORCE_MNNVL", "Mooncake's multi-node NVLink"},
    {"MC_INTRANODE_NVLINK", "Mooncake's NVLink within the host"},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *why_refused(const struct kind *kinds, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return kinds[i].refused;
        }
    }
    return "kvplane does not know it";
}

/* Present is enough, also empty or 0: that is how that system reads them. */
static kvb_status_t check_variables(char *error)
{
    for (size_t i = 0; i < COUNT(variables); i++) {
        const char *value = getenv(variables[i].name);
        if (value != NULL) {
            return kvp_refuse(error,
                              "%s is set (to `%.32s`; whatever the value, it counts): it asks for "
                              "%s, by which peers hold the engine's memory, so no engine could "
                              "sleep. Unset it, or give --sleep-mode=false if none is to",
                              variables[i].name, value, variables[i].asks_for);
        }
    }
    return KVB_OK;
}

kvb_status_t kvp_gate_check(const struct kvp_gate_facts *facts, char *error)
{
    const char *why = why_refused(transports, COUNT(transports), facts->transport);
    if (why != NULL) {
        return kvp_refuse(error, "transport: engines cannot sleep over `%.32s`: %s",
                          facts->transport, why);
    }
    why = facts->protocol[0] == '\0' ? NULL
                                     : why_refused(transports, COUNT(transports), facts->protocol);
    if (why != NULL) {
        return kvp_refuse(error,
                          "%.200s is `%.32s`, over which engines cannot sleep: %s. Say rdma or tcp "
                          "there, or give --transport, which counts more",
                          facts->protocol_source, facts->protocol, why);
    }
    why = facts->pool[0] == '\0' ? NULL : why_refused(memories, COUNT(memories), facts->pool);
    if (why != NULL) {
        return kvp_refuse(error,
                          "%.200s is `%.32s`, memory in which engines cannot sleep: %s. Leave it "
                          "out, so that the KV cache is in CUDA virtual memory, or give "
                          "--sleep-mode=false if none is to",
                          facts->pool_source, facts->pool, why);
    }
    return check_variables(error);
}

static void print(const char *what, const struct kind *kinds, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(out, "| %s `%s` | %s | %s |\n", what, kinds[i].name,
                      kinds[i].refused == NULL ? "yes" : "no",
                      kinds[i].refused == NULL ? kinds[i].what : kinds[i].refused);
    }
}

void kvp_gate_table(FILE *out)
{
    (void)fprintf(out, "| | can sleep | why |\n|---|---|---|\n");
    print("transport", transports, COUNT(transports), out);
    print("memory", memories, COUNT(memories), out);
    for (size_t i = 0; i < COUNT(variables); i++) {
        (void)fprintf(out, "| variable `%s` | no | present at all, it asks for %s |\n",
                      variables[i].name, variables[i].asks_for);
    }
}
