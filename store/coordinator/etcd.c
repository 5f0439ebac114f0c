/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator on etcd. What the cluster has agreed on is what lies there, under these keys
 * (below PREFIX `v1/`; TENANT, LAYOUT and NAME percent-encoded, ids and lineages in hex):
 *
 *   key                      value                      lives           written by
 *   member/TENANT/LAYOUT/ID  instance, process, text    process' lease  its process
 *   in/TENANT/LAYOUT/ID      name it is counted in      process' lease  its process
 *   name/TENANT/LAYOUT/NAME  lineage                    till forgotten  first to resolve it
 *   step/TENANT/LAYOUT/      epoch, step, two lineages  until a reset   first of a step
 *   epoch/TENANT             `open ID`, then a number   for ever        a tenant's reset
 *   retired/ID               lineages, who hears it     6 to 9 hours    retire, reset, forget
 *   left/ID/MEMBER           (empty)                    process' lease  member that has left
 *   node/NAME                address, capacity, ...     process' lease  a store node
 *   quota/TENANT             bytes                      for ever        set_quota
 *   PREFIX drawn/LINEAGE     (empty)                    6 to 9 hours    who first bound it
 *   PREFIX ping/PROCESS      a count                    process' lease  its process
 *
 * One lease for each process: what it says of itself ends with it. Everything that changes what
 * others rely on is one transaction that compares what it rests on (etcd_op.c), so any number of
 * processes may do the same at once: one of them does it. Every process watches all of it and keeps
 * a mirror: members and nodes are told from there, in the order of etcd's revisions, and
 * transactions are built from it, but never believed: they compare.
 *
 * Sources: etcd_session.c how we are in touch (lease, watch, snapshot); etcd_op.c transactions;
 * etcd_member.c names and steps; etcd_retire.c retirements; here nodes, quotas, and who is told
 * what. Below: etcd_mirror.c, etcd_wire.c (its messages), etcd_http.c (its endpoints).
 */
#include "etcd_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEASE_MS_DEFAULT   10000
#define LEASE_MS_MAX       600000
#define REQUEST_MS_DEFAULT 3000
#define GRACE_SHARE        4 /* how often in a grace names without members are looked for */
#define SWEEP_MS_MAX       10000
#define SWEEP_MS_MIN       50

struct missing {
    struct kvb_list link; /* etcd.missing */
    char name[64];
};

/* ---- keys ---- */

static bool plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

void kvs_etcd_encode(char *out, size_t cap, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t len = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        kvb_assert(len + 4 <= cap);
        if (plain(*c)) {
            out[len++] = (char)*c;
        } else {
            out[len++] = '%';
            out[len++] = hex[*c >> 4];
            out[len++] = hex[*c & 15];
        }
    }
    kvb_assert(len < cap);
    out[len] = '\0';
}

const char *kvs_etcd_key(const struct etcd *etcd, enum kvs_key_kind kind, const char *a,
                         const char *b, char out[KVS_ETCD_KEY_MAX])
{
    int len = snprintf(out, KVS_ETCD_KEY_MAX, "%sv1/%s%s%s", etcd->prefix, kvs_key_kind_text(kind),
                       a == NULL ? "" : a, b == NULL ? "" : b);
    kvb_assert(len > 0 && len < KVS_ETCD_KEY_MAX);
    return out;
}

bool kvs_etcd_parse_u64(const char *text, uint64_t *value_p)
{
    uint64_t sum = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(*c - '0'), &sum)) {
            return false;
        }
    }
    *value_p = sum;
    return text[0] != '\0';
}

/* "TENANT/LAYOUT/REST": its space, and where the rest begins. NULL: it is no such key. */
static const char *split_space(const char *key, struct kvs_space *space_p)
{
    memset(space_p, 0, sizeof *space_p);
    const char *tenant_end = strchr(key, '/');
    const char *layout_end = tenant_end == NULL ? NULL : strchr(tenant_end + 1, '/');
    if (layout_end == NULL ||
        !kvs_etcd_decode(key, (size_t)(tenant_end - key), space_p->tenant,
                         sizeof space_p->tenant) ||
        !kvs_etcd_decode(tenant_end + 1, (size_t)(layout_end - tenant_end - 1), space_p->layout,
                         sizeof space_p->layout)) {
        return NULL;
    }
    return layout_end + 1;
}

