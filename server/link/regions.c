/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include "rank.h"
#include "session.h"

#include "base/assert.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * A slot is a number of the engine's; it remembers the tag and the highest generation for as long
 * as the rank lives. A region is one hand-over of it: at most one is the slot's present one, others
 * are on their way in or out, and those go when the transport has let go of them and no task names
 * them.
 *
 * Memory of a device takes time to register: until then a hand-over is on its way in, its slot's
 * present region stays the old one, and it is answered when it is over. A region that is dropped
 * meanwhile is unregistered, which waits for that.
 *
 * The transport closes a region's descriptor when it is unregistered. Until the whole of an
 * unregister has succeeded a second descriptor is kept, so that what was undone can be registered
 * again; with success it goes too, and nothing of ours holds the memory (promise P3).
 */
struct kvp_slot {
    struct kvb_list link;
    uint32_t number;
    char tag[KVB_NAME_MAX];
    bool host_resident;
    uint64_t generation;
    enum kvt_memory_kind kind; /* and length: of what was its own last */
    uint64_t len;
    struct kvp_region *now; /* NULL: unregistered, or never registered */
};

/*
 * How a region stands with its slot; how its memory stands with the transport is another matter
 * (enum kvt_region_state): what was replaced may be registered still.
 */
enum stand {
    ARRIVING, /* owns: an answer, if its device takes time. waits for: to be registered */
    CURRENT,  /* is slot->now. waits for: to be given up, or for another hand-over */
    REPLACED, /* owns: the answer of what replaced it. waits for: to be unregistered */
    LEAVING,  /* waits for: to be unregistered, and for the last task that names it */
};
/* Which part it has in the rank's register or unregister in progress. */
enum part {
    NO_PART,
    IN_REGISTER,   /* counted in registering.left */
    IN_UNREGISTER, /* counted in unregister.left */
    LET_GO,        /* of the unregister, and answered */
};
#define FROM(state) (1u << (state))
static const struct {
    const char *text;
    bool current; /* as a person is told: it is, or will be, what its number stands for */
    unsigned from;
} stands[] = {
    [ARRIVING] = {"arriving", true, 0},
    [CURRENT] = {"current", true, FROM(ARRIVING)},
    [REPLACED] = {"replaced", false, FROM(CURRENT)},
    [LEAVING] = {"leaving", false, FROM(ARRIVING) | FROM(CURRENT) | FROM(REPLACED) | FROM(LEAVING)},
};
static const unsigned parts[] = {
    [NO_PART] = FROM(NO_PART) | FROM(IN_REGISTER) | FROM(IN_UNREGISTER) | FROM(LET_GO),
    [IN_REGISTER] = FROM(NO_PART),
    [IN_UNREGISTER] = FROM(NO_PART),
    [LET_GO] = FROM(IN_UNREGISTER),
};

struct kvp_region {
    struct kvb_list link; /* rank->regions */
    struct kvp_link_rank *rank;
    struct kvp_slot *slot;
    struct kvt_region *memory;
    int undo_fd; /* -1: none */
    dev_t dev;   /* of host memory: which file it is */
    ino_t ino;
    uint32_t uses;
    enum stand stand;
    enum part part;
    uint64_t seq; /* of the answer that it owns */
};

static void set_stand(struct kvp_region *region, enum stand stand)
{
    kvb_assert((stands[stand].from & FROM(region->stand)) != 0);
    KVB_LOG(TRACE, "region", KVB_STR("rank", region->rank->name),
            KVB_U64("region", region->slot->number), KVB_STR("from", stands[region->stand].text),
            KVB_STR("to", stands[stand].text));
    region->stand = stand;
}

static void set_part(struct kvp_region *region, enum part part)
{
    kvb_assert((parts[part] & FROM(region->part)) != 0);
    region->part = part;
}

static bool on_its_way_out(const struct kvp_region *region)
{
    return !stands[region->stand].current;
}

/* Of all that carries this number: what is dropped may still be registered. */
static uint64_t pinned_bytes(const struct kvp_link_rank *rank, const struct kvp_slot *slot)
{
    uint64_t bytes = 0;
    kvb_list_each(&rank->regions, link)
    {
        const struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        bytes += region->slot == slot ? kvt_region_pinned(region->memory) : 0;
    }
    return bytes;
}

