/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions and their life. The order of unregistering is the promise (P3: no pin outlives its
 * mapping): admission ends, transfers end or are cancelled, and only at zero references the
 * transport forgets the region, the mapping goes, the descriptor goes, and `done` is told. Whatever
 * is slow, the registration outlives the transfers; it never is the other way round.
 */
#include "transport/region.h"

#include "base/assert.h"
#include "base/faults.h"
#include "base/log.h"
#include "transport_impl.h"

#include <stdlib.h>
#include <unistd.h>

static const char *const state_texts[] = {
#define X(name, text) [KVT_REGION_##name] = (text),
    KVT_REGION_STATES(X)
#undef X
};

const char *kvt_region_state_text(enum kvt_region_state state)
{
    return state_texts[state];
}

const char *kvt_memory_kind_text(enum kvt_memory_kind kind)
{
    static const char *const texts[] = {
#define X(name, text) [KVT_MEMORY_##name] = (text),
        KVT_MEMORY_KINDS_LIST(X)
#undef X
    };
    return texts[kind];
}

static void set_state(struct kvt_region *region, enum kvt_region_state state)
{
    static const bool legal[][KVT_REGION_UNREGISTERED + 1] = {
        [KVT_REGION_MAPPED] = {[KVT_REGION_REGISTERED] = true, [KVT_REGION_REGISTERING] = true},
        [KVT_REGION_REGISTERING] = {[KVT_REGION_REGISTERED] = true,
                                    [KVT_REGION_MAPPED] = true,
                                    [KVT_REGION_DRAINING] = true},
        [KVT_REGION_REGISTERED] = {[KVT_REGION_DRAINING] = true},
        [KVT_REGION_DRAINING] = {[KVT_REGION_REGISTERED] = true, [KVT_REGION_UNREGISTERED] = true},
        [KVT_REGION_UNREGISTERED] = {false},
    };
    kvb_assert(legal[region->state][state]);
    KVB_LOG(DEBUG, "region", KVB_U64("owner", region->desc.owner),
            KVB_U64("region", region->desc.number), KVB_STR("tag", region->desc.tag),
            KVB_STR("from", kvt_region_state_text(region->state)),
            KVB_STR("to", kvt_region_state_text(state)), KVB_U64("transfers", region->refs));
    region->state = state;
}

/* ---- all of them ---- */

