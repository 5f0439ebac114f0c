/* SPDX-License-Identifier: Apache-2.0 */
/* When a share that leaves may go, over a server and a share that only take notes. */
#include "node/leaving.h"
#include "sim_sched.h"

#include <criterion/criterion.h>

static struct sim_sched sim;
static bool drained;
static uint32_t running;
static uint64_t gets;
static uint32_t nover;
static struct kvp_leaving leaving;

void kvp_server_drain(struct kvp_server *server)
{
    (void)server;
    drained = true;
}

uint32_t kvp_server_running(const struct kvp_server *server)
{
    (void)server;
    return running;
}

void kvs_share_stats(struct kvs_share *share, struct kvs_share_stats *stats_p)
{
    (void)share;
    *stats_p = (struct kvs_share_stats){.gets = gets};
}

static void count_over(void *ctx)
{
    cr_assert_eq(ctx, &leaving);
    nover++;
}

static void begin(void)
{
    sim_init(&sim, sim_seed(1));
    leaving = (struct kvp_leaving){.sched = &sim.sched, .over = count_over, .ctx = &leaving};
    gets = 7; /* from before */
    kvp_leaving_start(&leaving, 30000);
    cr_assert(drained);
    cr_assert_eq(nover, 0, "never inside the call");
}

static void end(void)
{
    kvp_leaving_stop(&leaving);
    sim_cleanup(&sim);
}

TestSuite(leaving, .init = begin, .fini = end);

Test(leaving, it_may_go_once_when_nobody_has_read_for_a_while)
{
    sim_advance(&sim, 900);
    cr_expect_eq(nover, 0);
    sim_advance(&sim, 300);
    cr_expect_eq(nover, 1);
    sim_advance(&sim, 60000);
    cr_expect_eq(nover, 1);
}

Test(leaving, readers_hold_it_up_and_so_do_requests_that_run)
{
    for (int i = 0; i < 10; i++) {
        gets++;
        sim_advance(&sim, 900);
    }
    cr_expect_eq(nover, 0);
    running = 1;
    sim_advance(&sim, 5000);
    cr_expect_eq(nover, 0);
    running = 0;
    sim_advance(&sim, 1300);
    cr_expect_eq(nover, 1);
}

Test(leaving, no_reader_holds_it_up_beyond_the_bound)
{
    running = 1;
    sim_advance(&sim, 29000);
    cr_expect_eq(nover, 0);
    sim_advance(&sim, 1200);
    cr_expect_eq(nover, 1);
}

Test(leaving, what_was_stopped_is_never_over)
{
    kvp_leaving_stop(&leaving);
    sim_advance(&sim, 60000);
    cr_expect_eq(nover, 0);
    leaving = (struct kvp_leaving){.sched = NULL};
    kvp_leaving_stop(&leaving); /* never started */
}