/* What is registered now, told where it changes. */
static void show(const struct kvp_link_rank *rank)
{
    struct kvb_metrics *metrics = rank->owner->config.metrics;
    if (metrics == NULL || rank->released) {
        return;
    }
    uint64_t bytes;
    const char *values[] = {rank->instance_name, rank->label};
    uint32_t n = kvp_regions_registered(rank, NULL, &bytes);
    kvb_series_set(kvb_series(metrics, KVP_M_REGIONS, values), n);
    kvb_series_set(kvb_series(metrics, KVP_M_REGION_BYTES, values), (double)bytes);
    kvb_list_each(&rank->slots, link)
    {
        const struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        char region[16];
        (void)snprintf(region, sizeof region, "%u", slot->number);
        const char *of_region[] = {rank->instance_name, rank->label, region};
        kvb_series_set(kvb_series(metrics, KVP_M_REGION_PINNED, of_region),
                       (double)pinned_bytes(rank, slot));
    }
}

void kvp_regions_forget_shown(const struct kvp_link_rank *rank)
{
    struct kvb_metrics *metrics = rank->owner->config.metrics;
    const char *values[] = {rank->instance_name, rank->label};
    if (metrics != NULL) {
        kvb_series_drop(metrics, KVP_M_REGIONS, values, 2);
        kvb_series_drop(metrics, KVP_M_REGION_BYTES, values, 2);
        kvb_series_drop(metrics, KVP_M_REGION_PINNED, values, 2);
    }
}

static bool has_tag(const char (*tags)[KVB_NAME_MAX], uint32_t ntags, const char *tag)
{
    for (uint32_t i = 0; i < ntags; i++) {
        if (strcmp(tags[i], tag) == 0) {
            return true;
        }
    }
    return false;
}

static void on_unregistered(void *arg, struct kvt_region *memory, kvb_status_t status);

static void start_unregister(struct kvp_region *region, uint64_t drain_ns, uint64_t stop_ns)
{
    kvt_region_unregister(region->memory, drain_ns, stop_ns, on_unregistered, region);
}

/* Until a region must be let go of when nobody waits for its transfers. A device that takes longer
 * is killed, and with it goes the rest of what it holds for the rank: so it is given time, unless
 * all of that goes anyway. */
static uint64_t stop_deadline(const struct kvp_link_rank *rank)
{
    uint64_t ms = rank->owner->config.abort_ms;
    if (rank->device != NULL && rank->connected) {
        ms += 2 * KVT_DEVICE_DROP_MS;
    }
    return kvb_deadline_in_ms(rank->sched->clock, ms);
}

/* At once, running transfers are stopped. */
static void start_unregister_now(struct kvp_region *region)
{
    start_unregister(region, kvb_now_ns(region->rank->sched->clock), stop_deadline(region->rank));
}

static void close_undo(struct kvp_region *region)
{
    if (region->undo_fd >= 0) {
        (void)close(region->undo_fd);
        region->undo_fd = -1;
    }
}

/* Never had a region that was its own, and has none that may become it: else no register of its tag
 * would ever succeed. */
static bool slot_unused(const struct kvp_link_rank *rank, const struct kvp_slot *slot)
{
    kvb_list_each(&rank->regions, link)
    {
        if (kvb_container_of(link, struct kvp_region, link)->slot == slot) {
            return false;
        }
    }
    return slot->generation == 0;
}

/* No region of it is left. */
static void drop_slot(struct kvp_link_rank *rank, struct kvp_slot *slot)
{
    kvb_list_remove(&slot->link);
    rank->nslots--;
    free(slot);
}

/* Last statement of its callers: it may free the rank. */
static void settle(struct kvp_region *region)
{
    enum kvt_region_state state = kvt_region_state(region->memory);
    if (!on_its_way_out(region) || region->uses > 0 || state == KVT_REGION_REGISTERED ||
        state == KVT_REGION_REGISTERING || state == KVT_REGION_DRAINING) {
        return;
    }
    struct kvp_link_rank *rank = region->rank;
    struct kvp_slot *slot = region->slot;
    kvt_region_destroy(region->memory);
    close_undo(region);
    kvb_list_remove(&region->link);
    free(region);
    if (slot_unused(rank, slot)) {
        drop_slot(rank, slot);
    }
    show(rank);
    kvp_link_rank_settle(rank);
}

/* Whoever waits for its end goes on waiting. */
static void drop(struct kvp_region *region)
{
    if (region->stand != REPLACED) {
        set_stand(region, LEAVING);
    }
    close_undo(region);
    if (region->slot->now == region) {
        region->slot->now = NULL;
    }
    enum kvt_region_state state = kvt_region_state(region->memory);
    if (state == KVT_REGION_REGISTERED || state == KVT_REGION_REGISTERING) {
        start_unregister_now(region);
        return;
    }
    settle(region);
}

static void on_region_registered(void *arg, struct kvt_region *memory, kvb_status_t status);

