/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/rdma on a real RDMA stack: what a device does that is pulled out, whose port goes down,
 * whose peer is killed or stopped in the middle of transfers; what regions cost, and leave behind;
 * and stale pages, as stale_pages.c shows them on raw verbs. `transport NAME` runs one of them.
 */
#include "test_memory.h"
#include "two.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)

/* Longer than any bound of the transport's own (silence 3 s, stall 10 s), shorter than a hang. */
#define BOUND_MS 120000

static pid_t start_program(const char *const *argv)
{
    pid_t pid;
    /* posix_spawn's arguments are not const for reasons of history */
    check(posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)(uintptr_t)argv, environ) == 0);
    return pid;
}

static void await_program(pid_t pid)
{
    int status = -1;
    check(waitpid(pid, &status, 0) == pid && status == 0);
}

static void run_program(const char *const *argv)
{
    await_program(start_program(argv));
}

static struct two two;

/* ---- stale pages ---- */

#define STALE_LEN  MIB(16)
#define STALE_PART KIB(512)

static bool are(const uint8_t *bytes, uint8_t value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, STALE_PART - 1) == 0;
}

/* Loosely: what else runs, and the kernel itself, take and give some. */
static bool about(int64_t bytes, size_t want)
{
    int64_t slack = STALE_LEN / 2;
    return bytes > (int64_t)want - slack && bytes < (int64_t)want + slack;
}

static void put(size_t at)
{
    check(two_move(&two, RIG_PUT, at, STALE_PART) == KVB_OK);
}
static void get(size_t at)
{
    check(two_move(&two, RIG_GET, at, STALE_PART) == KVB_OK);
}

/* As a daemon would that forgets to unregister: the region stays while the engine's memory goes,
 * and comes back at its address. */
static void stale_without_unregistering(void)
{
    size_t pinned = rig_pinned(), at = STALE_LEN / 2;
    memset(two.engine + at, 'a', STALE_PART);
    put(at);
    check(are(two.node_memory + at, 'a'));

    size_t before = rig_memory_free();
    two_engine_unmap(&two);
    check(rig_pinned() == pinned);
    check(about((int64_t)(rig_memory_free() - before), 0));
    two_engine_map(&two, STALE_LEN);
    memset(two.engine + at, 'b', STALE_PART);
    put(at);
    check(are(two.node_memory + at, 'a'));
    memset(two.node_memory + at, 'c', STALE_PART);
    get(at);
    check(are(two.engine + at, 'b'));
    puts("woken without unregistering: put sent the old pages, get filled the old pages");

    two_unregister(&two);
    check(rig_pinned() == pinned - STALE_LEN);
    check(about((int64_t)(rig_memory_free() - before), 0));
    two_register(&two);
    put(at);
    check(are(two.node_memory + at, 'b'));
}

static void stale(void)
{
    two_open(&two, STALE_LEN);
    two_engine_map(&two, STALE_LEN);
    two_register(&two);
    put(0); /* now there is a lane of this engine's, with messages of its own */
    size_t pinned = rig_pinned() - STALE_LEN;
    check(kvt_region_pinned(two.region) == STALE_LEN);
    stale_without_unregistering();

    size_t maps = test_count_maps(""), fds = test_count_fds();
    for (unsigned i = 0; i < 50; i++) {
        uint8_t mine = (uint8_t)(2 * i + 1), its = (uint8_t)(2 * i + 2);
        size_t at = i % (STALE_LEN / STALE_PART) * STALE_PART;
        size_t awake = rig_memory_free();
        two_unregister(&two);
        two_engine_unmap(&two);
        check(rig_pinned() == pinned);
        check(about((int64_t)(rig_memory_free() - awake), STALE_LEN));
        two_engine_map(&two, STALE_LEN);
        two_register(&two);
        check(rig_pinned() == pinned + STALE_LEN);
        memset(two.engine + at, mine, STALE_PART);
        put(at);
        check(are(two.node_memory + at, mine));
        memset(two.node_memory + at, its, STALE_PART);
        get(at);
        check(are(two.engine + at, its));
        check(test_count_maps("") == maps && test_count_fds() == fds);
    }
    two_unregister(&two);
    check(rig_pinned() == pinned);
    two_engine_unmap(&two);
    two_close(&two);
}

