/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of verbs may fail, and every work request may complete with any status: nothing is
 * left behind, what it was is counted, and it works again. */
#define RDMA_SIM_LEN (256ull << 10) /* made anew for each of many runs */
#include "rdma_sim.h"

/* ---- calls that fail ---- */

static bool clear(kvb_status_t status)
{
    return status == KVB_ERR_NO_MEMORY || status == KVB_ERR_LIMIT || status == KVB_ERR_IO ||
           status == KVB_ERR_UNSUPPORTED || status == KVB_ERR_INVALID ||
           status == KVB_ERR_UNAVAILABLE;
}

/* Makes one of the two sides; after a failure nothing of it is left, and the next try works. */
static void make(struct rdma_sim *rig, kvb_status_t (*side)(struct rdma_sim *rig))
{
    struct fake_counts before = rig->fake->open;
    uint64_t pinned = rig->fake->pinned;
    kvb_status_t status = side(rig);
    if (status != KVB_OK) {
        const char *what;
        cr_assert(fake_verbs_failed(&what), "it fails for nothing: %s", rig->reason);
        const char *leak = fake_verbs_leak(&before);
        cr_assert_null(leak, "%s failed: %s", what, leak);
        cr_assert_eq(rig->fake->pinned, pinned);
        cr_assert(clear(status), "%s failed: %s", what, kvb_status_label(status));
        status = side(rig);
    }
    cr_assert_eq(status, KVB_OK, "%s", rig->reason);
}

/* A device that lost its completions or its events is dead for good: its process starts anew. */
static void revive(struct rdma_sim *rig)
{
    bool asker = kvt_rdma_device_dead(rig->devices[SIDE_ASKER]);
    bool node = kvt_rdma_device_dead(rig->devices[SIDE_NODE]);
    if (asker || node) {
        cr_assert(fake_verbs_failed(NULL), "it dies for nothing");
        rdma_sim_close_engine(rig);
        rdma_sim_close_node(rig);
        const char *leak = fake_verbs_leak(NULL);
        cr_assert_null(leak, "%s", leak);
        cr_assert_eq(rdma_sim_node(rig), KVB_OK);
        cr_assert_eq(rdma_sim_engine(rig), KVB_OK);
        cr_assert_eq(rdma_sim_peer(rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    }
}

static void transfers(struct rdma_sim *rig, uint64_t nth)
{
    static const uint16_t types[] = {RIG_PUT, RIG_GET, RIG_ECHO};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        kvb_status_t status = rdma_sim_run(rig, types[i], 0, KIB(100));
        if (status == KVB_OK) {
            continue;
        }
        const char *what;
        cr_assert(fake_verbs_failed(&what), "type %u: %s for nothing", types[i],
                  kvb_status_label(status));
        cr_assert(clear(status) || status == KVB_ERR_DISCONNECTED, "%s failed: %s", what,
                  kvb_status_label(status));
        revive(rig);
        cr_assert(rdma_sim_recovers(rig, nth), "after %s failed", what);
    }
}

/* False: there are fewer calls than that. */
static bool one_run(uint64_t nth, int error, const char **what_p)
{
    static struct rdma_sim rig;
    rdma_sim_init(&rig, 1);
    kvb_log_threshold = KVB_LOG_ERROR;
    fake_verbs_fail(NULL, nth, error);
    make(&rig, rdma_sim_node);
    make(&rig, rdma_sim_engine);
    kvb_status_t status = rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0});
    if (status != KVB_OK) {
        cr_assert(clear(status), "%s", kvb_status_label(status));
        rig.peer = NULL;
        cr_assert_eq(rdma_sim_peer(&rig, (struct kvt_rdma_peer_config){0}), KVB_OK);
    }
    if (!rdma_run_until(&rig, &rig.up, BOUND_MS)) {
        revive(&rig);
        cr_assert(rdma_run_until(&rig, &rig.up, BOUND_MS), "call %lu: %s", nth,
                  fake_verbs_failed(what_p) ? *what_p : "none");
    }
    transfers(&rig, nth);
    revive(&rig);

    struct kvt_region *second = NULL;
    status = rdma_sim_region(&rig, &second, 2, 0, KIB(64));
    if (status != KVB_OK) {
        cr_assert(clear(status), "%s", kvb_status_label(status));
        cr_assert(kvt_rdma_memory_reason(rig.memory)[0] != '\0');
        cr_assert_eq(rdma_sim_region(&rig, &second, 2, 0, KIB(64)), KVB_OK);
    }
    cr_assert_eq(rdma_sim_unregister(&rig, second, 1000, 1000), KVB_OK);
    kvt_region_destroy(second);
    bool failed = fake_verbs_failed(what_p);
    revive(&rig);
    cr_assert(rdma_sim_recovers(&rig, nth), "after %s failed", failed ? *what_p : "nothing");
    rdma_sim_close(&rig);
    return failed;
}