/* OK; IN_PROGRESS: on_region_registered() follows. */
static kvb_status_t start_register(struct kvp_region *region)
{
    const struct kvb_clock *clock = region->rank->sched->clock;
    return kvt_region_register_start(
        region->memory, kvb_deadline_in_ms(clock, region->rank->owner->config.transfer_ms),
        on_region_registered, region);
}

static bool ranges_meet(const struct kvt_region_desc *a, const struct kvt_region_desc *b)
{
    return a->fd_offset < b->fd_offset ? b->fd_offset - a->fd_offset < a->len
                                       : a->fd_offset - b->fd_offset < b->len;
}

/*
 * Host memory that has another number, too: released under one of them, it would go on being held
 * under the other. (The same number again replaces what it was; of a device's memory the
 * descriptors do not tell.)
 */
static bool has_another_number(const struct kvp_region *region, const struct kvt_region_desc *desc)
{
    if (desc->device != NULL) {
        return false;
    }
    kvb_list_each(&region->rank->regions, link)
    {
        const struct kvp_region *other = kvb_container_of(link, struct kvp_region, link);
        const struct kvt_region_desc *its = kvt_region_desc(other->memory);
        if (other->slot != region->slot && !on_its_way_out(other) && its->device == NULL &&
            other->dev == region->dev && other->ino == region->ino && ranges_meet(its, desc)) {
            return true;
        }
    }
    return false;
}

/* A region of this slot from a descriptor, not registered. Takes fd. */
static kvb_status_t make_region(struct kvp_link_rank *rank, struct kvp_slot *slot,
                                const struct kvt_region_desc *desc, int fd,
                                struct kvp_region **region_p)
{
    const char *why = "";
    struct stat file;
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    struct kvp_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        goto err_close;
    }
    region->rank = rank;
    region->slot = slot;
    region->undo_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (region->undo_fd < 0) {
        status = KVB_ERR_LIMIT;
        goto err_free;
    }
    if (fstat(fd, &file) != 0) {
        status = KVB_ERR_INVALID;
        goto err_undo;
    }
    region->dev = file.st_dev;
    region->ino = file.st_ino;
    if (has_another_number(region, desc)) {
        status = KVB_ERR_INVALID;
        why = "its memory, or a part of it, was handed over as another region, too";
    } else {
        status = kvt_region_create(rank->owner->config.regions, desc, fd, &region->memory, &why);
    }
    if (status != KVB_OK) {
        KVB_LOG_LIMITED(WARN, "region refused", KVB_STR("rank", rank->name),
                        KVB_U64("region", desc->number), KVB_STR("tag", desc->tag),
                        KVB_STATUS(status), KVB_STR("reason", why));
        goto err_undo;
    }
    kvb_list_push_back(&rank->regions, &region->link);
    *region_p = region;
    return KVB_OK;

err_undo:
    close_undo(region);
err_free:
    free(region);
err_close:
    (void)close(fd);
    return status;
}

/* ---- hand-over ---- */

static struct kvp_slot *find_slot(const struct kvp_link_rank *rank, uint32_t number)
{
    kvb_list_each(&rank->slots, link)
    {
        struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (slot->number == number) {
            return slot;
        }
    }
    return NULL;
}

static kvb_status_t make_slot(struct kvp_link_rank *rank, const struct kvb_link_region *msg,
                              struct kvp_slot **slot_p)
{
    if (rank->nslots == KVB_REGIONS_MAX) {
        return KVB_ERR_LIMIT;
    }
    struct kvp_slot *slot = calloc(1, sizeof *slot);
    if (slot == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    slot->number = msg->region;
    memcpy(slot->tag, msg->tag, sizeof slot->tag);
    kvb_list_push_back(&rank->slots, &slot->link);
    rank->nslots++;
    *slot_p = slot;
    return KVB_OK;
}

/* Index of the tag in rank->tags, added (admitted) if it is new; KVB_TAGS_MAX: no room. */
static uint32_t find_tag(struct kvp_link_rank *rank, const char *tag)
{
    uint32_t i = 0;
    while (i < rank->ntags && strcmp(rank->tags[i].tag, tag) != 0) {
        i++;
    }
    if (i == rank->ntags && i < KVB_TAGS_MAX) {
        (void)snprintf(rank->tags[i].tag, sizeof rank->tags[i].tag, "%s", tag);
        rank->tags[i].admitted = true;
        rank->ntags++;
    }
    return i;
}

static void admit(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX], uint32_t ntags,
                  bool admitted)
{
    for (uint32_t i = 0; i < ntags; i++) {
        uint32_t at = find_tag(rank, tags[i]);
        if (at < KVB_TAGS_MAX) {
            rank->tags[at].admitted = admitted;
        }
    }
}

