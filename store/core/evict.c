/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who goes when room is needed.
 *
 * Order: cleared objects first; then unpinned ones; soft-pinned ones only when no unpinned one
 * would help. Whether it can work at all is known before anything is evicted (space.c keeps the
 * counts), so a put that cannot be helped evicts nothing.
 *
 * Each tenant has queues run by SIEVE: new objects come in at the young end, a hand walks from old
 * to young, spares what was used since it last passed (once), and takes the first that was not. It
 * does not enter the young half of the queue, but begins again at the old end: where much is put
 * and little is read, it would else stand right behind the young end and take what was put just
 * now, before it could be read. One
 * queue for objects with whole pages and one without, because they yield different things; the hand
 * that stands at the older object is asked first. Among tenants, of a few in turn the one whose
 * hand stands at the oldest object: with few tenants that is the oldest of all. A tenant over its
 * quota is the only one asked for it.
 *
 * Locked objects stay in their queue until a hand meets them; it takes them out, and they come back
 * at the young end when they are unlocked: they were being used. So no hand walks over the same
 * locked object twice, and after SPARE_MAX spared ones it takes what comes. Work per victim is
 * bounded by that; work per put by EVICT_WORK, after which the put is asked to come again.
 *
 * A victim with whole pages yields them. One with slots only yields a slot if its size is wanted;
 * else its whole slab page is emptied, since single slots here and there make no page. All pieces
 * of a block go together, unless one is locked.
 */
#include "shard.h"

#define EVICT_WORK 8192u /* steps of one put: objects evicted, reclaimed, spared or set aside */
#define RECLAIM_EACH                                                                               \
    2u                      /* cleared objects that every put reclaims, needed or not: at least as \
                               many go as come */
#define EXPIRE_WORK   1024u /* leases */
#define SPARE_MAX     128u  /* objects spared before one is taken as it comes */
#define TENANTS_ASKED 8u
#define PATIENCE      4u /* queues' worth of objects, after which who was spared is asked again */

/* ---- queues ---- */

static enum queue_kind queue_kind(const struct object *object)
{
    return object->pieces.pages == KVS_NO_PIECE ? QUEUE_SLOTS : QUEUE_PAGES;
}

static void ring_add(struct kvs_core *core, uint32_t link, unsigned soft)
{
    struct tenant *t = tenant_at(core, link - 1);
    uint32_t at = core->queued[soft];
    if (at == 0) {
        t->queued_prev[soft] = link;
        t->queued_next[soft] = link;
        core->queued[soft] = link;
        return;
    }
    struct tenant *next = tenant_at(core, at - 1);
    t->queued_next[soft] = at;
    t->queued_prev[soft] = next->queued_prev[soft];
    tenant_at(core, t->queued_prev[soft] - 1)->queued_next[soft] = link;
    next->queued_prev[soft] = link;
}

static void ring_remove(struct kvs_core *core, uint32_t link, unsigned soft)
{
    struct tenant *t = tenant_at(core, link - 1);
    tenant_at(core, t->queued_prev[soft] - 1)->queued_next[soft] = t->queued_next[soft];
    tenant_at(core, t->queued_next[soft] - 1)->queued_prev[soft] = t->queued_prev[soft];
    if (core->queued[soft] == link) {
        core->queued[soft] = t->queued_next[soft] == link ? 0 : t->queued_next[soft];
    }
}

static struct queue *queue_of(struct kvs_core *core, const struct object *object, uint32_t *link_p)
{
    uint32_t tenant = scope_at(core, object->scope)->tenant;
    bool soft = (object->flags & OBJECT_SOFT) != 0;
    *link_p = tenant + 1;
    return &tenant_at(core, tenant)->queues[soft][queue_kind(object)];
}

/* The young half has become too much of the whole: its oldest leave it. One at most, after each
 * object that came or went. */
static void age(struct kvs_core *core, struct queue *queue)
{
    while (2 * queue->nfresh > queue->n) {
        struct object *object = object_at(core, queue->fresh);
        object->flags &= (uint8_t)~OBJECT_FRESH;
        queue->fresh = object->queue_next;
        queue->nfresh--;
    }
}

/* At the young half it turns back; and after a while in any case, since one that takes as fast as
 * others are put gets no nearer to it. */
static void hand_passes(struct queue *queue, const struct object *object)
{
    uint32_t next = object->queue_next;
    bool far = next == queue->fresh || queue->taken / PATIENCE >= queue->n;
    queue->hand = far ? 0 : next;
    queue->taken = far ? 0 : queue->taken;
}