Test(rdma_calls, every_call_may_fail_and_the_next_try_works)
{
    static const int errors[] = {ENOMEM, EIO};
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
        const char *what = NULL;
        uint64_t nth = 0;
        while (one_run(nth, errors[e], &what)) {
            nth++;
        }
        cr_assert_gt(nth, 50);
    }
}

/* ---- completions ---- */

static const struct {
    enum ibv_wc_status status;
    enum kvt_rdma_cause cause;
} statuses[] = {
    {IBV_WC_LOC_LEN_ERR, KVT_RDMA_WC_LOC_LEN},
    {IBV_WC_LOC_QP_OP_ERR, KVT_RDMA_WC_LOC_QP_OP},
    {IBV_WC_LOC_EEC_OP_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_LOC_PROT_ERR, KVT_RDMA_WC_LOC_PROT},
    {IBV_WC_WR_FLUSH_ERR, KVT_RDMA_WC_FLUSH},
    {IBV_WC_MW_BIND_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_BAD_RESP_ERR, KVT_RDMA_WC_BAD_RESP},
    {IBV_WC_LOC_ACCESS_ERR, KVT_RDMA_WC_LOC_ACCESS},
    {IBV_WC_REM_INV_REQ_ERR, KVT_RDMA_WC_REM_INV_REQ},
    {IBV_WC_REM_ACCESS_ERR, KVT_RDMA_WC_REM_ACCESS},
    {IBV_WC_REM_OP_ERR, KVT_RDMA_WC_REM_OP},
    {IBV_WC_RETRY_EXC_ERR, KVT_RDMA_WC_RETRY_EXC},
    {IBV_WC_RNR_RETRY_EXC_ERR, KVT_RDMA_WC_RNR_RETRY_EXC},
    {IBV_WC_LOC_RDD_VIOL_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_REM_INV_RD_REQ_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_REM_ABORT_ERR, KVT_RDMA_WC_REM_ABORT},
    {IBV_WC_INV_EECN_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_INV_EEC_STATE_ERR, KVT_RDMA_WC_OTHER},
    {IBV_WC_FATAL_ERR, KVT_RDMA_WC_FATAL},
    {IBV_WC_RESP_TIMEOUT_ERR, KVT_RDMA_WC_RESP_TIMEOUT},
    {IBV_WC_GENERAL_ERR, KVT_RDMA_WC_GENERAL},
};

static void one_status(size_t row, enum fake_side side, enum ibv_wc_opcode kind)
{
    static struct rdma_sim rig;
    rdma_sim_open(&rig, 1, (struct kvt_rdma_peer_config){0});
    kvb_log_threshold = KVB_LOG_ERROR;
    uint64_t before = rdma_sim_cause(&rig, side, statuses[row].cause);
    fake_verbs_status(side, kind, 0, statuses[row].status);
    kvb_status_t put = rdma_sim_run(&rig, RIG_PUT, 0, KIB(100));
    kvb_status_t get = put == KVB_OK ? rdma_sim_run(&rig, RIG_GET, 0, KIB(100)) : put;
    cr_assert(get == KVB_ERR_DISCONNECTED || get == KVB_ERR_IO || get == KVB_ERR_UNAVAILABLE ||
                  get == KVB_ERR_PROTOCOL,
              "status %d of %d at %d: %s", (int)statuses[row].status, (int)kind, (int)side,
              kvb_status_label(get));
    /* a receive that is flushed belongs to no transfer: it is not counted */
    bool counted = kind != IBV_WC_RECV || statuses[row].status != IBV_WC_WR_FLUSH_ERR;
    cr_assert(!counted || rdma_sim_cause(&rig, side, statuses[row].cause) > before,
              "status %d of %d at %d is not counted", (int)statuses[row].status, (int)kind,
              (int)side);
    cr_assert(rdma_sim_recovers(&rig, row), "a new queue pair is made");
    cr_assert_eq(rig.fake->misuses, 0);
    rdma_sim_close(&rig);
}

Test(rdma_calls, every_status_of_a_completion_is_counted_and_recovered_from)
{
    static const struct {
        enum fake_side side;
        enum ibv_wc_opcode kind;
    } places[] = {
        {FAKE_ASKER, IBV_WC_SEND}, {FAKE_ASKER, IBV_WC_RDMA_WRITE}, {FAKE_ASKER, IBV_WC_RDMA_READ},
        {FAKE_ASKER, IBV_WC_RECV}, {FAKE_NODE, IBV_WC_SEND},        {FAKE_NODE, IBV_WC_RECV},
    };
    for (size_t row = 0; row < sizeof statuses / sizeof statuses[0]; row++) {
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            one_status(row, places[i].side, places[i].kind);
        }
    }
}