kvb_status_t kvt_regions_create(struct kvb_sched *sched, struct kvt_regions **regions_p)
{
    struct kvt_regions *regions = malloc(sizeof *regions);
    if (regions == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *regions = (struct kvt_regions){
        .sched = sched,
        .memory = {[KVT_MEMORY_HOST] = &kvt_memory_host},
    };
    kvb_list_init(&regions->transports);
    kvb_list_init(&regions->transfers);
    kvb_list_init(&regions->stale);
    *regions_p = regions;
    return KVB_OK;
}

static void stale_cleanup(struct kvt_regions *regions);

void kvt_regions_destroy(struct kvt_regions *regions)
{
    if (regions == NULL) {
        return;
    }
    kvb_assert(regions->n == 0 && kvb_list_empty(&regions->transports));
    stale_cleanup(regions);
    free(regions);
}

uint32_t kvt_regions_count(const struct kvt_regions *regions)
{
    return regions->n;
}

/* ---- one ---- */

static void on_step(struct kvb_event *event);
static void on_bound(struct kvb_timer *timer);

/* The descriptor of a device's memory is judged by who takes it. */
static kvb_status_t check(const struct kvt_memory_ops *memory, const struct kvt_region_desc *desc,
                          int fd, const char **reason_p)
{
    if (desc->device == NULL && memory == NULL) {
        *reason_p = "this kind of memory is not supported here";
        return KVB_ERR_UNSUPPORTED;
    }
    if (desc->device == NULL) {
        return memory->check(fd, desc->fd_offset, desc->len, reason_p);
    }
    if (desc->len == 0 || desc->len > UINT64_MAX - desc->fd_offset) {
        *reason_p = "offset and length make no sense";
        return KVB_ERR_INVALID;
    }
    return KVB_OK;
}

kvb_status_t kvt_region_create(struct kvt_regions *regions, const struct kvt_region_desc *desc,
                               int fd, struct kvt_region **region_p, const char **reason_p)
{
    const struct kvt_memory_ops *memory =
        desc->kind < KVT_MEMORY_KINDS ? regions->memory[desc->kind] : NULL;
    kvb_assert((desc->device != NULL) <= (memory == NULL)); /* a kind is of one sort */
    kvb_status_t status = check(memory, desc, fd, reason_p);
    if (status != KVB_OK) {
        return status;
    }
    struct kvt_region *region = malloc(sizeof *region);
    if (region == NULL) {
        *reason_p = "out of memory";
        return KVB_ERR_NO_MEMORY;
    }
    *region = (struct kvt_region){
        .regions = regions,
        .desc = *desc,
        .state = KVT_REGION_MAPPED,
        .memory = memory,
        .fd = fd,
        .dma_buf = -1,
    };
    kvb_list_init(&region->job.link);
    kvb_event_init(&region->step, on_step);
    kvb_timer_init(&region->bound, on_bound);
    regions->n++;
    *region_p = region;
    return KVB_OK;
}

static void close_fd(struct kvt_region *region)
{
    if (region->fd >= 0) {
        (void)close(region->fd);
        region->fd = -1;
    }
}

static void unmap(struct kvt_region *region)
{
    region->memory->unmap(region->map, region->desc.len);
    region->map = NULL;
    region->target = NULL;
}

void kvt_region_destroy(struct kvt_region *region)
{
    if (region == NULL) {
        return;
    }
    kvb_assert(region->state == KVT_REGION_MAPPED || region->state == KVT_REGION_UNREGISTERED);
    if (region->refs > 0) { /* only with the drain taken out: the last transfer frees it */
        kvb_assert(kvb_fault(KVB_FAULT_DRAIN_SKIPPED));
        region->destroyed = true;
        return;
    }
    close_fd(region);
    region->regions->n--;
    free(region);
}

/* ---- fault run `unregister-skipped`: the first registration of a region (of a device: its import)
 * is never undone, and goes on being used by what is registered in its place; as a NIC does that
 * nobody told. ---- */

struct stale {
    struct kvb_list link;
    uint64_t owner;
    uint32_t number;
    uint64_t len;
    const struct kvt_memory_ops *memory; /* NULL: it is an import of the device's */
    void *map;
    const struct kvt_device *device;
    uint64_t id;
};

static struct stale *stale_find(const struct kvt_region *region)
{
    if (!kvb_fault(KVB_FAULT_UNREGISTER_SKIPPED)) {
        return NULL;
    }
    kvb_list_each(&region->regions->stale, link)
    {
        struct stale *stale = kvb_container_of(link, struct stale, link);
        if (stale->owner == region->desc.owner && stale->number == region->desc.number &&
            stale->len == region->desc.len && stale->device == region->desc.device) {
            return stale;
        }
    }
    return NULL;
}

/* True: the mapping, or import, is kept, and is not the region's any more. */
static bool stale_keep(struct kvt_region *region)
{
    if (!kvb_fault(KVB_FAULT_UNREGISTER_SKIPPED) || stale_find(region) != NULL) {
        return false;
    }
    struct stale *stale = malloc(sizeof *stale);
    if (stale == NULL) {
        return false;
    }
    *stale = (struct stale){
        .owner = region->desc.owner,
        .number = region->desc.number,
        .len = region->desc.len,
        .memory = region->memory,
        .map = region->map,
        .device = region->desc.device,
        .id = region->id,
    };
    kvb_list_push_back(&region->regions->stale, &stale->link);
    return true;
}

static void stale_cleanup(struct kvt_regions *regions)
{
    for (struct kvb_list *link; (link = kvb_list_pop(&regions->stale)) != NULL;) {
        struct stale *stale = kvb_container_of(link, struct stale, link);
        if (stale->memory != NULL) {
            stale->memory->unmap(stale->map, stale->len);
        } /* a device ends with its process, and every import with that */
        free(stale);
    }
}

/* ---- registering ---- */

/* In the transports before `end`; all of them: the list's head. What the last one said that could
 * not. */
static kvb_status_t tell_unregistered(struct kvt_region *region, const struct kvb_list *end)
{
    struct kvb_list *all = &region->regions->transports;
    kvb_status_t refused = KVB_OK;
    for (struct kvb_list *link = all->next; link != end; link = link->next) {
        struct kvt_transport *transport = kvb_container_of(link, struct kvt_transport, link);
        if (transport->ops->region_unregister == NULL) {
            continue;
        }
        kvb_status_t status = transport->ops->region_unregister(transport, region);
        refused = status != KVB_OK ? status : refused;
    }
    return refused;
}

static kvb_status_t tell_registered(struct kvt_region *region)
{
    kvb_list_each(&region->regions->transports, link)
    {
        struct kvt_transport *transport = kvb_container_of(link, struct kvt_transport, link);
        if (transport->ops->region_register == NULL) {
            continue;
        }
        kvb_status_t status = transport->ops->region_register(transport, region);
        if (status != KVB_OK) {
            (void)tell_unregistered(region, link); /* who could not has said so in the log */
            return status;
        }
    }
    return KVB_OK;
}

kvb_status_t kvt_region_register(struct kvt_region *region)
{
    kvb_assert(region->state == KVT_REGION_MAPPED && region->desc.device == NULL);
    kvb_status_t status =
        region->memory->map(region->fd, region->desc.fd_offset, region->desc.len, &region->map);
    if (status != KVB_OK) {
        return status;
    }
    status = tell_registered(region);
    if (status != KVB_OK) {
        unmap(region);
        return status;
    }
    const struct stale *stale = stale_find(region);
    region->target = stale != NULL ? stale->map : region->map;
    region->regions->registered++;
    set_state(region, KVT_REGION_REGISTERED);
    return KVB_OK;
}

/* ---- memory of a device: transports know nothing of it, but of its pool ---- */

static bool job_runs(const struct kvt_region *region)
{
    return !kvb_list_empty(&region->job.link);
}

static void on_imported(struct kvt_device_job *job, kvb_status_t status)
{
    struct kvt_region *region = kvb_container_of(job, struct kvt_region, job);
    kvt_region_done_fn done = region->registered;
    region->registered = NULL;
    region->imported = status == KVB_OK;
    region->direct = status == KVB_OK && job->direct;
    region->pinned_bytes = status == KVB_OK ? region->desc.len : 0;
    if (region->state == KVT_REGION_DRAINING) { /* given up meanwhile */
        kvb_sched_post(region->regions->sched, &region->step);
        status = KVB_ERR_CANCELED;
    } else if (status == KVB_OK) {
        const struct stale *stale = stale_find(region);
        region->target_id = stale != NULL ? stale->id : region->id;
        close_fd(region); /* the device's process holds the memory now, and nothing here does */
        set_state(region, KVT_REGION_REGISTERED);
    } else {
        set_state(region, KVT_REGION_MAPPED);
    }
    done(region->registered_arg, region, status);
}

kvb_status_t kvt_region_register_start(struct kvt_region *region, uint64_t deadline_ns,
                                       kvt_region_done_fn done, void *arg)
{
    struct kvt_device *device = region->desc.device;
    if (device == NULL) {
        return kvt_region_register(region);
    }
    set_state(region, KVT_REGION_REGISTERING);
    region->registered = done;
    region->registered_arg = arg;
    region->id = ++region->regions->last_id;
    region->job = (struct kvt_device_job){.done = on_imported, .deadline_ns = deadline_ns};
    kvb_list_init(&region->job.link);
    device->ops->import(device, region->id, &region->desc, region->fd, &region->job);
    return KVB_IN_PROGRESS;
}

/* ---- unregistering ---- */

static void finish_unregister(struct kvt_region *region, kvb_status_t status)
{
    kvt_region_done_fn done = region->done;
    void *arg = region->arg;
    kvb_sched_timer_clear(region->regions->sched, &region->bound);
    kvb_sched_unpost(&region->step);
    region->done = NULL;
    done(arg, region, status);
}

static void released(struct kvt_region *region)
{
    close_fd(region);
    set_state(region, KVT_REGION_UNREGISTERED);
    finish_unregister(region, KVB_OK);
}

static void on_dropped(struct kvt_device_job *job, kvb_status_t status)
{
    struct kvt_region *region = kvb_container_of(job, struct kvt_region, job);
    if (status == KVB_OK) {
        region->imported = false;
        region->pinned_bytes = 0;
        released(region);
        return;
    }
    KVB_LOG(WARN, "a device could not be made to let go: the region stays registered",
            KVB_U64("region", region->desc.number), KVB_STR("tag", region->desc.tag),
            KVB_STATUS(status));
    set_state(region, KVT_REGION_REGISTERED);
    finish_unregister(region, status);
}

/* Half of the time until everything must have stopped: what is not done then must be killed, and
 * that takes time, too. */
static uint64_t half_way(const struct kvt_region *region)
{
    uint64_t now_ns = kvb_now_ns(region->regions->sched->clock);
    uint64_t stop_ns = region->stop_deadline_ns;
    return stop_ns > now_ns ? now_ns + (stop_ns - now_ns) / 2 : now_ns;
}

static void release_from_device(struct kvt_region *region)
{
    if (!region->imported || stale_keep(region)) {
        region->imported = false;
        released(region);
        return;
    }
    uint64_t bound_ns = kvb_deadline_in_ms(region->regions->sched->clock, KVT_DEVICE_DROP_MS);
    uint64_t half_ns = half_way(region);
    region->job = (struct kvt_device_job){.done = on_dropped,
                                          .deadline_ns = half_ns < bound_ns ? half_ns : bound_ns};
    kvb_list_init(&region->job.link);
    region->desc.device->ops->drop(region->desc.device, region->id, &region->job);
}

static void release(struct kvt_region *region)
{
    region->refused = tell_unregistered(region, &region->regions->transports);
    if (region->refused != KVB_OK) {
        return; /* tried again when the region's next bound is over */
    }
    region->regions->registered--;
    if (region->refs > 0) {
        kvb_assert(kvb_fault(KVB_FAULT_DRAIN_SKIPPED)); /* its last transfer unmaps */
    } else if (stale_keep(region)) {
        region->map = NULL;
        region->target = NULL;
    } else {
        unmap(region);
    }
    released(region);
}

/* Posted when draining begins, and when the last reference goes. */
static void on_step(struct kvb_event *event)
{
    struct kvt_region *region = kvb_container_of(event, struct kvt_region, step);
    kvb_assert(region->state == KVT_REGION_DRAINING);
    if (region->desc.device != NULL) {
        if (region->refs == 0 && !job_runs(region)) {
            release_from_device(region);
        }
    } else if (region->refs == 0 || kvb_fault(KVB_FAULT_DRAIN_SKIPPED)) {
        release(region);
    }
}

static bool names(const struct kvt_transfer *transfer, const struct kvt_region *region)
{
    for (uint32_t i = 0; i < transfer->nslices; i++) {
        if (transfer->slices[i].region == region) {
            return true;
        }
    }
    return false;
}

static void quiesce(struct kvt_region *region)
{
    region->quiescing = true;
    if (job_runs(region)) {
        region->desc.device->ops->hurry(region->desc.device, &region->job, half_way(region));
    }
    kvb_list_each(&region->regions->transfers, link)
    {
        struct kvt_transfer *transfer = kvb_container_of(link, struct kvt_transfer, impl.link);
        if (names(transfer, region)) {
            kvt_transfer_cancel(transfer, region->stop_deadline_ns);
        }
    }
}

static void on_bound(struct kvb_timer *timer)
{
    struct kvt_region *region = kvb_container_of(timer, struct kvt_region, bound);
    kvb_assert(region->state == KVT_REGION_DRAINING);
    if (region->refs == 0 && !job_runs(region) && region->refused == KVB_OK) {
        return; /* the step is posted */
    }
    if (!region->quiescing) {
        quiesce(region);
        kvb_sched_timer_set(region->regions->sched, &region->bound, region->stop_deadline_ns);
        if (region->refused != KVB_OK) {
            release(region);
        }
        return;
    }
    if (region->refused != KVB_OK) { /* what it holds of the memory, sleep must not take (P3) */
        KVB_LOG(WARN, "a registration could not be taken back: the region stays registered",
                KVB_U64("region", region->desc.number), KVB_STR("tag", region->desc.tag),
                KVB_STATUS(region->refused));
        set_state(region, KVT_REGION_REGISTERED);
        finish_unregister(region, region->refused);
        return;
    }
    if (region->refs == 0) {
        return; /* the device has a bound of its own */
    }
    /* Deregistering under a transfer would be worse than keeping the registration (P3). */
    KVB_LOG(WARN, "transfers could not be stopped: the region stays registered",
            KVB_U64("region", region->desc.number), KVB_STR("tag", region->desc.tag),
            KVB_U64("transfers", region->refs));
    set_state(region, KVT_REGION_REGISTERED);
    finish_unregister(region, KVB_ERR_TIMEOUT);
}

void kvt_region_unregister(struct kvt_region *region, uint64_t drain_deadline_ns,
                           uint64_t stop_deadline_ns, kvt_region_done_fn done, void *arg)
{
    struct kvb_sched *sched = region->regions->sched;
    set_state(region, KVT_REGION_DRAINING);
    region->quiescing = false;
    region->refused = KVB_OK;
    region->stop_deadline_ns = stop_deadline_ns;
    region->done = done;
    region->arg = arg;
    kvb_sched_timer_set(sched, &region->bound, drain_deadline_ns);
    kvb_sched_post(sched, &region->step);
}

/* ---- references and bytes ---- */

bool kvt_region_usable(const struct kvt_region *region)
{
    return region->state == KVT_REGION_REGISTERED ||
           /* what began under it goes on, with the drain and the generation taken out */
           (kvb_fault_all(KVB_FAULT_DRAIN_SKIPPED) && region->target != NULL);
}

void kvt_region_get(struct kvt_region *region)
{
    kvb_assert(kvt_region_usable(region));
    region->refs++;
}

void kvt_region_put(struct kvt_region *region)
{
    kvb_assert(region->refs > 0);
    if (--region->refs > 0) {
        return;
    }
    if (region->state == KVT_REGION_DRAINING) {
        kvb_sched_post(region->regions->sched, &region->step);
    } else if (region->state == KVT_REGION_UNREGISTERED) { /* with the drain taken out */
        unmap(region);
        if (region->destroyed) {
            kvt_region_destroy(region);
        }
    }
}

kvb_status_t kvt_region_read(const struct kvt_region *region, uint64_t offset, void *dst,
                             size_t len)
{
    return region->memory->copy_out(region->target, offset, dst, len);
}

kvb_status_t kvt_region_write(const struct kvt_region *region, uint64_t offset, const void *src,
                              size_t len)
{
    return region->memory->copy_in(region->target, offset, src, len);
}

const struct kvt_region_desc *kvt_region_desc(const struct kvt_region *region)
{
    return &region->desc;
}

enum kvt_region_state kvt_region_state(const struct kvt_region *region)
{
    return region->state;
}

uint32_t kvt_region_refs(const struct kvt_region *region)
{
    return region->refs;
}

uint64_t kvt_region_pinned(const struct kvt_region *region)
{
    return region->pinned_bytes;
}