/* Which slot it is for, and whether it may change anything. */
static kvb_status_t judge_hand_over(struct kvp_link_rank *rank, const struct kvb_link_region *msg,
                                    struct kvp_slot **slot_p)
{
    if (find_tag(rank, msg->tag) == KVB_TAGS_MAX) {
        return KVB_ERR_LIMIT;
    }
    struct kvp_slot *slot = find_slot(rank, msg->region);
    if (slot == NULL) {
        return make_slot(rank, msg, slot_p);
    }
    if (strcmp(slot->tag, msg->tag) != 0) {
        return KVB_ERR_INVALID;
    }
    if (msg->generation <= slot->generation) {
        return KVB_ERR_GENERATION; /* what is older changes nothing */
    }
    *slot_p = slot;
    return KVB_OK;
}

/* A region of the slot, registered (or IN_PROGRESS) if its tag is not given up. Takes fd. */
static kvb_status_t fresh_region(struct kvp_link_rank *rank, struct kvp_slot *slot,
                                 const struct kvb_link_region *msg, int fd,
                                 struct kvp_region **region_p)
{
    struct kvt_region_desc desc = {
        .owner = rank->hold_id * KVB_RANKS_MAX + rank->base.index,
        .number = msg->region,
        .kind = msg->kind == KVB_MEMORY_HOST ? KVT_MEMORY_HOST : KVT_MEMORY_CUDA,
        .fabric = msg->kind == KVB_MEMORY_CUDA_FABRIC,
        .host_resident = (msg->flags & KVB_REGION_HOST_RESIDENT) != 0,
        .fd_offset = msg->fd_offset,
        .len = msg->len,
        .generation = msg->generation,
    };
    _Static_assert(sizeof desc.tag == sizeof msg->tag, "names have one length");
    memcpy(desc.tag, msg->tag, sizeof desc.tag);
    struct kvp_region *region;
    kvb_status_t status = KVB_OK;
    if (desc.kind == KVT_MEMORY_CUDA) {
        status = kvp_rank_device_open(rank, desc.owner, &desc.device);
    }
    if (status != KVB_OK) {
        (void)close(fd);
        return status;
    }
    status = make_region(rank, slot, &desc, fd, &region);
    if (status != KVB_OK) {
        return status;
    }
    if (rank->tags[find_tag(rank, slot->tag)].admitted || desc.host_resident) {
        status = start_register(region);
    }
    if (status != KVB_OK && status != KVB_IN_PROGRESS) {
        drop(region);
        return status;
    }
    *region_p = region;
    return status;
}

/* The region is its slot's from now on. True: answered when the one that it replaces is gone. */
static bool adopt(struct kvp_region *region, uint64_t seq)
{
    struct kvp_slot *slot = region->slot;
    const struct kvt_region_desc *desc = kvt_region_desc(region->memory);
    struct kvp_region *old = slot->now;
    set_stand(region, CURRENT);
    slot->now = region;
    slot->generation = desc->generation;
    slot->host_resident = desc->host_resident;
    slot->kind = desc->kind;
    slot->len = desc->len;
    show(region->rank);
    if (old == NULL) {
        return false;
    }
    enum kvt_region_state state = kvt_region_state(old->memory);
    bool waits = state == KVT_REGION_REGISTERED || state == KVT_REGION_DRAINING;
    if (waits) {
        set_stand(old, REPLACED);
        old->seq = seq;
    }
    drop(old);
    return waits;
}

/* Last statement of its callers. */
static void end_hand_over(struct kvp_region *region, kvb_status_t status)
{
    struct kvp_link_rank *rank = region->rank;
    uint64_t seq = region->seq;
    bool connected = rank->connected;
    if (status == KVB_OK &&
        kvt_region_desc(region->memory)->generation <= region->slot->generation) {
        status = KVB_ERR_GENERATION; /* a newer one came meanwhile */
    }
    bool waits = status == KVB_OK && adopt(region, seq);
    if (status != KVB_OK) {
        drop(region); /* it may free the rank, if that is not connected */
    }
    if (!connected || waits) {
        return;
    }
    kvp_session_reply_status(rank->session, KVB_LINK_REGISTER_REGION, seq, status);
}

void kvp_regions_hand_over(struct kvp_link_rank *rank, uint64_t seq,
                           const struct kvb_link_region *msg, int fd)
{
    struct kvp_slot *slot;
    struct kvp_region *region = NULL; /* set where it is used; compilers do not see it */
    kvb_status_t status = judge_hand_over(rank, msg, &slot);
    if (status != KVB_OK) {
        (void)close(fd);
        goto out_reply;
    }
    status = fresh_region(rank, slot, msg, fd, &region);
    if (status == KVB_IN_PROGRESS) {
        region->seq = seq;
        return;
    }
    if (status != KVB_OK) {
        slot = find_slot(rank, msg->region); /* it may have gone with the region */
        if (slot != NULL && slot_unused(rank, slot)) {
            drop_slot(rank, slot);
        }
        goto out_reply;
    }
    if (adopt(region, seq)) {
        return;
    }
out_reply:
    kvp_session_reply_status(rank->session, KVB_LINK_REGISTER_REGION, seq, status);
}