/* ---- regions ---- */

/* Regions come and go by thousands, of sizes that change, and nothing is left of them; programs are
 * run by fork and exec meanwhile, and registered memory is what it was. */
static void cycles(void)
{
    static const char *const helper[] = {"/bin/true", NULL};
    two_open(&two, MIB(1));
    two_engine_map(&two, MIB(1));
    two_register(&two);
    check(two_works(&two));
    run_program(helper);
    check(two_works(&two)); /* the same pages still: nothing was copied on write */
    size_t pinned = rig_pinned(), maps = test_count_maps(""), fds = test_count_fds();
    for (unsigned i = 0; i < 5000; i++) {
        struct kvt_region *first = two.region;
        size_t len = two.engine_len;
        two.engine_len = KIB(4) * (1 + i % 16);
        two_register(&two);
        check(rig_pinned() == pinned + two.engine_len);
        two_unregister(&two);
        two.region = first;
        two.engine_len = len;
        if (i % 500 == 0) {
            run_program(helper);
            check(two_works(&two));
            check(rig_pinned() == pinned && test_count_fds() == fds);
            check(test_count_maps("") <= maps + 2); /* of malloc */
        }
    }
    struct kvt_rdma_memory_stats stats;
    kvt_rdma_memory_stats(two.memory, &stats);
    check(stats.registrations == 1 && stats.pinned_bytes == MIB(1));
    check(stats.registered == 5001 && stats.unregistered == 5000 && stats.failed == 0);
    two_unregister(&two);
    two_engine_unmap(&two);
    two_close(&two);
}

/* ---- what happens in the middle of transfers ---- */

#define JOBS 8
#define EACH MIB(1)

static struct two_job jobs[JOBS];

static void middle_open(void)
{
    two_open(&two, JOBS * EACH);
    two_engine_map(&two, JOBS * EACH);
    two_register(&two);
    check(two_works(&two));
}

/* Puts and gets, of which the first is through. */
static void middle_begin(void)
{
    for (size_t i = 0; i < JOBS; i++) {
        check(two_start(&two, &jobs[i], i % 2 == 0 ? RIG_PUT : RIG_GET, i * EACH, EACH) == KVB_OK);
    }
    check(two_await(&two, &jobs[0].done, BOUND_MS));
    check(jobs[0].status == KVB_OK);
}

/* All have ended, none too late; some of them not well, or it was not in the middle. */
static void middle_end(const char *what)
{
    unsigned failed = 0;
    for (size_t i = 0; i < JOBS; i++) {
        check(two_await(&two, &jobs[i].done, BOUND_MS));
        failed += jobs[i].status != KVB_OK;
    }
    check(failed > 0);
    check(two.peer->in_flight == 0 && kvt_region_refs(two.region) == 0);
    printf("%s: %u of %d transfers failed\n", what, failed, JOBS);
}

static bool until_works(void)
{
    for (int i = 0; i < 100; i++) {
        if (two_works(&two)) {
            return true;
        }
        real_run_for(&two.loop, 100);
    }
    return false;
}

static void middle_close(void)
{
    size_t pinned = rig_pinned();
    two_unregister(&two);
    check(pinned == 0 || rig_pinned() == pinned - JOBS * EACH); /* 0: the device took all along */
    two_engine_unmap(&two);
    two_close(&two);
}

static void peer_killed(void)
{
    middle_open();
    middle_begin();
    two_node_kill(&two);
    middle_end("peer killed");
    check(two.downs == 1);
    two_node_start(&two);
    check(kvt_rdma_peer_set_address(two.peer, two.address) == KVB_OK);
    check(until_works());
    middle_close();
}

/* Its device goes on acknowledging: only messages show life. */
static void peer_stopped(void)
{
    middle_open();
    middle_begin();
    check(kill(two.node, SIGSTOP) == 0);
    middle_end("peer stopped");
    check(two.downs == 1);
    check(kill(two.node, SIGCONT) == 0);
    check(until_works());
    middle_close();
}