void kvs_queue_add(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint32_t link;
    struct queue *queue = queue_of(core, object, &link);
    bool soft = (object->flags & OBJECT_SOFT) != 0;
    object->flags |= OBJECT_QUEUED | OBJECT_FRESH;
    object->stamp = core->next_stamp++;
    object->queue_prev = queue->young;
    object->queue_next = 0;
    *(queue->young != 0 ? &object_at(core, queue->young)->queue_next : &queue->old) = handle;
    queue->young = handle;
    queue->fresh = queue->fresh != 0 ? queue->fresh : handle;
    queue->n++;
    queue->nfresh++;
    age(core, queue);
    if (tenant_at(core, link - 1)->nqueued[soft]++ == 0) {
        ring_add(core, link, soft);
    }
}

void kvs_queue_remove(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint32_t link;
    struct queue *queue = queue_of(core, object, &link);
    bool soft = (object->flags & OBJECT_SOFT) != 0;
    if (queue->hand == handle) {
        queue->taken++;
        hand_passes(queue, object);
    }
    if (queue->fresh == handle) {
        queue->fresh = object->queue_next;
    }
    *(object->queue_prev != 0 ? &object_at(core, object->queue_prev)->queue_next : &queue->old) =
        object->queue_next;
    *(object->queue_next != 0 ? &object_at(core, object->queue_next)->queue_prev : &queue->young) =
        object->queue_prev;
    queue->n--;
    queue->nfresh -= (object->flags & OBJECT_FRESH) != 0;
    object->flags &= (uint8_t) ~(OBJECT_QUEUED | OBJECT_FRESH);
    age(core, queue);
    if (--tenant_at(core, link - 1)->nqueued[soft] == 0) {
        ring_remove(core, link, soft);
    }
}

/* ---- victims ---- */

static uint32_t hand_of(const struct queue *queue)
{
    return queue->hand != 0 ? queue->hand : queue->old;
}

/* Of both queues' hands, the older object; 0: both empty. */
static uint32_t oldest_hand(const struct kvs_core *core, const struct tenant *t, unsigned soft)
{
    uint32_t a = hand_of(&t->queues[soft][QUEUE_SLOTS]);
    uint32_t b = hand_of(&t->queues[soft][QUEUE_PAGES]);
    if (a == 0 || b == 0) {
        return a | b;
    }
    int32_t later = (int32_t)(object_at(core, a)->stamp - object_at(core, b)->stamp);
    return later < 0 ? a : b;
}

static void spare(struct kvs_core *core, uint32_t handle)
{
    struct object *object = object_at(core, handle);
    uint32_t link;
    object->flags &= (uint8_t)~OBJECT_VISITED;
    hand_passes(queue_of(core, object, &link), object);
}

static bool block_in_use(const struct kvs_core *core, const struct object *object)
{
    kvs_table_each(&core->index, object->node.hash, handle)
    {
        const struct object *other = object_at(core, handle);
        if (other->leases != 0 && kvs_object_same_block(object, other)) {
            return true;
        }
    }
    return false;
}

struct effort {
    uint32_t work;   /* steps left */
    uint32_t spared; /* since the last victim */
};

/* The tenant's next victim, not locked; 0: none queued (the locked ones were taken out). */
static uint32_t next_victim(struct kvs_core *core, uint32_t link, unsigned soft,
                            struct effort *effort)
{
    struct tenant *t = tenant_at(core, link - 1);
    for (;;) {
        uint32_t handle = oldest_hand(core, t, soft);
        if (handle == 0) {
            return 0;
        }
        struct object *object = object_at(core, handle);
        effort->work -= effort->work > 0;
        if (object->flags & OBJECT_LOCKED) {
            kvs_queue_remove(core, handle);
            continue;
        }
        bool wanted = !scope_cleared(core, scope_at(core, object->scope)) &&
                      ((object->flags & OBJECT_VISITED) != 0 || block_in_use(core, object));
        if (!wanted || effort->spared >= SPARE_MAX) {
            return handle;
        }
        spare(core, handle);
        effort->spared++;
    }
}

static void evict_object(struct kvs_core *core, uint32_t handle, bool cleared)
{
    const struct object *object = object_at(core, handle);
    struct tenant *t = tenant_at(core, scope_at(core, object->scope)->tenant);
    if (cleared) {
        core->stats.reclaimed++;
    } else {
        kvs_object_changed(core, object, KVS_CHANGE_EVICTED);
        core->stats.evicted++;
        t->evicted++;
    }
    kvs_object_free(core, handle);
}

