/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault that this project exists for, on a real RDMA stack, and its cure.
 *
 * An engine's memory is registered and transfers are right. Then its memory goes away and comes
 * back at the same address, on new pages, as sleep and wake do it:
 *
 *   without unregistering   every transfer succeeds and moves the old pages, in both directions,
 *                           and the old pages are held although nobody can see them any more
 *   with unregistering      the bytes are right, and the memory is free in between
 *
 * The pages are new because the memfd is: the same memfd mapped again has the same ones.
 */
#include "test_memory.h"
#include "verbs_rig.h"

#include <stdlib.h>

#define LEN    ((size_t)16 << 20)
#define PART   ((size_t)512 << 10) /* what one transfer moves */
#define CYCLES 10

static struct rig_link link_;
static uint8_t *node; /* the memory of the other side */
static struct ibv_mr *node_mr;

struct engine {
    uint8_t *at; /* always the same */
    int fd;
    struct ibv_mr *mr;
};

/* Memory at `engine->at` (anywhere at first), on pages that nobody had. Populated at once: faults
 * are slow in the machine that this runs in. */
static void wake(struct engine *engine)
{
    engine->fd = memfd_create("kv_cache", MFD_CLOEXEC);
    check(engine->fd >= 0 && ftruncate(engine->fd, LEN) == 0);
    int flags = MAP_SHARED | MAP_POPULATE | (engine->at != NULL ? MAP_FIXED_NOREPLACE : 0);
    uint8_t *at = mmap(engine->at, LEN, PROT_READ | PROT_WRITE, flags, engine->fd, 0);
    check(at != MAP_FAILED && (engine->at == NULL || at == engine->at));
    engine->at = at;
}

static void asleep(struct engine *engine)
{
    check(munmap(engine->at, LEN) == 0);
    check(close(engine->fd) == 0);
    engine->fd = -1;
}

/* As the CPU sees them. */
static bool are(const uint8_t *bytes, uint8_t value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, PART - 1) == 0;
}

/* Both complete with success, whatever they moved; each part of the memory has its turn. */
static void put(const struct engine *engine, size_t at)
{
    rig_move(&link_, IBV_WR_RDMA_WRITE, engine->mr, engine->at + at, node_mr, node + at, PART);
}
static void get(const struct engine *engine, size_t at)
{
    rig_move(&link_, IBV_WR_RDMA_READ, engine->mr, engine->at + at, node_mr, node + at, PART);
}

/* Loosely: what else runs, and the kernel itself, take and give some. */
static bool about(int64_t bytes, size_t want)
{
    return bytes > (int64_t)want - (int64_t)LEN / 2 && bytes < (int64_t)want + (int64_t)LEN / 2;
}

static void without_unregistering(struct engine *engine)
{
    size_t pinned = rig_pinned(), at = LEN / 2;
    memset(engine->at + at, 'a', PART);
    put(engine, at);
    check(are(node + at, 'a')); /* as long as the memory stays, all is well */

    size_t before = rig_memory_free();
    asleep(engine);
    check(rig_pinned() == pinned);
    check(about((int64_t)(rig_memory_free() - before), 0)); /* what was "freed" is not */
    printf("slept without unregistering: %zu MiB pinned, %lld MiB came free of %zu\n",
           rig_pinned() >> 20, (long long)(rig_memory_free() - before) >> 20, LEN >> 20);

    wake(engine);
    memset(engine->at + at, 'b', PART);
    check(rig_pinned() == pinned);
    check(about((int64_t)(before - rig_memory_free()), LEN)); /* held twice */
    put(engine, at);
    check(are(node + at, 'a')); /* the old KV, for every reader of the store */
    memset(node + at, 'c', PART);
    get(engine, at);
    check(are(engine->at + at, 'b')); /* a get that delivers nothing */
    memset(node + at, 0, PART);
    put(engine, at);
    check(are(node + at, 'c')); /* it is in the old pages */
    puts("woken without unregistering: put sent the old pages, get filled the old pages");

    rig_unregister(engine->mr);
    check(rig_pinned() == pinned - LEN);
    check(about((int64_t)(rig_memory_free() - before), 0));
    rig_register(&link_, engine->at, LEN, &engine->mr);
    put(engine, at);
    check(are(node + at, 'b'));
    memset(node + at, 'c', PART);
    get(engine, at);
    check(are(engine->at + at, 'c'));
}

static void with_unregistering(struct engine *engine)
{
    size_t pinned = rig_pinned(), maps = test_count_maps(""), fds = test_count_fds();
    size_t before = rig_memory_free();
    for (unsigned i = 0; i < CYCLES; i++) {
        uint8_t mine = (uint8_t)(2 * i + 1), its = (uint8_t)(2 * i + 2);
        size_t at = i % (LEN / PART) * PART;
        size_t awake = rig_memory_free();
        rig_unregister(engine->mr);
        asleep(engine);
        check(rig_pinned() == pinned - LEN);
        check(about((int64_t)(rig_memory_free() - awake), LEN));
        wake(engine);
        memset(engine->at + at, mine, PART);
        rig_register(&link_, engine->at, LEN, &engine->mr);
        check(rig_pinned() == pinned);
        put(engine, at);
        check(are(node + at, mine));
        memset(node + at, its, PART);
        get(engine, at);
        check(are(engine->at + at, its));
        check(test_count_maps("") == maps && test_count_fds() == fds);
    }
    check(about((int64_t)(before - rig_memory_free()), 0));
    printf("unregistered before each of %d sleeps: right bytes, memory free, no drift\n", CYCLES);
}

int main(void)
{
    rig_link_open(&link_);
    node = rig_node_memory(LEN);
    rig_register_remote(&link_, node, LEN, &node_mr);
    struct engine engine = {0};
    wake(&engine);
    rig_register(&link_, engine.at, LEN, &engine.mr);
    check(rig_pinned() == 2 * LEN);

    without_unregistering(&engine);
    with_unregistering(&engine);

    rig_unregister(engine.mr);
    rig_unregister(node_mr);
    check(rig_pinned() == 0);
    rig_link_close(&link_);
    return 0;
}
