/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator of one process. What is asked takes effect inside the call; what is answered, and
 * what members are told, is posted, each as an event of its own. So everything a member hears comes
 * in the order in which it became true: an answer that names a lineage always comes before the word
 * that the lineage is retired, and never after it.
 *
 * A retirement is a group of tells, one for each (member, lineage). Each tell ends once: by left(),
 * by its member's closing, or at the deadline, where its member is fenced: its bindings ended when
 * the names were unbound, nodes take no more puts under what was retired, and it still hears what
 * it was told. The group's request completes when no tell is left, or at the deadline.
 */
#include "coordinator_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* Names that stand for lineages. Those without members wait for the end of their grace; beyond this
 * many the oldest of them is forgotten early. */
#define NAMES_MAX 4096

/* As long as KVB_WEIGHTS_NAME_MAX allows. */
#define NAME_LEN_MAX 255

struct name {
    struct kvb_list link; /* embedded.names, oldest first */
    struct kvs_space space;
    struct kvb_lineage lineage;
    struct kvb_list members;
    uint32_t nmembers;
    struct embedded *embedded;
    struct kvb_timer forget; /* set while it has no members */
    char text[];
};

/* One step of `--unversioned` in one space (DESIGN.md section 4, rule 7). */
struct lockstep {
    struct kvb_list link;
    struct kvs_space space;
    uint64_t epoch;
    uint64_t step;
    struct kvb_lineage lineage;  /* of that step */
    struct kvb_lineage previous; /* of the step before: some may not have left it yet */
};

struct retirement {
    struct kvb_list link; /* embedded.retirements */
    struct embedded *embedded;
    struct kvs_coord_request *request; /* NULL: its asker is gone */
    struct kvb_list tells;
    struct kvb_timer deadline;
};

struct tell {
    struct kvb_list member_link; /* member.tells */
    struct kvb_list group_link;  /* retirement.tells; unlinked: nobody waits for it any more */
    struct retirement *group;
    struct member *member;
    uint64_t id;
    bool whole_tenant;
    bool heard;
    struct kvb_lineage lineage;
    struct kvb_event event;
};

struct member {
    struct kvs_member base;
    struct kvb_list link; /* embedded.members */
    struct kvs_space space;
    char instance[64];
    const struct kvs_member_ops *ops;
    void *ctx;
    struct name *name;         /* in which it is counted, or NULL */
    struct kvb_list name_link; /* name.members */
    bool left_unheard;         /* it left while out of reach */
    uint64_t epoch;            /* the last reset of its tenant, if it took part in it, else 0 */
    struct kvb_list tells;
    struct kvb_list requests; /* not answered yet */
    struct kvb_event reach;
};

struct embedded {
    struct kvs_coordinator base;
    struct kvb_sched *sched;
    uint64_t grace_ms;
    const struct kvs_reclaim_ops *reclaim;
    void *reclaim_ctx;
    bool reachable;
    uint64_t last_id; /* of retirements and epochs; never given twice */
    uint32_t nnames;
    struct kvb_list names;
    struct kvb_list members;
    struct kvb_list locksteps;
    struct kvb_list retirements;
    struct kvb_list requests; /* of nobody's in particular */
};

static struct embedded *of(struct kvs_coordinator *coordinator)
{
    return kvb_container_of(coordinator, struct embedded, base);
}

static struct member *member_of(struct kvs_member *member)
{
    return kvb_container_of(member, struct member, base);
}

static struct embedded *home(struct member *member)
{
    return of(member->base.coordinator);
}

static bool same_space(const struct kvs_space *a, const struct kvs_space *b)
{
    return strcmp(a->tenant, b->tenant) == 0 && strcmp(a->layout, b->layout) == 0;
}

/* ---- requests ---- */

static void begin(struct embedded *embedded, struct member *member,
                  struct kvs_coord_request *request)
{
    kvs_request_begin(member == NULL ? &embedded->requests : &member->requests, &embedded->base,
                      member == NULL ? NULL : &member->base, request);
}

static void answer(struct kvs_coord_request *request, kvb_status_t status)
{
    kvs_request_answer(of(request->impl.coordinator)->sched, request, status);
}

static void disown(void *state)
{
    struct retirement *group = state;
    group->request = NULL;
}

/* ---- names ---- */