/* ---- use by tasks ---- */

kvb_status_t kvp_regions_use(struct kvp_link_rank *rank, const struct kvb_slice *slice,
                             struct kvp_region **region_p)
{
    struct kvp_slot *slot = find_slot(rank, slice->region);
    if (slot == NULL) {
        return KVB_ERR_INVALID;
    }
    struct kvp_region *region = slot->now;
    if (region == NULL || kvt_region_state(region->memory) != KVT_REGION_REGISTERED) {
        return KVB_ERR_GENERATION;
    }
    uint64_t len = kvt_region_desc(region->memory)->len;
    if (slice->offset > len || slice->len > len - slice->offset) {
        return KVB_ERR_INVALID;
    }
    region->uses++;
    *region_p = region;
    return KVB_OK;
}

struct kvt_region *kvp_region_memory(struct kvp_region *region)
{
    return region->memory;
}

void kvp_region_unuse(struct kvp_region *region)
{
    kvb_assert(region->uses > 0);
    region->uses--;
    settle(region);
}

/* ---- memory that is lost ---- */

/* What was registered of these tags is not any more, and nobody has asked for that: the instance
 * asks the engine for it anew. */
static void tell_lost(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX], uint32_t ntags)
{
    admit(rank, tags, ntags, false);
    kvp_instance_memory_lost(rank->instance, &rank->base, tags, ntags);
}

/* The slot's region could not be registered again. It may free the rank, if that is not connected.
 */
static void lose(struct kvp_region *region)
{
    struct kvp_link_rank *rank = region->rank;
    bool connected = rank->connected;
    char tags[1][KVB_NAME_MAX];
    memcpy(tags[0], region->slot->tag, sizeof tags[0]);
    drop(region);
    if (connected) {
        tell_lost(rank, (const char(*)[KVB_NAME_MAX])tags, 1);
    }
}

/* ---- unregister, all or nothing ---- */

/* Registers anew what an unregister that failed had undone already. */
static void register_again(struct kvp_region *old)
{
    struct kvp_link_rank *rank = old->rank;
    struct kvp_slot *slot = old->slot;
    int fd = old->undo_fd;
    old->undo_fd = -1;
    struct kvp_region *region = NULL;
    kvb_status_t status = make_region(rank, slot, kvt_region_desc(old->memory), fd, &region);
    if (status == KVB_OK) {
        status = start_register(region);
    }
    if (status != KVB_OK && status != KVB_IN_PROGRESS) {
        KVB_LOG(ERROR, "region could not be registered again", KVB_STR("rank", rank->name),
                KVB_U64("region", slot->number), KVB_STR("tag", slot->tag), KVB_STATUS(status));
        if (region != NULL) {
            drop(region);
        }
        region = NULL;
        if (slot->now == old && rank->connected) {
            tell_lost(rank, (const char(*)[KVB_NAME_MAX]) & slot->tag, 1);
        }
    }
    if (slot->now == old) {
        slot->now = region;
        if (region != NULL) {
            set_stand(region, CURRENT);
        }
    } else if (region != NULL) {
        drop(region); /* handed over anew meanwhile */
    }
    drop(old);
}

/* Hand-overs that came while their tag was being given up: nothing may hold that memory. */
static void drop_mapped(struct kvp_link_rank *rank, const struct kvp_unregister *op)
{
    kvb_list_each(&rank->slots, link)
    {
        struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (slot->now != NULL && !slot->host_resident && has_tag(op->tags, op->ntags, slot->tag) &&
            kvt_region_state(slot->now->memory) == KVT_REGION_MAPPED) {
            drop(slot->now);
        }
    }
}

/* The same hand-overs, when their tag was not given up after all. */
static void register_mapped(struct kvp_link_rank *rank, const struct kvp_unregister *op)
{
    kvb_list_each(&rank->slots, link)
    {
        struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (slot->now == NULL || !has_tag(op->tags, op->ntags, slot->tag) ||
            kvt_region_state(slot->now->memory) != KVT_REGION_MAPPED) {
            continue;
        }
        kvb_status_t status = start_register(slot->now);
        if (status != KVB_OK && status != KVB_IN_PROGRESS) {
            KVB_LOG(ERROR, "region could not be registered", KVB_STR("rank", rank->name),
                    KVB_U64("region", slot->number), KVB_STR("tag", slot->tag), KVB_STATUS(status));
            lose(slot->now);
        }
    }
}