struct kvs_entry *kvs_etcd_name_of(const struct etcd *etcd, const struct kvs_entry *in)
{
    char key[KVS_ETCD_KEY_MAX];
    const char *end = strrchr(in->key, '/');
    size_t len = end == NULL ? 0 : (size_t)(end - in->key) + 1;
    if (len == 0 || len >= KVS_ETCD_PATH_MAX || strlen(in->value) > KVS_ETCD_NAME_MAX) {
        return NULL;
    }
    memcpy(key, in->key, len);
    kvs_etcd_encode(key + len, sizeof key - len, in->value);
    return kvs_mirror_find(&etcd->mirror, KVS_KEY_NAME, key);
}

/* ---- nodes ---- */

/* Text that fits; a member that is not there: as if it were `absent`, where that is not NULL. */
static bool text_of(const json_t *root, const char *name, const char *absent, char *out, size_t cap)
{
    const json_t *value = json_object_get(root, name);
    const char *text = value == NULL ? absent : json_string_value(value);
    bool fits = text != NULL && strlen(text) < cap;
    if (fits) {
        strcpy(out, text);
    }
    return fits;
}

/* Members that a process of an earlier version does not write may be absent; those of a later one
 * are not looked at. */
static bool parse_node(const struct kvs_entry *entry, struct kvs_node_record *record_p)
{
    struct kvs_node_record record = {0};
    json_t *root = json_loads(entry->value, 0, NULL);
    bool ok = text_of(root, "address", NULL, record.address, sizeof record.address) &&
              text_of(root, "rdma", "", record.rdma, sizeof record.rdma) &&
              kvs_etcd_decode(entry->key, strlen(entry->key), record.name, sizeof record.name) &&
              kvs_wire_u64(root, "capacity", &record.capacity_bytes) &&
              kvs_wire_u64(root, "incarnation", &record.incarnation) &&
              kvs_wire_bool(root, "draining", &record.draining);
    if (ok) {
        *record_p = record;
    } else {
        KVB_LOG_LIMITED(WARN, "a node record at etcd is broken", KVB_STR("node", entry->key));
    }
    json_decref(root);
    return ok;
}