static void retire_at_nodes(struct embedded *embedded, struct kvb_lineage lineage)
{
    if (kvb_id_none(lineage.id)) {
        return;
    }
    embedded->reclaim->retire(embedded->reclaim_ctx, &lineage, 1);
}

static void log_name(const char *msg, const struct name *name)
{
    char lineage[KVB_ID_HEX_LEN + 1];
    kvb_id_format(name->lineage.id, lineage);
    KVB_LOG(DEBUG, msg, KVB_STR("tenant", name->space.tenant), KVB_STR("name", name->text),
            KVB_STR("lineage", lineage));
}

/* Members are not counted in it any more; what it stood for is the caller's business. */
static void unbind(struct name *name)
{
    log_name("name unbound", name);
    for (struct kvb_list *link; (link = kvb_list_pop(&name->members)) != NULL;) {
        kvb_container_of(link, struct member, name_link)->name = NULL;
    }
    kvb_sched_timer_clear(name->embedded->sched, &name->forget);
    kvb_list_remove(&name->link);
    name->embedded->nnames--;
    free(name);
}

/* Nobody is in it: nobody reads its objects until they are put anew. */
static void forget(struct name *name)
{
    struct embedded *embedded = name->embedded;
    struct kvb_lineage lineage = name->lineage;
    kvb_assert(name->nmembers == 0);
    unbind(name);
    retire_at_nodes(embedded, lineage);
}

static void on_forget(struct kvb_timer *timer)
{
    forget(kvb_container_of(timer, struct name, forget));
}

static void uncount(struct member *member)
{
    struct name *name = member->name;
    if (name == NULL) {
        return;
    }
    member->name = NULL;
    kvb_list_remove(&member->name_link);
    if (--name->nmembers == 0) {
        struct kvb_sched *sched = name->embedded->sched;
        kvb_sched_timer_set(sched, &name->forget,
                            kvb_deadline_in_ms(sched->clock, name->embedded->grace_ms));
    }
}

static void count(struct member *member, struct name *name)
{
    member->left_unheard = false;
    if (member->name == name) {
        return;
    }
    uncount(member);
    kvb_sched_timer_clear(name->embedded->sched, &name->forget);
    member->name = name;
    kvb_list_push_back(&name->members, &member->name_link);
    name->nmembers++;
}

static struct name *find_name(struct embedded *embedded, const struct kvs_space *space,
                              const char *text)
{
    kvb_list_each(&embedded->names, link)
    {
        struct name *name = kvb_container_of(link, struct name, link);
        if (strcmp(name->text, text) == 0 && same_space(&name->space, space)) {
            return name;
        }
    }
    return NULL;
}

static void make_room_for_a_name(struct embedded *embedded)
{
    if (embedded->nnames < NAMES_MAX) {
        return;
    }
    kvb_list_each(&embedded->names, link)
    {
        struct name *name = kvb_container_of(link, struct name, link);
        if (name->nmembers == 0) {
            forget(name);
            return;
        }
    }
}

