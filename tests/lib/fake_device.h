/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

/*
 * A device whose memory is plain bytes and whose jobs end when the test says so (or, unless held,
 * at their turn): what region.c and staging.c are to a device, without another process.
 */
#include "test_memory.h"

#include "base/assert.h"
#include "transport_impl.h"

#include <stdlib.h>

#define FAKE_DEVICE_JOBS 64u

enum fake_device_kind { FAKE_IMPORT, FAKE_DROP, FAKE_COPY, FAKE_DEVICE_KINDS };

struct fake_device {
    struct kvt_device base;
    struct test_memory pool;
    uint8_t *bytes; /* of the device; every import is all of them */
    uint64_t len;
    bool hold[FAKE_DEVICE_KINDS];         /* jobs of that kind end by fake_device_end() only */
    kvb_status_t fail[FAKE_DEVICE_KINDS]; /* the next one of that kind ends so; then OK again */
    uint32_t begun[FAKE_DEVICE_KINDS];
    uint32_t imported; /* held now */
    uint64_t hurried_to_ns;
    struct kvt_device_info info; /* as the test has it */
    struct kvb_list jobs;
    struct kvb_event turn;
    /* of a copy that is held: done when it ends well */
    struct fake_device_copy {
        struct kvt_device_job *job;
        bool to_pool;
        uint32_t n;
        struct kvt_device_piece pieces[16];
    } copies[FAKE_DEVICE_JOBS];
};

static inline struct fake_device *fake_device_of_(struct kvt_device *device)
{
    return kvb_container_of(device, struct fake_device, base);
}

static inline void fake_device_move_(struct fake_device *fake, const struct fake_device_copy *copy)
{
    for (uint32_t i = 0; i < copy->n; i++) {
        const struct kvt_device_piece *piece = &copy->pieces[i];
        kvb_assert(piece->offset + piece->len <= fake->len);
        kvb_assert(piece->pool_offset + piece->len <= fake->pool.len);
        uint8_t *pool = fake->pool.base + piece->pool_offset;
        uint8_t *device = fake->bytes + piece->offset;
        memcpy(copy->to_pool ? pool : device, copy->to_pool ? device : pool, piece->len);
    }
}

static inline void fake_device_end(struct fake_device *fake, struct kvt_device_job *job,
                                   kvb_status_t status)
{
    enum fake_device_kind kind = (enum fake_device_kind)job->impl.step;
    if (kind == FAKE_COPY) {
        struct fake_device_copy *copy = &fake->copies[job->impl.seq];
        if (status == KVB_OK) {
            fake_device_move_(fake, copy);
        }
        copy->job = NULL;
    }
    fake->imported += kind == FAKE_IMPORT && status == KVB_OK;
    fake->imported -= kind == FAKE_DROP && status == KVB_OK;
    kvb_list_remove(&job->link);
    job->done(job, status);
}

/* The oldest one. NULL: none runs. */
static inline struct kvt_device_job *fake_device_job(struct fake_device *fake)
{
    struct kvb_list *link = kvb_list_first(&fake->jobs);
    return link != NULL ? kvb_container_of(link, struct kvt_device_job, link) : NULL;
}

static inline void fake_device_turn_(struct kvb_event *event)
{
    struct fake_device *fake = kvb_container_of(event, struct fake_device, turn);
    kvb_list_each(&fake->jobs, link)
    {
        struct kvt_device_job *job = kvb_container_of(link, struct kvt_device_job, link);
        if (!fake->hold[job->impl.step]) {
            kvb_status_t status = fake->fail[job->impl.step];
            fake->fail[job->impl.step] = KVB_OK;
            fake_device_end(fake, job, status);
            kvb_sched_post(fake->base.sched, &fake->turn); /* the list may be another by now */
            return;
        }
    }
}

static inline void fake_device_begin_(struct fake_device *fake, struct kvt_device_job *job,
                                      enum fake_device_kind kind)
{
    job->impl.step = kind;
    fake->begun[kind]++;
    kvb_list_push_back(&fake->jobs, &job->link);
    kvb_sched_post(fake->base.sched, &fake->turn);
}