static char *node_text(const struct kvs_node_record *record)
{
    char capacity[24], incarnation[24];
    snprintf(capacity, sizeof capacity, "%" PRIu64, record->capacity_bytes);
    snprintf(incarnation, sizeof incarnation, "%" PRIu64, record->incarnation);
    json_t *root = json_pack("{s:s, s:s, s:s, s:b}", "address", record->address, "capacity",
                             capacity, "incarnation", incarnation, "draining", record->draining);
    if (root != NULL && record->rdma[0] != '\0' &&
        json_object_set_new(root, "rdma", json_string(record->rdma)) != 0) {
        json_decref(root);
        root = NULL;
    }
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static const char *node_key(const struct etcd *etcd, char out[KVS_ETCD_KEY_MAX])
{
    char name[3 * sizeof etcd->node.name];
    kvs_etcd_encode(name, sizeof name, etcd->node.name);
    return kvs_etcd_key(etcd, KVS_KEY_NODE, name, NULL, out);
}

#define EACH_WATCHER(etcd, watcher, member)                                                        \
    kvb_list_each(&(etcd)->watchers,                                                               \
                  watcher##_link) for (struct watcher *watcher =                                   \
                                           kvb_container_of(watcher##_link, struct watcher, link); \
                                       watcher != NULL && watcher->replayed &&                     \
                                       watcher->ops->member != NULL;                               \
                                       watcher = NULL)

static void tell_gone(struct etcd *etcd, const char *name)
{
    EACH_WATCHER(etcd, watcher, node_gone)
    {
        watcher->ops->node_gone(watcher->ctx, name);
    }
}

static void not_missing(struct etcd *etcd, const char *name)
{
    kvb_list_each(&etcd->missing, link)
    {
        struct missing *missing = kvb_container_of(link, struct missing, link);
        if (strcmp(missing->name, name) == 0) {
            kvb_list_remove(link);
            free(missing);
        }
    }
}

static void on_gone(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, gone);
    for (struct kvb_list *link; etcd->up && (link = kvb_list_pop(&etcd->missing)) != NULL;) {
        struct missing *missing = kvb_container_of(link, struct missing, link);
        tell_gone(etcd, missing->name);
        free(missing);
    }
}

/* A node whose record goes just after we (or all of etcd) were away may only be slow to come back
 * itself: it has the time of a lease for it. */
static void node_removed(struct etcd *etcd, const struct kvs_entry *entry)
{
    char name[sizeof etcd->node.name];
    uint64_t lease_ns = etcd->lease_ms * KVB_NS_PER_MS;
    if (!kvs_etcd_decode(entry->key, strlen(entry->key), name, sizeof name)) {
        return;
    }
    if (etcd->node_wanted && strcmp(name, etcd->node.name) == 0) {
        etcd->node_new = etcd->node_gone = true; /* another had the name, and is gone */
    }
    bool settled = etcd->up && kvb_now_ns(etcd->sched->clock) - etcd->up_ns > lease_ns;
    struct missing *missing = settled ? NULL : calloc(1, sizeof *missing);
    if (missing == NULL) {
        tell_gone(etcd, name);
        return;
    }
    memcpy(missing->name, name, sizeof name);
    kvb_list_push_back(&etcd->missing, &missing->link);
    if (etcd->up) {
        kvb_sched_timer_set(etcd->sched, &etcd->gone, etcd->up_ns + lease_ns);
    }
}

/* By now another process may be the node of this name: its record, if it is later than base, is not
 * ours to change. False: it is. The txn compares that none has come since. */
static bool node_is_ours(const struct etcd *etcd, const char *key, uint64_t base,
                         struct kvs_txn *txn)
{
    const char *tail =
        key + strlen(kvs_etcd_key(etcd, KVS_KEY_NODE, NULL, NULL, (char[KVS_ETCD_KEY_MAX]){0}));
    bool behind = etcd->mirror.rev < etcd->node_rev; /* it shows what was before ours */
    const struct kvs_entry *entry =
        behind ? NULL : kvs_mirror_find(&etcd->mirror, KVS_KEY_NODE, tail);
    struct kvs_node_record record;
    if (entry != NULL && entry->mod_rev > base && parse_node(entry, &record) &&
        record.incarnation != etcd->node.incarnation) {
        KVB_LOG_LIMITED(WARN, "another process is the node of this name now",
                        KVB_STR("node", etcd->node.name), KVB_STR("address", record.address));
        return false;
    }
    uint64_t rev = behind ? etcd->node_rev : entry == NULL ? 0 : entry->mod_rev;
    kvs_txn_when(txn, kvs_wire_if_modified(key, rev));
    return true;
}

static kvb_status_t build_announce(struct op *op, struct kvs_txn *txn)
{
    struct etcd *etcd = op->etcd;
    char key[KVS_ETCD_KEY_MAX];
    if (!etcd->node_wanted) {
        return KVB_ERR_CANCELED;
    }
    char *text = node_text(&etcd->node);
    if (text == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    etcd->node_new = false;
    if (!etcd->node_before) {
        etcd->node_base = etcd->mirror.rev;
    }
    if (!node_is_ours(etcd, node_key(etcd, key), etcd->node_base, txn)) {
        free(text);
        return KVB_ERR_EXISTS;
    }
    (void)kvs_txn_then(txn, kvs_wire_put(key, text, etcd->lease));
    free(text);
    return KVB_OK;
}

static kvb_status_t answer_announce(struct op *op, const struct kvs_txn_answer *answer)
{
    op->etcd->node_before |= answer->succeeded || op->call.uncertain;
    if (!answer->succeeded) {
        return KVB_ERR_AGAIN;
    }
    op->etcd->node_lease = op->lease;
    op->etcd->node_rev = answer->rev;
    return KVB_OK;
}

static bool end_announce(struct op *op, kvb_status_t status)
{
    struct etcd *etcd = op->etcd;
    etcd->node_before |= op->call.uncertain;
    etcd->node_new = etcd->node_new || (status != KVB_OK && status != KVB_ERR_CANCELED);
    etcd->announcing = false;
    return false;
}

static const struct op_type announce_type = {
    .name = "announce", .build = build_announce, .answer = answer_announce, .end = end_announce};

/* Level triggered: also from the sweep, after what failed. */
void kvs_etcd_announce_again(struct etcd *etcd)
{
    bool due = etcd->node_wanted && (etcd->node_new || etcd->node_lease != etcd->lease);
    if (!etcd->up || !due || etcd->announcing) {
        return;
    }
    struct op *op = kvs_op_create(etcd, &announce_type, NULL, NULL);
    if (op != NULL) {
        etcd->announcing = true;
        kvs_op_queue(&etcd->queue, op);
    }
}

static kvb_status_t etcd_announce(struct kvs_coordinator *base,
                                  const struct kvs_node_record *record)
{
    struct etcd *etcd = kvs_etcd_of(base);
    if (record->name[0] == '\0' || memchr(record->name, '\0', sizeof record->name) == NULL ||
        memchr(record->address, '\0', sizeof record->address) == NULL ||
        memchr(record->rdma, '\0', sizeof record->rdma) == NULL) {
        return KVB_ERR_INVALID;
    }
    etcd->node = *record;
    etcd->node_wanted = true;
    etcd->node_new = true;
    kvs_etcd_announce_again(etcd);
    return KVB_OK;
}

static kvb_status_t build_withdraw(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    if (!node_is_ours(op->etcd, node_key(op->etcd, key), 0, txn)) {
        return KVB_ERR_EXISTS;
    }
    (void)kvs_txn_then(txn, kvs_wire_delete(key));
    return KVB_OK;
}

static kvb_status_t answer_withdraw(struct op *op, const struct kvs_txn_answer *answer)
{
    (void)op;
    return answer->succeeded ? KVB_OK : KVB_ERR_AGAIN;
}

static const struct op_type withdraw_type = {
    .name = "withdraw", .build = build_withdraw, .answer = answer_withdraw};

/* NULL: answered already. */
static struct op *ask(struct etcd *etcd, const struct op_type *type,
                      struct kvs_coord_request *request)
{
    kvs_request_begin(&etcd->requests, &etcd->base, NULL, request);
    struct op *op = etcd->up ? kvs_op_create(etcd, type, NULL, request) : NULL;
    if (op == NULL) {
        kvs_request_answer(etcd->sched, request,
                           etcd->up ? KVB_ERR_NO_MEMORY : KVB_ERR_UNAVAILABLE);
    }
    return op;
}

static void etcd_withdraw(struct kvs_coordinator *base, struct kvs_coord_request *request)
{
    struct etcd *etcd = kvs_etcd_of(base);
    bool there = etcd->node_wanted && (etcd->node_before || etcd->announcing);
    etcd->node_wanted = false;
    etcd->node_lease = 0;
    if (!there) {
        kvs_request_begin(&etcd->requests, base, NULL, request);
        kvs_request_answer(etcd->sched, request, KVB_OK);
        return;
    }
    struct op *op = ask(etcd, &withdraw_type, request);
    if (op != NULL) {
        kvs_op_queue(&etcd->queue, op);
    }
}

/* ---- quotas ---- */

static kvb_status_t build_quota(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char bytes[24];
    const struct kvs_entry *entry = kvs_mirror_find(&op->etcd->mirror, KVS_KEY_QUOTA, op->path);
    (void)kvs_etcd_key(op->etcd, KVS_KEY_QUOTA, op->path, NULL, key);
    kvs_txn_when(txn, kvs_wire_if_modified(key, entry == NULL ? 0 : entry->mod_rev));
    snprintf(bytes, sizeof bytes, "%" PRIu64, op->number);
    (void)kvs_txn_then(txn, op->number == UINT64_MAX ? kvs_wire_delete(key)
                                                     : kvs_wire_put(key, bytes, 0));
    return KVB_OK;
}

static kvb_status_t answer_quota(struct op *op, const struct kvs_txn_answer *answer)
{
    (void)op;
    return answer->succeeded ? KVB_OK : KVB_ERR_AGAIN;
}

static const struct op_type quota_type = {
    .name = "quota", .build = build_quota, .answer = answer_quota};

static void etcd_set_quota(struct kvs_coordinator *base, const char *tenant, uint64_t bytes,
                           struct kvs_coord_request *request)
{
    struct etcd *etcd = kvs_etcd_of(base);
    if (!kvs_etcd_sound_tenant(tenant)) {
        kvs_request_begin(&etcd->requests, base, NULL, request);
        kvs_request_answer(etcd->sched, request, KVB_ERR_INVALID);
        return;
    }
    struct op *op = ask(etcd, &quota_type, request);
    if (op != NULL) {
        kvs_etcd_encode(op->path, sizeof op->path, tenant);
        op->number = bytes;
        kvs_op_queue(&etcd->queue, op);
    }
}

static void tell_quota(struct etcd *etcd, const struct kvs_entry *entry, bool removed)
{
    char tenant[sizeof((struct kvs_space *)0)->tenant];
    uint64_t bytes = UINT64_MAX;
    if (!kvs_etcd_decode(entry->key, strlen(entry->key), tenant, sizeof tenant) ||
        (!removed && !kvs_etcd_parse_u64(entry->value, &bytes))) {
        KVB_LOG_LIMITED(WARN, "a quota at etcd is broken", KVB_STR("tenant", entry->key));
        return;
    }
    EACH_WATCHER(etcd, watcher, quota)
    {
        watcher->ops->quota(watcher->ctx, tenant, bytes);
    }
}

/* ---- what changed in the mirror ---- */

/* Of the present lease: what goes with an earlier one may be heard late. */
static bool own_member(const struct etcd *etcd, const struct kvs_entry *entry)
{
    const char *id = strrchr(entry->key, '/');
    kvb_list_each(&etcd->members, link)
    {
        const struct member *member = kvb_container_of(link, struct member, link);
        if (!member->closed && member->lease != 0 && member->lease == etcd->lease &&
            member->token == entry->create_rev && id != NULL && strcmp(id + 1, member->id) == 0) {
            return true;
        }
    }
    return false;
}

void kvs_etcd_changed(struct etcd *etcd, enum kvs_key_kind kind, struct kvs_entry *entry,
                      const char *old)
{
    struct kvs_node_record record;
    struct kvs_entry *name;
    switch (kind) {
    case KVS_KEY_NAME:
        entry->since_ns = kvb_now_ns(etcd->sched->clock);
        break;
    case KVS_KEY_IN:
        name = old == NULL ? NULL : kvs_etcd_name_of(etcd, entry);
        if (name != NULL) {
            name->since_ns = kvb_now_ns(etcd->sched->clock);
        }
        break;
    case KVS_KEY_NODE:
        if ((old == NULL || strcmp(old, entry->value) != 0) && parse_node(entry, &record)) {
            not_missing(etcd, record.name);
            EACH_WATCHER(etcd, watcher, node)
            {
                watcher->ops->node(watcher->ctx, &record);
            }
        }
        break;
    case KVS_KEY_QUOTA:
        tell_quota(etcd, entry, false);
        break;
    case KVS_KEY_RETIRED:
        if (old == NULL) {
            kvs_retire_heard(etcd, entry);
        }
        break;
    case KVS_KEY_MEMBER:
    case KVS_KEY_STEP:
    case KVS_KEY_EPOCH:
    case KVS_KEY_LEFT:
    case KVS_KEY_KINDS_COUNT:
        break;
    }
}

void kvs_etcd_removed(struct etcd *etcd, enum kvs_key_kind kind, const struct kvs_entry *entry)
{
    struct kvs_entry *name;
    switch (kind) {
    case KVS_KEY_IN:
        name = kvs_etcd_name_of(etcd, entry);
        if (name != NULL) {
            name->since_ns = kvb_now_ns(etcd->sched->clock);
        }
        break;
    case KVS_KEY_NODE:
        node_removed(etcd, entry);
        break;
    case KVS_KEY_QUOTA:
        tell_quota(etcd, entry, true);
        break;
    case KVS_KEY_MEMBER:
        etcd->revoked = etcd->revoked || own_member(etcd, entry);
        break;
    case KVS_KEY_NAME:
    case KVS_KEY_STEP:
    case KVS_KEY_EPOCH:
    case KVS_KEY_RETIRED:
    case KVS_KEY_LEFT:
    case KVS_KEY_KINDS_COUNT:
        break;
    }
}

void kvs_etcd_settled(struct etcd *etcd)
{
    kvs_retire_settle(etcd);
    if (etcd->revoked) { /* somebody ended our lease before its time */
        etcd->revoked = false;
        kvs_session_lost(etcd);
    }
    if (etcd->node_gone) {
        etcd->node_gone = false;
        kvs_etcd_announce_again(etcd);
    }
}

void kvs_etcd_synced(struct etcd *etcd)
{
    uint64_t now_ns = kvb_now_ns(etcd->sched->clock);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_NAME].n; i++) {
        etcd->mirror.kinds[KVS_KEY_NAME].entries[i]->since_ns = now_ns;
    }
    kvb_list_each(&etcd->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (!member->closed) {
            kvs_retire_catch_up(member);
        }
    }
}