static kvb_status_t create_name(struct embedded *embedded, const struct kvs_space *space,
                                const char *text, struct name **name_p)
{
    size_t size = strlen(text) + 1;
    make_room_for_a_name(embedded);
    struct name *name = malloc(sizeof *name + size);
    if (name == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *name = (struct name){
        .space = *space,
        .lineage.id = kvb_id_draw(embedded->sched->random),
        .embedded = embedded,
    };
    kvb_list_init(&name->members);
    kvb_timer_init(&name->forget, on_forget);
    memcpy(name->text, text, size);
    kvb_list_push_back(&embedded->names, &name->link);
    embedded->nnames++;
    log_name("name bound", name);
    *name_p = name;
    return KVB_OK;
}

static void embedded_resolve(struct kvs_member *base, const char *text,
                             struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct embedded *embedded = home(member);
    begin(embedded, member, request);
    if (text[0] == '\0' || strlen(text) > NAME_LEN_MAX) {
        answer(request, KVB_ERR_INVALID);
        return;
    }
    if (!embedded->reachable) {
        answer(request, KVB_ERR_UNAVAILABLE);
        return;
    }
    struct name *name = find_name(embedded, &member->space, text);
    if (name == NULL) {
        kvb_status_t status = create_name(embedded, &member->space, text, &name);
        if (status != KVB_OK) {
            answer(request, status);
            return;
        }
    }
    count(member, name);
    request->lineage = name->lineage;
    answer(request, KVB_OK);
}

static void embedded_check(struct kvs_member *base, const char *text, struct kvb_lineage lineage,
                           struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct embedded *embedded = home(member);
    begin(embedded, member, request);
    if (!embedded->reachable) {
        answer(request, KVB_ERR_UNAVAILABLE);
        return;
    }
    struct name *name = find_name(embedded, &member->space, text);
    request->bound = name != NULL && kvb_lineage_equal(name->lineage, lineage);
    if (request->bound) {
        count(member, name);
    }
    answer(request, KVB_OK);
}

static void embedded_leave(struct kvs_member *base, const char *text)
{
    struct member *member = member_of(base);
    if (member->name == NULL || strcmp(member->name->text, text) != 0) {
        return;
    }
    if (home(member)->reachable) {
        uncount(member);
    } else {
        member->left_unheard = true;
    }
}

/* ---- retirements ---- */

static void finish_retirement(struct retirement *group, kvb_status_t status)
{
    struct embedded *embedded = group->embedded;
    kvb_assert(kvb_list_empty(&group->tells));
    if (group->request != NULL) {
        group->request->impl.state = NULL;
        answer(group->request, status);
    }
    kvb_sched_timer_clear(embedded->sched, &group->deadline);
    kvb_list_remove(&group->link);
    free(group);
}

static void free_tell(struct tell *tell)
{
    kvb_sched_unpost(&tell->event);
    kvb_list_remove(&tell->member_link);
    kvb_list_remove(&tell->group_link);
    free(tell);
}

/* The member has left, or is gone. */
static void settle_tell(struct tell *tell)
{
    struct retirement *group = tell->group;
    free_tell(tell);
    if (group != NULL && kvb_list_empty(&group->tells)) {
        finish_retirement(group, KVB_OK);
    }
}

static void on_tell(struct kvb_event *event)
{
    struct tell *tell = kvb_container_of(event, struct tell, event);
    struct member *member = tell->member;
    if (!home(member)->reachable) {
        return; /* posted again when it is back */
    }
    const struct kvs_member_ops *ops = member->ops;
    void *ctx = member->ctx;
    uint64_t id = tell->id;
    bool whole_tenant = tell->whole_tenant;
    struct kvb_lineage lineage = tell->lineage;
    tell->heard = true;
    if (tell->group == NULL) { /* too late to be waited for, but it must still hear it */
        free_tell(tell);
    }
    if (whole_tenant) {
        ops->told_tenant(ctx, id);
    } else {
        ops->told(ctx, lineage, id);
    }
}

static void on_retirement_deadline(struct kvb_timer *timer)
{
    struct retirement *group = kvb_container_of(timer, struct retirement, deadline);
    for (struct kvb_list *link; (link = kvb_list_first(&group->tells)) != NULL;) {
        struct tell *tell = kvb_container_of(link, struct tell, group_link);
        KVB_LOG(WARN, "a member did not leave in time and is fenced",
                KVB_STR("instance", tell->member->instance), KVB_U64("retirement", tell->id));
        if (tell->heard) {
            free_tell(tell);
        } else {
            kvb_list_remove(&tell->group_link);
            tell->group = NULL;
        }
    }
    finish_retirement(group, KVB_ERR_TIMEOUT);
}

static struct retirement *create_retirement(struct embedded *embedded)
{
    struct retirement *group = malloc(sizeof *group);
    if (group == NULL) {
        return NULL;
    }
    *group = (struct retirement){.embedded = embedded};
    kvb_list_init(&group->tells);
    kvb_timer_init(&group->deadline, on_retirement_deadline);
    kvb_list_push_back(&embedded->retirements, &group->link);
    return group;
}

/* Undoes create_retirement and prepare_tell: nobody was told. */
static void drop_retirement(struct retirement *group)
{
    for (struct kvb_list *link; (link = kvb_list_first(&group->tells)) != NULL;) {
        free_tell(kvb_container_of(link, struct tell, group_link));
    }
    kvb_list_remove(&group->link);
    free(group);
}

static kvb_status_t prepare_tell(struct retirement *group, struct member *member, uint64_t id,
                                 const struct kvb_lineage *lineage)
{
    struct tell *tell = malloc(sizeof *tell);
    if (tell == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *tell = (struct tell){
        .group = group,
        .member = member,
        .id = id,
        .whole_tenant = lineage == NULL,
    };
    if (lineage != NULL) {
        tell->lineage = *lineage;
    }
    kvb_event_init(&tell->event, on_tell);
    kvb_list_push_back(&group->tells, &tell->group_link);
    kvb_list_push_back(&member->tells, &tell->member_link);
    return KVB_OK;
}

/* Everybody is told, and the request waits for them. */
static void start_retirement(struct retirement *group, struct kvs_coord_request *request,
                             uint64_t deadline_ns)
{
    struct kvb_sched *sched = group->embedded->sched;
    group->request = request;
    request->impl.state = group;
    kvb_list_each(&group->tells, link)
    {
        kvb_sched_post(sched, &kvb_container_of(link, struct tell, group_link)->event);
    }
    if (kvb_list_empty(&group->tells)) {
        finish_retirement(group, KVB_OK);
    } else {
        kvb_sched_timer_set(sched, &group->deadline, deadline_ns);
    }
}

static struct lockstep *find_lockstep(struct embedded *embedded, const struct kvs_space *space)
{
    kvb_list_each(&embedded->locksteps, link)
    {
        struct lockstep *lockstep = kvb_container_of(link, struct lockstep, link);
        if (same_space(&lockstep->space, space)) {
            return lockstep;
        }
    }
    return NULL;
}

/* Does a name or step of a space other than `space` (NULL: of any) stand for it? */
static bool stands_elsewhere(const struct embedded *embedded, const struct kvs_space *space,
                             struct kvb_lineage lineage)
{
    kvb_list_each(&embedded->names, link)
    {
        const struct name *name = kvb_container_of(link, struct name, link);
        if (kvb_lineage_equal(name->lineage, lineage) &&
            (space == NULL || !same_space(&name->space, space))) {
            return true;
        }
    }
    kvb_list_each(&embedded->locksteps, link)
    {
        const struct lockstep *lockstep = kvb_container_of(link, struct lockstep, link);
        if ((kvb_lineage_equal(lockstep->lineage, lineage) ||
             kvb_lineage_equal(lockstep->previous, lineage)) &&
            (space == NULL || !same_space(&lockstep->space, space))) {
            return true;
        }
    }
    return false;
}

static void unbind_lineage(struct embedded *embedded, struct kvb_lineage lineage)
{
    kvb_list_each(&embedded->names, link)
    {
        struct name *name = kvb_container_of(link, struct name, link);
        if (kvb_lineage_equal(name->lineage, lineage)) {
            unbind(name);
        }
    }
    kvb_list_each(&embedded->locksteps, link)
    {
        struct lockstep *lockstep = kvb_container_of(link, struct lockstep, link);
        if (kvb_lineage_equal(lockstep->lineage, lineage)) {
            /* later callers of this step get another: the same weights, but nothing cleared */
            lockstep->lineage.id = kvb_id_draw(embedded->sched->random);
        }
    }
}

static void embedded_abandon(struct kvs_member *base, struct kvb_lineage lineage)
{
    struct embedded *embedded = home(member_of(base));
    if (embedded->reachable && !stands_elsewhere(embedded, NULL, lineage)) {
        retire_at_nodes(embedded, lineage);
    }
}

static void embedded_left(struct kvs_member *base, uint64_t retirement)
{
    kvb_list_each(&member_of(base)->tells, link)
    {
        struct tell *tell = kvb_container_of(link, struct tell, member_link);
        if (tell->id == retirement && tell->heard) {
            if (tell->whole_tenant) {
                tell->member->epoch = retirement;
            }
            settle_tell(tell);
            return;
        }
    }
}

static kvb_status_t prepare_retire(struct member *asker, struct retirement *group,
                                   const struct kvb_lineage *lineages, uint32_t n)
{
    struct embedded *embedded = home(asker);
    kvb_list_each(&embedded->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (member == asker || !same_space(&member->space, &asker->space)) {
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            kvb_status_t status = prepare_tell(group, member, ++embedded->last_id, &lineages[i]);
            if (status != KVB_OK) {
                return status;
            }
        }
    }
    return KVB_OK;
}

static void embedded_retire(struct kvs_member *base, const struct kvb_lineage *lineages, uint32_t n,
                            const char *text, uint64_t deadline_ns,
                            struct kvs_coord_request *request)
{
    struct member *asker = member_of(base);
    struct embedded *embedded = home(asker);
    begin(embedded, asker, request);
    if (!embedded->reachable) {
        answer(request, KVB_ERR_UNAVAILABLE);
        return;
    }
    struct kvb_lineage *all = malloc(((size_t)n + 1) * sizeof *all);
    struct retirement *group = create_retirement(embedded);
    const struct name *name = text == NULL ? NULL : find_name(embedded, &asker->space, text);
    uint32_t nall = 0;
    if (all == NULL || group == NULL) {
        goto err_memory;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!stands_elsewhere(embedded, &asker->space, lineages[i])) {
            all[nall++] = lineages[i];
        }
    }
    if (name != NULL) {
        all[nall++] = name->lineage;
    }
    if (prepare_retire(asker, group, all, nall) != KVB_OK) {
        goto err_memory;
    }
    for (uint32_t i = 0; i < nall; i++) {
        unbind_lineage(embedded, all[i]);
    }
    if (nall > 0) {
        embedded->reclaim->retire(embedded->reclaim_ctx, all, nall);
    }
    free(all);
    start_retirement(group, request, deadline_ns);
    return;

err_memory:
    free(all);
    if (group != NULL) {
        drop_retirement(group);
    }
    answer(request, KVB_ERR_NO_MEMORY);
}

/* Unbinds every name and step of the tenant, and retires what they stood for and what is held. */
static void retire_tenant(struct embedded *embedded, const char *tenant,
                          const struct kvb_lineage *held, uint32_t nheld)
{
    kvb_list_each(&embedded->names, link)
    {
        struct name *name = kvb_container_of(link, struct name, link);
        if (strcmp(name->space.tenant, tenant) == 0) {
            retire_at_nodes(embedded, name->lineage);
            unbind(name);
        }
    }
    kvb_list_each(&embedded->locksteps, link)
    {
        struct lockstep *lockstep = kvb_container_of(link, struct lockstep, link);
        if (strcmp(lockstep->space.tenant, tenant) == 0) {
            retire_at_nodes(embedded, lockstep->lineage);
            retire_at_nodes(embedded, lockstep->previous);
            kvb_list_remove(&lockstep->link);
            free(lockstep);
        }
    }
    if (nheld > 0) {
        embedded->reclaim->retire(embedded->reclaim_ctx, held, nheld);
    }
}

static kvb_status_t prepare_tenant_reset(struct embedded *embedded, const char *tenant,
                                         struct member *asker, struct retirement *group,
                                         uint64_t epoch)
{
    kvb_list_each(&embedded->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (strcmp(member->space.tenant, tenant) != 0 || member == asker) {
            continue;
        }
        kvb_status_t status = prepare_tell(group, member, epoch, NULL);
        if (status != KVB_OK) {
            return status;
        }
    }
    return KVB_OK;
}

static void embedded_tenant_reset(struct kvs_coordinator *base, const char *name,
                                  struct kvs_member *base_asker, uint64_t deadline_ns,
                                  struct kvs_coord_request *request)
{
    struct embedded *embedded = of(base);
    struct member *asker = base_asker == NULL ? NULL : member_of(base_asker);
    begin(embedded, asker, request);
    if (!embedded->reachable) {
        answer(request, KVB_ERR_UNAVAILABLE);
        return;
    }
    struct kvb_lineage *held = NULL;
    uint32_t nheld = 0;
    uint64_t epoch = ++embedded->last_id;
    struct retirement *group = create_retirement(embedded);
    kvb_status_t status = KVB_ERR_NO_MEMORY;
    if (group == NULL) {
        goto err_group;
    }
    status = embedded->reclaim->lineages(embedded->reclaim_ctx, name, &held, &nheld);
    if (status != KVB_OK) {
        goto err_group;
    }
    status = prepare_tenant_reset(embedded, name, asker, group, epoch);
    if (status != KVB_OK) {
        goto err_held;
    }
    retire_tenant(embedded, name, held, nheld);
    free(held);
    kvb_list_each(&embedded->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (strcmp(member->space.tenant, name) == 0) {
            member->epoch = member == asker ? epoch : 0;
        }
    }
    request->epoch = epoch;
    KVB_LOG(INFO, "tenant reset", KVB_STR("tenant", name), KVB_U64("epoch", epoch),
            KVB_U64("lineages", nheld));
    start_retirement(group, request, deadline_ns);
    return;

err_held:
    free(held);
err_group:
    if (group != NULL) {
        drop_retirement(group);
    }
    answer(request, status);
}

/* ---- steps ---- */

static struct lockstep *get_lockstep(struct embedded *embedded, const struct kvs_space *space,
                                     uint64_t epoch)
{
    struct lockstep *lockstep = find_lockstep(embedded, space);
    if (lockstep == NULL && (lockstep = calloc(1, sizeof *lockstep)) != NULL) {
        lockstep->space = *space;
        lockstep->epoch = epoch;
        kvb_list_push_back(&embedded->locksteps, &lockstep->link);
    }
    return lockstep;
}

static void embedded_step(struct kvs_member *base, uint64_t epoch, uint64_t step,
                          struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct embedded *embedded = home(member);
    begin(embedded, member, request);
    if (!embedded->reachable) {
        answer(request, KVB_ERR_UNAVAILABLE);
        return;
    }
    if (epoch == 0 || epoch != member->epoch) {
        answer(request, KVB_ERR_FENCED);
        return;
    }
    struct lockstep *lockstep = get_lockstep(embedded, &member->space, epoch);
    if (lockstep == NULL) {
        answer(request, KVB_ERR_NO_MEMORY);
        return;
    }
    kvb_assert(lockstep->epoch == epoch); /* a reset drops those of earlier epochs */
    if (step == lockstep->step + 1) {
        /* in lockstep, all have left the one before the last */
        retire_at_nodes(embedded, lockstep->previous);
        lockstep->previous = lockstep->lineage;
        lockstep->lineage.id = kvb_id_draw(embedded->sched->random);
        lockstep->step = step;
    }
    if (step == 0 || step != lockstep->step) {
        answer(request, KVB_ERR_FENCED);
        return;
    }
    uncount(member);
    request->lineage = lockstep->lineage;
    answer(request, KVB_OK);
}

/* ---- members ---- */

static void on_reach(struct kvb_event *event)
{
    struct member *member = kvb_container_of(event, struct member, reach);
    member->ops->reachable(member->ctx, home(member)->reachable);
}

static kvb_status_t embedded_open(struct kvs_coordinator *base, const char *instance,
                                  const struct kvs_space *space, const struct kvs_member_ops *ops,
                                  void *ctx, struct kvs_member **member_p)
{
    struct embedded *embedded = of(base);
    struct member *member = malloc(sizeof *member);
    if (member == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *member = (struct member){.base.coordinator = base, .space = *space, .ops = ops, .ctx = ctx};
    (void)strncpy(member->instance, instance, sizeof member->instance - 1);
    kvb_list_init(&member->name_link);
    kvb_list_init(&member->tells);
    kvb_list_init(&member->requests);
    kvb_event_init(&member->reach, on_reach);
    kvb_list_push_back(&embedded->members, &member->link);
    if (!embedded->reachable) {
        kvb_sched_post(embedded->sched, &member->reach);
    }
    *member_p = &member->base;
    return KVB_OK;
}

static void embedded_close(struct kvs_member *base)
{
    struct member *member = member_of(base);
    uncount(member);
    for (struct kvb_list *link; (link = kvb_list_first(&member->tells)) != NULL;) {
        settle_tell(kvb_container_of(link, struct tell, member_link));
    }
    kvb_sched_unpost(&member->reach);
    kvb_list_remove(&member->link);
    kvs_request_cancel_all(&member->requests, disown);
    free(member);
}

/* ---- the coordinator ---- */

static void embedded_each_name(struct kvs_coordinator *base,
                               void (*each)(void *arg, const struct kvs_space *space,
                                            const char *name, struct kvb_lineage lineage,
                                            uint32_t members),
                               void *arg)
{
    kvb_list_each(&of(base)->names, link)
    {
        const struct name *name = kvb_container_of(link, struct name, link);
        each(arg, &name->space, name->text, name->lineage, name->nmembers);
    }
}

/* Of a cluster there is nothing to tell. */
static kvb_status_t embedded_watch(struct kvs_coordinator *base, const struct kvs_watch_ops *ops,
                                   void *ctx)
{
    (void)base, (void)ops, (void)ctx;
    return KVB_OK;
}

static kvb_status_t embedded_announce(struct kvs_coordinator *base,
                                      const struct kvs_node_record *record)
{
    (void)base, (void)record;
    return KVB_ERR_UNSUPPORTED;
}

static void embedded_withdraw(struct kvs_coordinator *base, struct kvs_coord_request *request)
{
    begin(of(base), NULL, request);
    answer(request, KVB_OK);
}

static void embedded_set_quota(struct kvs_coordinator *base, const char *tenant, uint64_t bytes,
                               struct kvs_coord_request *request)
{
    (void)tenant, (void)bytes;
    begin(of(base), NULL, request);
    answer(request, KVB_ERR_UNSUPPORTED);
}

static kvb_status_t embedded_publish(struct kvs_member *base, const char *text)
{
    (void)base, (void)text;
    return KVB_OK;
}

static void
embedded_each_instance(struct kvs_coordinator *base,
                       void (*each)(void *arg, const struct kvs_instance_record *record), void *arg)
{
    (void)base, (void)each, (void)arg;
}

void kvs_embedded_set_reachable(struct kvs_coordinator *base, bool reachable)
{
    struct embedded *embedded = of(base);
    if (embedded->reachable == reachable) {
        return;
    }
    embedded->reachable = reachable;
    kvb_list_each(&embedded->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (reachable && member->left_unheard) {
            member->left_unheard = false;
            uncount(member);
        }
        if (reachable) {
            kvb_list_each(&member->tells, tell_link)
            {
                struct tell *tell = kvb_container_of(tell_link, struct tell, member_link);
                if (!tell->heard) {
                    kvb_sched_post(embedded->sched, &tell->event);
                }
            }
        }
        /* behind every answer given before, UNAVAILABLE ones above all */
        kvb_sched_unpost(&member->reach);
        kvb_sched_post(embedded->sched, &member->reach);
    }
}

static void embedded_destroy(struct kvs_coordinator *base)
{
    struct embedded *embedded = of(base);
    kvb_assert(kvb_list_empty(&embedded->members));
    kvb_assert(kvb_list_empty(&embedded->retirements)); /* without members nobody is waited for */
    kvs_request_cancel_all(&embedded->requests, disown);
    for (struct kvb_list *link; (link = kvb_list_first(&embedded->names)) != NULL;) {
        unbind(kvb_container_of(link, struct name, link));
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&embedded->locksteps)) != NULL;) {
        free(kvb_container_of(link, struct lockstep, link));
    }
    free(embedded);
}