static void evict_block(struct kvs_core *core, uint32_t victim, struct effort *effort)
{
    /* The victim's record goes with it: take along what is compared. */
    const struct object *object = object_at(core, victim);
    bool cleared = scope_cleared(core, scope_at(core, object->scope));
    for (uint32_t handle = *kvs_table_head(&core->index, object->node.hash); handle != 0;) {
        struct object *other = object_at(core, handle);
        uint32_t next = other->node.next;
        if (handle != victim && (other->flags & OBJECT_LOCKED) == 0 &&
            kvs_object_same_block(object, other)) {
            evict_object(core, handle, cleared);
            effort->work -= effort->work > 0;
        }
        handle = next;
    }
    evict_object(core, victim, cleared);
    effort->work -= effort->work > 0;
    effort->spared = 0;
}

/* The page is free afterwards. */
static void empty_page(struct kvs_core *core, uint32_t page, struct effort *effort)
{
    uint32_t slot = 0;
    for (uint32_t owner; (owner = kvs_space_owner(&core->space, page, &slot)) != 0;) {
        evict_block(core, owner, effort);
    }
}

static uint32_t pick_tenant(struct kvs_core *core, unsigned soft)
{
    uint32_t link = core->queued[soft];
    uint32_t best = 0;
    uint32_t best_stamp = 0;
    for (uint32_t i = 0; i < TENANTS_ASKED; i++) {
        const struct tenant *t = tenant_at(core, link - 1);
        uint32_t stamp = object_at(core, oldest_hand(core, t, soft))->stamp;
        if (best == 0 || (int32_t)(stamp - best_stamp) < 0) {
            best = link;
            best_stamp = stamp;
        }
        link = t->queued_next[soft];
        if (link == core->queued[soft]) {
            break;
        }
    }
    core->queued[soft] = link;
    return best;
}

/* ---- making room ---- */

struct need {
    uint32_t tenant;
    const struct kvs_plan *plan;
};

static bool over_quota(const struct kvs_core *core, const struct need *need)
{
    const struct tenant *t = tenant_at(core, need->tenant);
    return need->plan->bytes > t->quota || t->used_bytes > t->quota - need->plan->bytes;
}

static bool objects_full(const struct kvs_core *core)
{
    return core->nobjects >= core->objects_max;
}

static bool roomy(const struct kvs_core *core, const struct need *need)
{
    return !objects_full(core) && kvs_space_fits(&core->space, need->plan);
}

/* Evicts the victim, or the slab page that it lies in, if that helps the plan. */
static bool evict_if_it_helps(struct kvs_core *core, const struct need *need, uint32_t victim,
                              unsigned soft, struct effort *effort)
{
    const struct object *object = object_at(core, victim);
    struct kvs_plan plan;
    kvs_object_plan(core, object, &plan);
    bool helps = plan.npages > 0 || objects_full(core);
    for (uint32_t i = 0; i < plan.nslots && !helps; i++) {
        helps = kvs_space_wants(&core->space, need->plan, plan.classes[i]);
    }
    if (helps) {
        evict_block(core, victim, effort);
        return true;
    }
    uint32_t page = kvs_space_yielding_page(&core->space, object->pieces, soft != 0);
    if (page == KVS_NO_PIECE) {
        return false;
    }
    empty_page(core, page, effort);
    return true;
}

/* One step in the order of the queues: false: it brought nothing within SPARE_MAX tries. */
static bool evict_in_turn(struct kvs_core *core, const struct need *need, unsigned soft,
                          struct effort *effort)
{
    effort->spared = 0;
    for (uint32_t tries = 0; core->queued[soft] != 0 && tries < SPARE_MAX;) {
        uint32_t victim = next_victim(core, pick_tenant(core, soft), soft, effort);
        if (victim == 0) {
            continue;
        }
        if (evict_if_it_helps(core, need, victim, soft, effort)) {
            return true;
        }
        spare(core, victim);
        tries++;
    }
    return false;
}