static void post_news(struct etcd *etcd)
{
    etcd->news_reach = true;
    kvb_sched_post(etcd->sched, &etcd->news);
}

void kvs_etcd_up(struct etcd *etcd)
{
    post_news(etcd);
    kvb_list_each(&etcd->members, link)
    {
        kvs_member_up(kvb_container_of(link, struct member, link));
    }
    kvs_op_run_queue(etcd, NULL, &etcd->queue);
    kvs_op_run_beside(&etcd->beside);
    kvs_etcd_announce_again(etcd);
    if (!kvb_list_empty(&etcd->missing)) {
        kvb_sched_timer_set(etcd->sched, &etcd->gone, etcd->up_ns + etcd->lease_ms * KVB_NS_PER_MS);
    }
}

void kvs_etcd_down(struct etcd *etcd, bool lost)
{
    if (lost) {
        etcd->node_lease = 0;
        etcd->node_rev = 0;
    }
    kvs_op_fail_queue(&etcd->queue);
    kvb_list_each(&etcd->members, link)
    {
        kvs_member_down(kvb_container_of(link, struct member, link), lost);
    }
    post_news(etcd);
}

/* ---- watchers ---- */

static void replay(struct etcd *etcd, struct watcher *watcher)
{
    for (uint32_t i = 0; watcher->ops->node != NULL && i < etcd->mirror.kinds[KVS_KEY_NODE].n;
         i++) {
        struct kvs_node_record record;
        if (parse_node(etcd->mirror.kinds[KVS_KEY_NODE].entries[i], &record)) {
            watcher->ops->node(watcher->ctx, &record);
        }
    }
    for (uint32_t i = 0; watcher->ops->quota != NULL && i < etcd->mirror.kinds[KVS_KEY_QUOTA].n;
         i++) {
        const struct kvs_entry *entry = etcd->mirror.kinds[KVS_KEY_QUOTA].entries[i];
        char tenant[sizeof((struct kvs_space *)0)->tenant];
        uint64_t bytes;
        if (kvs_etcd_decode(entry->key, strlen(entry->key), tenant, sizeof tenant) &&
            kvs_etcd_parse_u64(entry->value, &bytes)) {
            watcher->ops->quota(watcher->ctx, tenant, bytes);
        }
    }
    if (watcher->ops->retired != NULL) {
        kvs_retire_replay(etcd, watcher);
    }
}