static void finish_unregister(struct kvp_link_rank *rank)
{
    struct kvp_unregister *op = &rank->unregister;
    kvb_status_t status = op->status;
    kvb_list_each(&rank->regions, link)
    {
        struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        if (region->part != LET_GO) {
            continue;
        }
        set_part(region, NO_PART);
        if (status == KVB_OK || op->undoes != KVB_OK) {
            drop(region);
        } else if (on_its_way_out(region)) {
            settle(region);
        } else if (kvt_region_state(region->memory) == KVT_REGION_UNREGISTERED) {
            register_again(region);
        }
    }
    if (status == KVB_OK || op->undoes != KVB_OK) {
        drop_mapped(rank, op);
    } else {
        admit(rank, (const char(*)[KVB_NAME_MAX])op->tags, op->ntags, true);
        if (rank->connected) {
            register_mapped(rank, op);
        }
    }
    op->active = false;
    op->done(op->arg, op->undoes != KVB_OK ? op->undoes : status);
}

static void on_unregistered(void *arg, struct kvt_region *memory, kvb_status_t status)
{
    struct kvp_region *region = arg;
    struct kvp_link_rank *rank = region->rank;
    kvb_assert(memory == region->memory);
    show(rank);
    if (on_its_way_out(region) && status != KVB_OK) {
        /* A transfer that cannot be stopped holds the memory: stay at it. */
        KVB_LOG_LIMITED(WARN, "region still in use", KVB_STR("rank", rank->name),
                        KVB_U64("region", region->slot->number), KVB_STATUS(status));
        start_unregister_now(region);
    }
    if (region->stand == REPLACED && status == KVB_OK) {
        set_stand(region, LEAVING);
        if (rank->connected) {
            kvp_session_reply_status(rank->session, KVB_LINK_REGISTER_REGION, region->seq, KVB_OK);
        }
    }
    if (region->part == IN_UNREGISTER) {
        set_part(region, LET_GO);
        struct kvp_unregister *op = &rank->unregister;
        if (status != KVB_OK) {
            kvp_rank_device_note_cause(rank);
            op->status = status;
        }
        if (--op->left == 0 && op->active) {
            finish_unregister(rank);
            return;
        }
    }
    settle(region);
}

static void on_nothing_to_unregister(struct kvb_event *event)
{
    struct kvp_link_rank *rank = kvb_container_of(event, struct kvp_link_rank, unregister.event);
    finish_unregister(rank);
}

static void begin_unregister(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                             uint32_t ntags, uint64_t deadline_ns, kvb_status_t undoes,
                             kvp_rank_done_fn done, void *arg)
{
    struct kvp_unregister *op = &rank->unregister;
    kvb_assert(!op->active && ntags <= KVB_TAGS_MAX);
    op->active = true;
    op->status = !rank->connected ? KVB_ERR_DISCONNECTED : KVB_OK;
    op->undoes = undoes;
    op->done = done;
    op->arg = arg;
    op->ntags = ntags;
    memcpy(op->tags, tags, ntags * sizeof op->tags[0]);
    admit(rank, tags, ntags, false);
    /* Transfers may finish until there is just time to stop them. */
    uint64_t abort_ns = rank->owner->config.abort_ms * KVB_NS_PER_MS;
    uint64_t drain_ns = deadline_ns > abort_ns ? deadline_ns - abort_ns : 0;
    kvb_list_each(&rank->regions, link)
    {
        struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        enum kvt_region_state state = kvt_region_state(region->memory);
        if (kvt_region_desc(region->memory)->host_resident ||
            !has_tag(tags, ntags, region->slot->tag) ||
            (state != KVT_REGION_REGISTERED && state != KVT_REGION_REGISTERING &&
             state != KVT_REGION_DRAINING)) {
            continue;
        }
        set_part(region, IN_UNREGISTER);
        op->left++;
        if (state != KVT_REGION_DRAINING) {
            start_unregister(region, drain_ns, deadline_ns);
        } /* else it was replaced, and is on its way out: it may be the same memory */
    }
    if (op->left == 0) {
        kvb_sched_post(rank->sched, &op->event);
    }
}

void kvp_regions_unregister(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                            uint32_t ntags, uint64_t deadline_ns, kvp_rank_done_fn done, void *arg)
{
    kvp_rank_device_forget_cause(rank);
    begin_unregister(rank, tags, ntags, deadline_ns, KVB_OK, done, arg);
}

/* ---- register, all or nothing ---- */