static const struct kvs_coordinator_ops embedded_ops = {
    .open = embedded_open,
    .close = embedded_close,
    .resolve = embedded_resolve,
    .check = embedded_check,
    .leave = embedded_leave,
    .abandon = embedded_abandon,
    .left = embedded_left,
    .retire = embedded_retire,
    .tenant_reset = embedded_tenant_reset,
    .step = embedded_step,
    .each_name = embedded_each_name,
    .destroy = embedded_destroy,
    .watch = embedded_watch,
    .announce = embedded_announce,
    .withdraw = embedded_withdraw,
    .set_quota = embedded_set_quota,
    .publish = embedded_publish,
    .each_instance = embedded_each_instance,
};

kvb_status_t kvs_embedded_create(struct kvb_sched *sched, uint64_t grace_ms,
                                 const struct kvs_reclaim_ops *reclaim, void *reclaim_ctx,
                                 struct kvs_coordinator **coordinator_p)
{
    struct embedded *embedded = malloc(sizeof *embedded);
    if (embedded == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    *embedded = (struct embedded){
        .base.ops = &embedded_ops,
        .sched = sched,
        .grace_ms = grace_ms,
        .reclaim = reclaim,
        .reclaim_ctx = reclaim_ctx,
        .reachable = true,
    };
    kvb_list_init(&embedded->names);
    kvb_list_init(&embedded->members);
    kvb_list_init(&embedded->locksteps);
    kvb_list_init(&embedded->retirements);
    kvb_list_init(&embedded->requests);
    *coordinator_p = &embedded->base;
    return KVB_OK;
}