static inline void fake_device_import_(struct kvt_device *device, uint64_t id,
                                       const struct kvt_region_desc *desc, int fd,
                                       struct kvt_device_job *job)
{
    kvb_assert(id != 0 && desc->device == device && fd >= 0);
    fake_device_begin_(fake_device_of_(device), job, FAKE_IMPORT);
}

static inline void fake_device_drop_(struct kvt_device *device, uint64_t id,
                                     struct kvt_device_job *job)
{
    kvb_assert(id != 0);
    fake_device_begin_(fake_device_of_(device), job, FAKE_DROP);
}

static inline void fake_device_copy_(struct kvt_device *device, bool to_pool,
                                     const struct kvt_device_piece *pieces, uint32_t n,
                                     struct kvt_device_job *job)
{
    struct fake_device *fake = fake_device_of_(device);
    uint32_t at = 0;
    while (fake->copies[at].job != NULL) {
        at++;
        kvb_assert(at < FAKE_DEVICE_JOBS);
    }
    kvb_assert(n > 0 && n <= 16);
    fake->copies[at] = (struct fake_device_copy){.job = job, .to_pool = to_pool, .n = n};
    memcpy(fake->copies[at].pieces, pieces, n * sizeof pieces[0]);
    job->impl.seq = at;
    fake_device_begin_(fake, job, FAKE_COPY);
}

static inline void fake_device_hurry_(struct kvt_device *device, struct kvt_device_job *job,
                                      uint64_t deadline_ns)
{
    struct fake_device *fake = fake_device_of_(device);
    kvb_assert(!kvb_list_empty(&job->link));
    fake->hurried_to_ns = deadline_ns;
}

static inline void fake_device_info_(struct kvt_device *device, struct kvt_device_info *info_p)
{
    *info_p = fake_device_of_(device)->info;
}

static inline void fake_device_init(struct fake_device *fake, struct kvt_regions *regions,
                                    struct kvb_sched *sched, uint64_t len, uint64_t pool_len)
{
    static const struct kvt_device_ops ops = {
        .name = "fake",
        .import = fake_device_import_,
        .drop = fake_device_drop_,
        .copy = fake_device_copy_,
        .hurry = fake_device_hurry_,
        .info = fake_device_info_,
    };
    *fake = (struct fake_device){.len = len};
    test_memory_init(&fake->pool, "pool", pool_len);
    fake->base = (struct kvt_device){.ops = &ops, .sched = sched, .pool_len = fake->pool.len};
    fake->bytes = malloc(len);
    kvb_assert(fake->bytes != NULL);
    kvb_list_init(&fake->jobs);
    kvb_event_init(&fake->turn, fake_device_turn_);
    kvt_staging_init(&fake->base);
    struct kvt_region_desc desc = {.owner = 7, .number = 99, .tag = "pool", .len = fake->pool.len};
    const char *reason = "";
    kvb_assert(kvt_region_create(regions, &desc, test_memory_dup(&fake->pool), &fake->base.pool,
                                 &reason) == KVB_OK);
    kvb_assert(kvt_region_register(fake->base.pool) == KVB_OK);
}

static inline void fake_device_pool_gone_(void *arg, struct kvt_region *region, kvb_status_t status)
{
    kvb_assert(status == KVB_OK);
    kvt_region_destroy(region);
    *(bool *)arg = true;
}

/* *gone: then fake_device_free(). */
static inline void fake_device_close(struct fake_device *fake, bool *gone)
{
    kvb_assert(kvb_list_empty(&fake->jobs) && fake->imported == 0);
    uint64_t now_ns = kvb_now_ns(fake->base.sched->clock);
    kvt_region_unregister(fake->base.pool, now_ns, now_ns + 1, fake_device_pool_gone_, gone);
}

static inline void fake_device_free(struct fake_device *fake)
{
    kvt_staging_cleanup(&fake->base);
    kvb_sched_unpost(&fake->turn);
    test_memory_cleanup(&fake->pool);
    free(fake->bytes);
}

#endif