static kvb_status_t register_slots(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                                   uint32_t ntags)
{
    rank->registering.left = 0;
    rank->registering.status = KVB_OK;
    kvb_list_each(&rank->slots, link)
    {
        const struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (!slot->host_resident && has_tag(tags, ntags, slot->tag) && slot->now == NULL) {
            KVB_LOG(WARN, "region was not handed over anew", KVB_STR("rank", rank->name),
                    KVB_U64("region", slot->number), KVB_STR("tag", slot->tag));
            return KVB_ERR_BAD_STATE;
        }
    }
    kvb_list_each(&rank->slots, link)
    {
        const struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (slot->now == NULL || !has_tag(tags, ntags, slot->tag) ||
            kvt_region_state(slot->now->memory) != KVT_REGION_MAPPED) {
            continue;
        }
        kvb_status_t status = start_register(slot->now);
        if (status == KVB_IN_PROGRESS) {
            set_part(slot->now, IN_REGISTER);
            rank->registering.left++;
        } else if (status != KVB_OK) {
            KVB_LOG(ERROR, "region could not be registered", KVB_STR("rank", rank->name),
                    KVB_U64("region", slot->number), KVB_STR("tag", slot->tag), KVB_STATUS(status));
            return status;
        }
    }
    return KVB_OK;
}

static void on_registered(struct kvb_event *event)
{
    struct kvp_link_rank *rank = kvb_container_of(event, struct kvp_link_rank, registering.event);
    rank->registering.active = false;
    rank->registering.done(rank->registering.arg, rank->registering.status);
}

/* What is still on its way is not waited for any more. */
static void forget_registering(struct kvp_link_rank *rank)
{
    kvb_list_each(&rank->regions, link)
    {
        struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        if (region->part == IN_REGISTER) {
            set_part(region, NO_PART);
        }
    }
    rank->registering.left = 0;
}

static void finish_register(struct kvp_link_rank *rank, kvb_status_t status)
{
    const char(*tags)[KVB_NAME_MAX] = (const char(*)[KVB_NAME_MAX])rank->registering.tags;
    uint32_t ntags = rank->registering.ntags;
    forget_registering(rank);
    if (status != KVB_OK && rank->connected) {
        rank->registering.active = false;
        begin_unregister(rank, tags, ntags, stop_deadline(rank), status, rank->registering.done,
                         rank->registering.arg);
        return;
    }
    if (status == KVB_OK) {
        admit(rank, tags, ntags, true);
        show(rank);
    }
    rank->registering.status = status;
    kvb_sched_post(rank->sched, &rank->registering.event);
}

void kvp_regions_register(struct kvp_link_rank *rank, const char (*tags)[KVB_NAME_MAX],
                          uint32_t ntags, kvp_rank_done_fn done, void *arg)
{
    kvb_assert(!rank->registering.active && ntags <= KVB_TAGS_MAX);
    kvp_rank_device_forget_cause(rank);
    rank->registering.active = true;
    rank->registering.done = done;
    rank->registering.arg = arg;
    rank->registering.ntags = ntags;
    memcpy(rank->registering.tags, tags, ntags * sizeof tags[0]);
    kvb_status_t status =
        !rank->connected ? KVB_ERR_DISCONNECTED : register_slots(rank, tags, ntags);
    if (status != KVB_OK || rank->registering.left == 0) {
        finish_register(rank, status);
    }
}

/* A region whose memory is a device's; it may be dropped already (CANCELED). */
static void on_region_registered(void *arg, struct kvt_region *memory, kvb_status_t status)
{
    struct kvp_region *region = arg;
    struct kvp_link_rank *rank = region->rank;
    kvb_assert(memory == region->memory);
    if (status != KVB_OK && status != KVB_ERR_CANCELED) {
        KVB_LOG_LIMITED(ERROR, "region could not be registered", KVB_STR("rank", rank->name),
                        KVB_U64("region", region->slot->number), KVB_STR("tag", region->slot->tag),
                        KVB_STATUS(status));
    }
    show(rank);
    if (region->stand == ARRIVING) {
        end_hand_over(region, status);
    } else if (region->part == IN_REGISTER) { /* undone by the register in progress, if need be */
        set_part(region, NO_PART);
        if (status != KVB_OK && rank->registering.status == KVB_OK) { /* the first one's */
            kvp_rank_device_note_cause(rank);
            rank->registering.status = status;
        }
        if (--rank->registering.left == 0) {
            finish_register(rank, rank->registering.status);
        }
    } else if (status != KVB_OK && region->stand == CURRENT && region->part == NO_PART) {
        lose(region); /* it was there before an unregister that failed */
    } else if (status != KVB_OK) {
        drop(region);
    }
}