static void on_news(struct kvb_event *event)
{
    struct etcd *etcd = kvb_container_of(event, struct etcd, news);
    bool reach = etcd->news_reach;
    etcd->news_reach = false;
    kvb_list_each(&etcd->watchers, link)
    {
        struct watcher *watcher = kvb_container_of(link, struct watcher, link);
        bool fresh = !watcher->replayed;
        if (fresh) {
            watcher->replayed = true;
            replay(etcd, watcher);
        }
        if ((reach || fresh) && watcher->ops->reachable != NULL) {
            watcher->ops->reachable(watcher->ctx, etcd->up);
        }
    }
}

static kvb_status_t etcd_watch(struct kvs_coordinator *base, const struct kvs_watch_ops *ops,
                               void *ctx)
{
    struct etcd *etcd = kvs_etcd_of(base);
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (watcher == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    watcher->ops = ops;
    watcher->ctx = ctx;
    kvb_list_push_back(&etcd->watchers, &watcher->link);
    kvb_sched_post(etcd->sched, &etcd->news);
    return KVB_OK;
}

/* ---- for status ---- */

static void etcd_each_instance(struct kvs_coordinator *base,
                               void (*each)(void *arg, const struct kvs_instance_record *record),
                               void *arg)
{
    const struct etcd *etcd = kvs_etcd_of(base);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_MEMBER].n; i++) {
        const struct kvs_entry *entry = etcd->mirror.kinds[KVS_KEY_MEMBER].entries[i];
        struct kvs_space space;
        json_t *root = json_loads(entry->value, 0, NULL);
        const char *instance = json_string_value(json_object_get(root, "instance"));
        const char *text = json_string_value(json_object_get(root, "text"));
        const char *process = json_string_value(json_object_get(root, "process"));
        const char *life = json_string_value(json_object_get(root, "life"));
        if (instance != NULL && split_space(entry->key, &space) != NULL) {
            each(arg,
                 &(struct kvs_instance_record){.instance = instance,
                                               .space = &space,
                                               .process = process == NULL ? "" : process,
                                               .own = life != NULL && strcmp(life, etcd->id) == 0,
                                               .token = entry->create_rev,
                                               .text = text == NULL ? "{}" : text});
        }
        json_decref(root);
    }
}