/* The memory goes, whatever the peer does: bounded, and nothing of ours is changed afterwards. */
static void released_while_stopped(void)
{
    middle_open();
    middle_begin();
    check(kill(two.node, SIGSTOP) == 0);
    size_t pinned = rig_pinned();
    two_unregister(&two);
    check(rig_pinned() == pinned - JOBS * EACH);
    for (size_t i = 0; i < JOBS; i++) {
        check(jobs[i].done);
    }
    memset(two.engine, 0x5a, JOBS * EACH);
    memset(two.node_memory, 0xa5, JOBS * EACH);
    check(kill(two.node, SIGCONT) == 0);
    two_register(&two);
    check(until_works());
    for (size_t i = KIB(64); i < JOBS * EACH; i++) {
        check(two.engine[i] == 0x5a);
    }
    middle_close();
}

static const char *const remove_device[] = {"rdma", "link", "delete", "rxe0", NULL};

/* Soft RoCE's own queue pair for connections (Linux 6.1) does not survive a message that it was to
 * send meanwhile, for no process: that lanes come back is not for this device to show. */
static void port_down(void)
{
    static const char *const down[] = {"ip", "link", "set", "dummy0", "down", NULL};
    static const char *const up[] = {"ip", "link", "set", "dummy0", "up", NULL};
    middle_open();
    middle_begin();
    run_program(down);
    middle_end("port down");
    check(kvt_rdma_device_count(two.device, KVT_RDMA_DEV_PORT_DOWN) > 0);
    check(!kvt_rdma_device_port_up(two.device));
    run_program(up);
    for (int i = 0; i < 100 && !kvt_rdma_device_port_up(two.device); i++) {
        real_run_for(&two.loop, 100);
    }
    check(kvt_rdma_device_port_up(two.device));
    check(!kvt_rdma_device_dead(two.device));
    middle_close();
}

/* Removing it lasts as long as somebody has it open, which is to this process's end. */
static void device_removed(void)
{
    middle_open();
    middle_begin();
    (void)start_program(remove_device);
    uint64_t end_ns = kvb_deadline_in_ms(&kvb_clock_real, BOUND_MS);
    while (!kvt_rdma_device_dead(two.device)) { /* it takes a moment; meanwhile transfers go on */
        for (size_t i = 0; i < JOBS; i++) {
            if (jobs[i].done && jobs[i].status == KVB_OK) {
                check(two_start(&two, &jobs[i], RIG_PUT, i * EACH, EACH) == KVB_OK);
            }
        }
        check(real_now_ns() < end_ns);
        real_step(&two.loop, end_ns);
    }
    middle_end("device removed");
    check(two_move(&two, RIG_PUT, 0, EACH) != KVB_OK);
    middle_close();
}

/* In a process of its own; after it the device goes, so that the next test has a new one. */
static void and_remove(void (*run)(void))
{
    static const char *const gone[] = {
        "sh", "-c",
        "rdma link delete rxe0 2>/dev/null; "
        "while [ -e /sys/class/infiniband/rxe0 ]; do sleep 0.1; done",
        NULL};
    pid_t pid = fork();
    check(pid >= 0);
    if (pid == 0) {
        run();
        exit(0);
    }
    await_program(pid);
    run_program(gone);
}

static const struct {
    const char *name;
    void (*run)(void);
    bool remove;
} tests[] = {
    {"stale", stale, false},
    {"cycles", cycles, false},
    {"peer_killed", peer_killed, false},
    {"peer_stopped", peer_stopped, false},
    {"released_while_stopped", released_while_stopped, false},
    {"port_down", port_down, true},
    {"device_removed", device_removed, true},
};

int main(int argc, char **argv)
{
    two_main(argc, argv);
    for (size_t i = 0; argc == 2 && i < sizeof tests / sizeof tests[0]; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) {
            tests[i].remove ? and_remove(tests[i].run) : tests[i].run();
            return 0;
        }
    }
    (void)fprintf(stderr, "usage: %s NAME\n", argv[0]);
    return 2;
}
