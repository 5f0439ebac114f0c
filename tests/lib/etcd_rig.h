/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ETCD_RIG_H
#define TESTS_ETCD_RIG_H

/*
 * A coordinator on a real etcd as a test has it: behind a proxy of its own, in the test's loop,
 * with short bounds. The etcd process is the program's: etcd_rig_main() starts it before Criterion
 * runs the tests and names it in the environment.
 */
#include "etcd_server.h"
#include "real_loop.h"
#include "tcp_proxy.h"

#include "store/coordinator.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>

#define ETCD_RIG_ENV        "KVPLANE_TEST_ETCD"
#define ETCD_RIG_REQUEST_MS 3000
#define ETCD_RIG_LEASE_MS   12000
#define ETCD_RIG_LIMIT_MS   240000 /* for what must happen */

struct etcd_rig {
    struct real_loop *loop;
    struct tcp_proxy proxy;
    struct kvs_coordinator *coordinator;
    bool up; /* as its watch heard last */
    bool heard;
};

static inline void etcd_rig_reachable_(void *ctx, bool reachable)
{
    struct etcd_rig *rig = ctx;
    rig->up = reachable;
    rig->heard = true;
}

static const struct kvs_watch_ops etcd_rig_watch_ = {.reachable = etcd_rig_reachable_};

static inline bool etcd_rig_is_up(void *arg)
{
    return ((struct etcd_rig *)arg)->up;
}

static inline bool etcd_rig_is_away(void *arg)
{
    return !((struct etcd_rig *)arg)->up;
}

static inline void etcd_rig_await(struct etcd_rig *rig, bool up)
{
    cr_assert(
        real_run_until(rig->loop, up ? etcd_rig_is_up : etcd_rig_is_away, rig, ETCD_RIG_LIMIT_MS),
        "etcd is %s", up ? "away" : "still there");
}

static inline int etcd_rig_port(const char *url)
{
    const char *colon = strrchr(url, ':');
    return colon == NULL ? 0 : atoi(colon + 1);
}

/* Behind a proxy to url (NULL: the program's etcd); reached when it returns. */
static inline void etcd_rig_open(struct etcd_rig *rig, struct real_loop *loop, const char *url,
                                 const char *prefix, uint64_t grace_ms)
{
    char endpoint[64];
    const char *const endpoints[] = {endpoint};
    *rig = (struct etcd_rig){.loop = loop};
    url = url == NULL ? getenv(ETCD_RIG_ENV) : url;
    cr_assert_not_null(url);
    proxy_open(&rig->proxy, &loop->io, etcd_rig_port(url));
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", rig->proxy.port);
    const struct kvs_etcd_config config = {
        .sched = &loop->sim.sched,
        .io = &loop->io,
        .endpoints = endpoints,
        .nendpoints = 1,
        .prefix = prefix,
        .request_ms = ETCD_RIG_REQUEST_MS,
        .lease_ms = ETCD_RIG_LEASE_MS,
        .grace_ms = grace_ms,
        .process = "test",
    };
    cr_assert_eq(kvs_etcd_create(&config, &rig->coordinator), KVB_OK);
    cr_assert_eq(kvs_coordinator_watch(rig->coordinator, &etcd_rig_watch_, rig), KVB_OK);
    etcd_rig_await(rig, true);
}

static inline void etcd_rig_set_reachable(struct etcd_rig *rig, bool reachable)
{
    proxy_set(&rig->proxy, reachable ? PROXY_PASS : PROXY_CUT);
    etcd_rig_await(rig, reachable);
}

static inline void etcd_rig_close(struct etcd_rig *rig)
{
    kvs_coordinator_destroy(rig->coordinator);
    proxy_close(&rig->proxy);
}

/* A prefix that no other test has. */
static inline const char *etcd_rig_prefix(char out[64])
{
    uint64_t id;
    kvb_random_real.fill(kvb_random_real.ctx, &id, sizeof id);
    snprintf(out, 64, "/test/%016llx/", (unsigned long long)id);
    return out;
}

/* The program's etcd: started before its tests, in Criterion's own process. Without one installed
 * its tests see no ETCD_RIG_ENV. */
static struct etcd_cluster etcd_rig_cluster_;

ReportHook(PRE_ALL)(struct criterion_test_set *tests)
{
    (void)tests;
    if (!etcd_installed()) {
        fprintf(stderr, "SKIP: etcd-server is not installed\n");
        return;
    }
    etcd_start(&etcd_rig_cluster_, 1, false);
    (void)setenv(ETCD_RIG_ENV, etcd_rig_cluster_.members[0].url, 1);
}

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    (void)stats;
    if (etcd_rig_cluster_.n > 0) {
        etcd_stop(&etcd_rig_cluster_);
    }
}

#endif