static uint32_t members_in(const struct etcd *etcd, const char *path, const char *name)
{
    uint32_t n = 0;
    for (uint32_t place = kvs_mirror_place(&etcd->mirror, KVS_KEY_IN, path);; place++) {
        const struct kvs_entry *in = kvs_mirror_at(&etcd->mirror, KVS_KEY_IN, place, path);
        if (in == NULL) {
            return n;
        }
        n += strcmp(in->value, name) == 0;
    }
}

static void etcd_each_name(struct kvs_coordinator *base,
                           void (*each)(void *arg, const struct kvs_space *space, const char *name,
                                        struct kvb_lineage lineage, uint32_t members),
                           void *arg)
{
    const struct etcd *etcd = kvs_etcd_of(base);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_NAME].n; i++) {
        const struct kvs_entry *entry = etcd->mirror.kinds[KVS_KEY_NAME].entries[i];
        char name[KVS_ETCD_NAME_MAX + 1];
        char path[KVS_ETCD_PATH_MAX];
        struct kvs_space space;
        struct kvb_lineage lineage;
        const char *rest = split_space(entry->key, &space);
        if (rest == NULL || !kvs_etcd_decode(rest, strlen(rest), name, sizeof name) ||
            (size_t)(rest - entry->key) >= sizeof path ||
            !kvs_etcd_parse_lineage(entry->value, &lineage)) {
            continue;
        }
        snprintf(path, sizeof path, "%.*s", (int)(rest - entry->key), entry->key);
        each(arg, &space, name, lineage, members_in(etcd, path, name));
    }
}