uint32_t kvp_regions_registered(const struct kvp_link_rank *rank, const char *tag,
                                uint64_t *bytes_p)
{
    uint32_t n = 0;
    uint64_t bytes = 0;
    kvb_list_each(&rank->regions, link)
    {
        const struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        enum kvt_region_state state = kvt_region_state(region->memory);
        if ((state == KVT_REGION_REGISTERED || state == KVT_REGION_DRAINING) &&
            (tag == NULL || strcmp(region->slot->tag, tag) == 0)) {
            n++;
            bytes += kvt_region_desc(region->memory)->len;
        }
    }
    if (bytes_p != NULL) {
        *bytes_p = bytes;
    }
    return n;
}

static void tell_region(const struct kvp_region *region, kvp_region_fn each, void *arg)
{
    const struct kvt_region_desc *desc = kvt_region_desc(region->memory);
    each(arg, &(struct kvp_region_view){
                  .number = region->slot->number,
                  .tag = region->slot->tag,
                  .kind = kvt_memory_kind_text(desc->kind),
                  .state = kvt_region_state_text(kvt_region_state(region->memory)),
                  .current = stands[region->stand].current,
                  .kept_across_sleep = desc->host_resident,
                  .generation = desc->generation,
                  .bytes = desc->len,
                  .pinned_bytes = kvt_region_pinned(region->memory),
                  .transfers = kvt_region_refs(region->memory),
              });
}

void kvp_regions_each(const struct kvp_link_rank *rank, kvp_region_fn each, void *arg)
{
    kvb_list_each(&rank->slots, link)
    {
        const struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        if (slot->now == NULL && slot->generation > 0) {
            each(arg, &(struct kvp_region_view){
                          .number = slot->number,
                          .tag = slot->tag,
                          .kind = kvt_memory_kind_text(slot->kind),
                          .state = kvt_region_state_text(KVT_REGION_UNREGISTERED),
                          .current = true,
                          .kept_across_sleep = slot->host_resident,
                          .generation = slot->generation,
                          .bytes = slot->len,
                      });
        }
    }
    kvb_list_each(&rank->regions, link)
    {
        tell_region(kvb_container_of(link, struct kvp_region, link), each, arg);
    }
}

/* ---- life ---- */

void kvp_regions_init(struct kvp_link_rank *rank, const struct kvb_link_hello *hello)
{
    kvb_list_init(&rank->slots);
    kvb_list_init(&rank->regions);
    kvb_event_init(&rank->unregister.event, on_nothing_to_unregister);
    kvb_event_init(&rank->registering.event, on_registered);
    for (uint32_t i = 0; i < hello->state.ntags; i++) {
        const struct kvb_tag_state *state = &hello->state.tags[i];
        rank->tags[find_tag(rank, state->tag)].admitted = state->residency == KVB_RESIDENT;
    }
}

void kvp_regions_lost(struct kvp_link_rank *rank)
{
    char tags[KVB_TAGS_MAX][KVB_NAME_MAX];
    uint32_t ntags = 0;
    kvb_list_each(&rank->slots, link)
    {
        const struct kvp_slot *slot = kvb_container_of(link, struct kvp_slot, link);
        struct kvp_region *region = slot->now;
        if (region == NULL || kvt_region_desc(region->memory)->device == NULL ||
            kvt_region_state(region->memory) != KVT_REGION_REGISTERED) {
            continue;
        }
        if (!has_tag((const char(*)[KVB_NAME_MAX])tags, ntags, slot->tag)) {
            memcpy(tags[ntags++], slot->tag, sizeof tags[0]); /* a rank has no more tags */
        }
        drop(region);
    }
    if (ntags > 0) {
        tell_lost(rank, (const char(*)[KVB_NAME_MAX])tags, ntags);
    }
}

void kvp_regions_stop(struct kvp_link_rank *rank)
{
    forget_registering(rank);
    kvb_list_each(&rank->regions, link)
    {
        struct kvp_region *region = kvb_container_of(link, struct kvp_region, link);
        set_part(region, NO_PART);
        drop(region);
    }
    struct kvp_unregister *op = &rank->unregister;
    op->left = 0;
    if (op->active) {
        op->status = KVB_ERR_DISCONNECTED;
        op->undoes = KVB_OK;
        kvb_sched_post(rank->sched, &op->event);
    }
    if (rank->registering.active) {
        rank->registering.status = KVB_ERR_DISCONNECTED;
        kvb_sched_post(rank->sched, &rank->registering.event);
    }
}

void kvp_regions_cleanup(struct kvp_link_rank *rank)
{
    kvb_assert(kvb_list_empty(&rank->regions));
    for (struct kvb_list *link; (link = kvb_list_pop(&rank->slots)) != NULL;) {
        free(kvb_container_of(link, struct kvp_slot, link));
    }
}