/* The same out of order: whatever page can be had. */
static bool evict_a_page(struct kvs_core *core, unsigned soft, struct effort *effort)
{
    uint32_t page = kvs_space_first_yielding(&core->space, soft != 0);
    if (page != KVS_NO_PIECE) {
        empty_page(core, page, effort);
        return true;
    }
    /* each tenant once; the one that is asked may leave the ring, and no other */
    uint32_t link = core->queued[soft];
    uint32_t last = link == 0 ? 0 : tenant_at(core, link - 1)->queued_prev[soft];
    while (link != 0) {
        struct tenant *t = tenant_at(core, link - 1);
        uint32_t next = link == last ? 0 : t->queued_next[soft];
        struct queue *queue = &t->queues[soft][QUEUE_PAGES];
        for (uint32_t handle; (handle = hand_of(queue)) != 0;) {
            if ((object_at(core, handle)->flags & OBJECT_LOCKED) == 0) {
                evict_block(core, handle, effort);
                return true;
            }
            kvs_queue_remove(core, handle);
        }
        link = next;
    }
    return false;
}

/* A slot of a wanted size out of a page that will not be empty. */
static bool evict_a_slot(struct kvs_core *core, const struct need *need, struct effort *effort)
{
    for (uint32_t i = 0; i < need->plan->nslots; i++) {
        uint8_t class = need->plan->classes[i];
        uint32_t page = kvs_space_first_mixed(&core->space, class);
        if (page == KVS_NO_PIECE || !kvs_space_wants(&core->space, need->plan, class)) {
            continue;
        }
        uint32_t slot = 0;
        for (uint32_t owner; (owner = kvs_space_owner(&core->space, page, &slot)) != 0; slot++) {
            if ((object_at(core, owner)->flags & OBJECT_LOCKED) == 0) {
                evict_block(core, owner, effort);
                return true;
            }
        }
    }
    return false;
}

static void evict_for_space(struct kvs_core *core, const struct need *need, struct effort *effort)
{
    bool evicted = false;
    for (unsigned soft = 0; soft < 2 && !evicted; soft++) {
        evicted = evict_in_turn(core, need, soft, effort) || evict_a_page(core, soft, effort);
    }
    evicted = evicted || evict_a_slot(core, need, effort);
    /* kvs_space_could_fit() said that something can. */
    kvb_assert(evicted);
}

static void evict_for_quota(struct kvs_core *core, const struct need *need, struct effort *effort)
{
    uint32_t victim = next_victim(core, need->tenant + 1, 0, effort);
    if (victim == 0) {
        victim = next_victim(core, need->tenant + 1, 1, effort);
    }
    kvb_assert(victim != 0);
    evict_block(core, victim, effort);
}

/* Reclaims while `wanting`; false: the work is used up. */
static bool reclaim_while(struct kvs_core *core, const struct need *need,
                          bool (*wanting)(const struct kvs_core *, const struct need *),
                          uint32_t tenant, struct effort *effort)
{
    while (wanting(core, need)) {
        if (effort->work == 0) {
            return false;
        }
        if (!kvs_reclaim_one(core, tenant)) {
            return true;
        }
        effort->work--;
    }
    return true;
}

static bool not_roomy(const struct kvs_core *core, const struct need *need)
{
    return !roomy(core, need);
}

kvb_status_t kvs_make_room(struct kvs_core *core, uint64_t now_ns, uint32_t tenant,
                           const struct kvs_plan *plan)
{
    const struct need need = {.tenant = tenant, .plan = plan};
    struct effort effort = {.work = EVICT_WORK};
    const struct tenant *t = tenant_at(core, tenant);
    bool all_expired = kvs_leases_expire(core, now_ns, EXPIRE_WORK);
    for (uint32_t i = 0; i < RECLAIM_EACH; i++) {
        (void)kvs_reclaim_one(core, UINT32_MAX);
    }
    if (!reclaim_while(core, &need, over_quota, tenant, &effort) ||
        !reclaim_while(core, &need, not_roomy, UINT32_MAX, &effort)) {
        return KVB_ERR_AGAIN;
    }
    /* Both exact: afterwards nothing is evicted in vain. */
    if (plan->bytes > t->quota || t->locked_bytes > t->quota - plan->bytes) {
        return all_expired || plan->bytes > t->quota ? KVB_ERR_QUOTA : KVB_ERR_AGAIN;
    }
    if (!kvs_space_could_fit(&core->space, plan) ||
        (objects_full(core) && core->nlocked == core->nobjects)) {
        return all_expired ? KVB_ERR_NO_SPACE : KVB_ERR_AGAIN;
    }
    while (over_quota(core, &need)) {
        if (effort.work == 0) {
            return KVB_ERR_AGAIN;
        }
        evict_for_quota(core, &need, &effort);
    }
    while (!roomy(core, &need)) {
        if (effort.work == 0) {
            return KVB_ERR_AGAIN;
        }
        evict_for_space(core, &need, &effort);
    }
    return KVB_OK;
}