/* ---- create and destroy ---- */

static void on_sweep(struct kvb_timer *timer)
{
    struct etcd *etcd = kvb_container_of(timer, struct etcd, sweep);
    uint64_t ms = etcd->grace_ms / GRACE_SHARE;
    uint32_t jitter;
    ms = ms > SWEEP_MS_MAX ? SWEEP_MS_MAX : ms < SWEEP_MS_MIN ? SWEEP_MS_MIN : ms;
    etcd->sched->random->fill(etcd->sched->random->ctx, &jitter, sizeof jitter);
    ms += jitter % (ms / 2); /* mostly one of all processes finds it first */
    kvb_sched_timer_set(etcd->sched, timer, kvb_deadline_in_ms(etcd->sched->clock, ms));
    if (etcd->up) {
        kvs_retire_sweep(etcd);
        kvs_etcd_announce_again(etcd);
    }
}

static void etcd_destroy(struct kvs_coordinator *base)
{
    struct etcd *etcd = kvs_etcd_of(base);
    kvs_session_stop(etcd);
    kvb_list_each(&etcd->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        kvb_assert(member->closed);
        kvs_op_drop_all(&member->queue);
        member->record = NULL;
        kvb_sched_unpost(&member->reach);
        kvb_list_remove(link);
        free(member->text);
        free(member);
    }
    kvs_request_cancel_all(&etcd->requests, kvs_retire_disown);
    kvs_op_drop_all(&etcd->queue);
    kvs_op_drop_all(&etcd->beside);
    kvs_op_drop_all(&etcd->waiting);
    kvs_http_destroy(etcd->http);
    for (struct kvb_list *link; (link = kvb_list_pop(&etcd->watchers)) != NULL;) {
        free(kvb_container_of(link, struct watcher, link));
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&etcd->missing)) != NULL;) {
        free(kvb_container_of(link, struct missing, link));
    }
    kvb_sched_unpost(&etcd->news);
    kvb_sched_timer_clear(etcd->sched, &etcd->sweep);
    kvb_sched_timer_clear(etcd->sched, &etcd->gone);
    kvs_mirror_cleanup(&etcd->mirror);
    free(etcd);
}

static bool sound_prefix(const char *prefix)
{
    size_t len = strlen(prefix);
    return len > 0 && len < 100 && prefix[len - 1] == '/';
}

static const struct kvs_coordinator_ops etcd_ops = {
    .open = kvs_member_etcd_open,
    .close = kvs_member_etcd_close,
    .resolve = kvs_member_etcd_resolve,
    .check = kvs_member_etcd_check,
    .leave = kvs_member_etcd_leave,
    .abandon = kvs_member_etcd_abandon,
    .left = kvs_member_etcd_left,
    .retire = kvs_member_etcd_retire,
    .tenant_reset = kvs_member_etcd_tenant_reset,
    .step = kvs_member_etcd_step,
    .publish = kvs_member_etcd_publish,
    .each_name = etcd_each_name,
    .destroy = etcd_destroy,
    .watch = etcd_watch,
    .announce = etcd_announce,
    .withdraw = etcd_withdraw,
    .set_quota = etcd_set_quota,
    .each_instance = etcd_each_instance,
};

kvb_status_t kvs_etcd_create(const struct kvs_etcd_config *config,
                             struct kvs_coordinator **coordinator_p)
{
    const char *prefix = config->prefix == NULL ? "/kvplane/" : config->prefix;
    if (!sound_prefix(prefix) || config->lease_ms > LEASE_MS_MAX) {
        return KVB_ERR_INVALID;
    }
    struct etcd *etcd = calloc(1, sizeof *etcd);
    if (etcd == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    etcd->base.ops = &etcd_ops;
    etcd->sched = config->sched;
    etcd->request_ms = config->request_ms == 0 ? REQUEST_MS_DEFAULT : config->request_ms;
    etcd->lease_ms = config->lease_ms == 0 ? LEASE_MS_DEFAULT : config->lease_ms;
    etcd->grace_ms = config->grace_ms;
    snprintf(etcd->prefix, sizeof etcd->prefix, "%s", prefix);
    snprintf(etcd->process, sizeof etcd->process, "%s",
             config->process == NULL ? "" : config->process);
    kvb_id_format(kvb_id_draw(config->sched->random), etcd->id);
    kvb_list_init(&etcd->members);
    kvb_list_init(&etcd->watchers);
    kvb_list_init(&etcd->queue);
    kvb_list_init(&etcd->beside);
    kvb_list_init(&etcd->waiting);
    kvb_list_init(&etcd->requests);
    kvb_list_init(&etcd->missing);
    kvb_event_init(&etcd->news, on_news);
    kvb_timer_init(&etcd->sweep, on_sweep);
    kvb_timer_init(&etcd->gone, on_gone);
    const struct kvs_http_config http = {
        .sched = config->sched,
        .io = config->io,
        .endpoints = config->endpoints,
        .nendpoints = config->nendpoints,
        .user = config->user,
        .password = config->password,
        .ca_file = config->ca_file,
        .cert_file = config->cert_file,
        .key_file = config->key_file,
        .request_ms = etcd->request_ms,
    };
    kvb_status_t status = kvs_http_create(&http, &etcd->http);
    if (status != KVB_OK) {
        free(etcd);
        return status;
    }
    kvs_session_start(etcd);
    on_sweep(&etcd->sweep);
    *coordinator_p = &etcd->base;
    return KVB_OK;
}
