/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retirements. One transaction does it: the names are unbound, a record of the retirement is put
 * (that is what members and nodes hear), and the members of the space are listed; when there is
 * none but the asker, that is all. Else each one hears of it through its watch, leaves, and says so
 * (`left/`); the asker hears that through its own. A member is not waited for any more when it said
 * so, or when its record is gone: deleted by itself, or with its lease, which by its own clock
 * ended before, so that it has left (kvs_member_ops.lost).
 *
 * What it unbinds is computed from the mirror, and holds only if no name of the space was written
 * since; if one was, it is computed anew. Its id is drawn once: sent a second time, because the
 * answer to the first was lost, it finds its own record and does nothing.
 *
 * A tenant's reset is the same for all spaces of the tenant. It also begins an epoch (rule 7).
 * While members leave, the tenant's epoch is `open ID`; only then a member can say that it has left
 * and so took part; the asker closes it, and only then steps can be taken in it.
 */
#include "etcd_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUIET_MS         200  /* abandoned lineages are gathered so long */
#define QUIET_BATCH      64   /* of one record */
#define QUIET_MAX        16   /* batches that wait for etcd to come back */
#define CLOSE_MARGIN_MS  1000 /* of a tenant's reset, before its deadline */
#define RETIREMENT_SHIFT 8    /* a retirement's number: its revision, and which of its lineages */
#define LINEAGES_MAX     255

/* A retirement as etcd has it. */
struct record {
    char path[KVS_ETCD_PATH_MAX]; /* who is told: the members below it */
    char asker[KVS_ETCD_ID_MAX];  /* who is not: it has left already; "": nobody */
    bool whole;                   /* the tenant's reset */
    bool quiet;                   /* nobody is told */
    bool awaited;                 /* somebody waits until all have left */
    struct kvb_lineage *lineages;
    uint32_t n;
};

struct tell {
    struct kvb_list link; /* member.tells */
    struct member *member;
    char id[KVS_ETCD_ID_MAX]; /* of the retirement */
    uint64_t number;
    bool whole, heard, awaited;
    struct kvb_lineage lineage;
    struct kvb_event event;
};

/* ---- the record ---- */

static bool fits(const char *text, size_t cap)
{
    return text != NULL && strlen(text) < cap;
}

/* INVALID, NO_MEMORY. The caller frees lineages. */
static kvb_status_t parse_record(const char *text, struct record *record_p)
{
    struct record record = {0};
    kvb_status_t status = KVB_ERR_INVALID;
    json_t *root = json_loads(text, 0, NULL);
    const char *path = json_string_value(json_object_get(root, "path"));
    const char *asker = json_string_value(json_object_get(root, "asker"));
    const json_t *lineages = json_object_get(root, "lineages");
    asker = asker == NULL ? "" : asker;
    if (!fits(path, sizeof record.path) || !fits(asker, sizeof record.asker) ||
        !json_is_array(lineages) || !kvs_wire_bool(root, "whole", &record.whole) ||
        !kvs_wire_bool(root, "quiet", &record.quiet) ||
        !kvs_wire_bool(root, "awaited", &record.awaited)) {
        goto out;
    }
    strcpy(record.path, path);
    strcpy(record.asker, asker);
    record.lineages = calloc(json_array_size(lineages) + 1, sizeof *record.lineages);
    if (record.lineages == NULL) {
        status = KVB_ERR_NO_MEMORY;
        goto out;
    }
    for (size_t i = 0; i < json_array_size(lineages); i++) {
        const char *hex = json_string_value(json_array_get(lineages, i));
        if (hex == NULL || !kvs_etcd_parse_lineage(hex, &record.lineages[record.n++])) {
            free(record.lineages);
            goto out;
        }
    }
    *record_p = record;
    status = KVB_OK;
out:
    json_decref(root);
    return status;
}

/* malloc'd; NULL: no memory. */
static char *record_text(const char *path, const char *asker, bool whole, bool quiet, bool awaited,
                         const struct kvb_lineage *lineages, uint32_t n)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint32_t i = 0; i < n && ok; i++) {
        char hex[KVS_ETCD_ID_MAX];
        kvb_id_format(lineages[i].id, hex);
        ok = json_array_append_new(list, json_string(hex)) == 0;
    }
    json_t *root =
        ok ? json_pack("{s:s, s:s, s:b, s:b, s:b, s:O}", "path", path, "asker", asker, "whole",
                       whole, "quiet", quiet, "awaited", awaited, "lineages", list)
           : NULL;
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    json_decref(list);
    return text;
}

/* ---- telling members ---- */

static void free_tell(struct tell *tell)
{
    kvb_sched_unpost(&tell->event);
    kvb_list_remove(&tell->link);
    free(tell);
}

static void on_tell(struct kvb_event *event)
{
    struct tell *tell = kvb_container_of(event, struct tell, event);
    struct member *member = tell->member;
    tell->heard = true;
    if (tell->whole) {
        member->epoch = 0;
        member->ops->told_tenant(member->ctx, tell->number);
    } else {
        member->ops->told(member->ctx, tell->lineage, tell->number);
    }
}

static bool add_tell(struct member *member, const char *id, const struct record *record,
                     uint64_t number, const struct kvb_lineage *lineage)
{
    struct tell *tell = calloc(1, sizeof *tell);
    if (tell == NULL) {
        return false;
    }
    tell->member = member;
    tell->number = number;
    tell->whole = record->whole;
    tell->awaited = record->awaited;
    snprintf(tell->id, sizeof tell->id, "%s", id);
    if (lineage != NULL) {
        tell->lineage = *lineage;
    }
    kvb_event_init(&tell->event, on_tell);
    kvb_list_push_back(&member->tells, &tell->link);
    return true;
}

/* One call for each lineage; all or nothing. */
static bool tell_member(struct member *member, const char *id, const struct record *record,
                        uint64_t rev)
{
    uint64_t number = rev << RETIREMENT_SHIFT;
    if (member->closed || record->quiet || strcmp(record->asker, member->id) == 0 ||
        strncmp(member->path, record->path, strlen(record->path)) != 0) {
        return true;
    }
    uint32_t n = record->whole ? 1 : record->n;
    for (uint32_t i = 0; i < n; i++) {
        if (!add_tell(member, id, record, record->whole ? number : number + i + 1,
                      record->whole ? NULL : &record->lineages[i])) {
            for (; i > 0; i--) {
                free_tell(kvb_container_of(member->tells.prev, struct tell, link));
            }
            return false;
        }
    }
    struct kvb_sched *sched = kvs_etcd_home(member)->sched;
    kvb_list_each(&member->tells, link)
    {
        struct tell *tell = kvb_container_of(link, struct tell, link);
        if (!tell->heard) {
            kvb_sched_post(sched, &tell->event);
        }
    }
    return true;
}

static void tell(struct member *member, const struct kvs_entry *entry, const struct record *record)
{
    if (tell_member(member, entry->key, record, entry->create_rev)) {
        member->told_rev = entry->create_rev;
    } else {
        member->behind = true; /* the sweep catches up */
    }
}

void kvs_retire_catch_up(struct member *member)
{
    const struct kvs_mirror *mirror = &kvs_etcd_home(member)->mirror;
    member->behind = false;
    while (!member->behind && member->told_rev != 0) {
        const struct kvs_entry *next = NULL;
        for (uint32_t i = 0; i < mirror->kinds[KVS_KEY_RETIRED].n; i++) {
            const struct kvs_entry *entry = mirror->kinds[KVS_KEY_RETIRED].entries[i];
            if (entry->create_rev > member->told_rev &&
                (next == NULL || entry->create_rev < next->create_rev)) {
                next = entry;
            }
        }
        if (next == NULL) {
            return;
        }
        struct record record;
        kvb_status_t status = parse_record(next->value, &record);
        if (status == KVB_OK) {
            tell(member, next, &record);
            free(record.lineages);
        } else if (status == KVB_ERR_NO_MEMORY) {
            member->behind = true;
        } else {
            member->told_rev = next->create_rev; /* said when it was heard */
        }
    }
}

void kvs_retire_heard(struct etcd *etcd, const struct kvs_entry *entry)
{
    struct record record;
    kvb_status_t status = parse_record(entry->value, &record);
    if (status == KVB_ERR_INVALID) {
        KVB_LOG_LIMITED(WARN, "a retirement at etcd is broken", KVB_STR("id", entry->key));
        return;
    }
    kvb_list_each(&etcd->watchers, link)
    {
        struct watcher *watcher = kvb_container_of(link, struct watcher, link);
        if (!watcher->replayed || watcher->ops->retired == NULL) {
            continue;
        }
        if (status != KVB_OK) {
            watcher->behind = true; /* the sweep catches up */
        } else if (record.n > 0) {
            watcher->ops->retired(watcher->ctx, record.lineages, record.n);
        }
    }
    /* Those of a snapshot do not come in their order: then members catch up when it is whole. */
    kvb_list_each(&etcd->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (!etcd->synced || member->behind || member->told_rev == 0 ||
            member->told_rev >= entry->create_rev) {
            continue;
        }
        if (status == KVB_OK) {
            tell(member, entry, &record);
        } else {
            member->behind = true;
        }
    }
    if (status == KVB_OK) {
        free(record.lineages);
    }
}

void kvs_retire_replay(struct etcd *etcd, struct watcher *watcher)
{
    watcher->behind = false;
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_RETIRED].n; i++) {
        struct record record;
        kvb_status_t status =
            parse_record(etcd->mirror.kinds[KVS_KEY_RETIRED].entries[i]->value, &record);
        if (status == KVB_OK) {
            if (record.n > 0) {
                watcher->ops->retired(watcher->ctx, record.lineages, record.n);
            }
            free(record.lineages);
        } else if (status == KVB_ERR_NO_MEMORY) {
            watcher->behind = true;
        }
    }
}

/* ---- having left ---- */

static kvb_status_t build_left(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char under[KVS_ETCD_ID_MAX + 1];
    if (op->member->lease == 0) {
        return KVB_ERR_UNAVAILABLE; /* when it is known to etcd again */
    }
    kvs_txn_when(txn,
                 kvs_wire_if_present(kvs_etcd_key(op->etcd, KVS_KEY_RETIRED, op->id, NULL, key)));
    if (op->number != 0) {
        char open[KVS_ETCD_ID_MAX + 8];
        snprintf(open, sizeof open, "open %s", op->id);
        kvs_txn_when(txn, kvs_wire_if_value(kvs_etcd_key(op->etcd, KVS_KEY_EPOCH,
                                                         op->member->space.tenant, NULL, key),
                                            open));
    }
    snprintf(under, sizeof under, "%s/", op->id);
    kvs_etcd_key(op->etcd, KVS_KEY_LEFT, under, op->member->id, key);
    (void)kvs_txn_then(txn, kvs_wire_put(key, "", op->etcd->lease));
    return KVB_OK;
}

static kvb_status_t answer_left(struct op *op, const struct kvs_txn_answer *answer)
{
    if (!answer->succeeded && op->number != 0) {
        op->number =
            0; /* a later reset has begun another epoch: this one waits for it all the same */
        return KVB_ERR_AGAIN;
    }
    if (answer->succeeded && op->number > op->member->epoch) {
        op->member->epoch = op->number;
    }
    return KVB_OK;
}

static const struct op_type left_type = {
    .name = "left", .lasting = true, .build = build_left, .answer = answer_left};

/* The last tell of this retirement is answered. */
static void say_left(struct member *member, const char *id, uint64_t epoch)
{
    struct etcd *etcd = kvs_etcd_home(member);
    struct op *op = kvs_op_create(etcd, &left_type, member, NULL);
    if (op == NULL) {
        KVB_LOG(WARN, "no memory to say that an instance has left: it counts as one that has not",
                KVB_STR("instance", member->instance));
        return;
    }
    snprintf(op->id, sizeof op->id, "%s", id);
    op->number = epoch;
    kvs_op_beside(&member->lefts, op);
}

void kvs_retire_left(struct member *member, uint64_t retirement)
{
    struct tell *found = NULL;
    kvb_list_each(&member->tells, link)
    {
        struct tell *tell = kvb_container_of(link, struct tell, link);
        found = tell->number == retirement && tell->heard ? tell : found;
    }
    if (found == NULL) {
        return;
    }
    char id[KVS_ETCD_ID_MAX];
    memcpy(id, found->id, sizeof id);
    uint64_t epoch = found->whole ? found->number : 0;
    bool last = found->awaited;
    free_tell(found);
    kvb_list_each(&member->tells, link)
    {
        last = last && strcmp(kvb_container_of(link, struct tell, link)->id, id) != 0;
    }
    if (last) {
        say_left(member, id, epoch);
    }
}

bool kvs_retire_is_leaving(const struct member *member, uint64_t epoch)
{
    kvb_list_each(&member->lefts, link)
    {
        if (kvb_container_of(link, struct op, link)->number == epoch) {
            return true;
        }
    }
    return false;
}

/* ---- what is unbound ---- */

static bool among(const struct kvb_lineage *lineages, uint32_t n, struct kvb_lineage lineage)
{
    for (uint32_t i = 0; i < n; i++) {
        if (kvb_lineage_equal(lineages[i], lineage)) {
            return true;
        }
    }
    return false;
}

static bool below(const char *key, const char *path)
{
    return strncmp(key, path, strlen(path)) == 0;
}

/* Does a name or step of a space other than path's (NULL: of any) stand for it? */
static bool stands_elsewhere(const struct etcd *etcd, const char *path, struct kvb_lineage lineage)
{
    const struct kvs_mirror *mirror = &etcd->mirror;
    char hex[KVS_ETCD_ID_MAX];
    kvb_id_format(lineage.id, hex);
    for (uint32_t i = 0; i < mirror->kinds[KVS_KEY_NAME].n; i++) {
        const struct kvs_entry *entry = mirror->kinds[KVS_KEY_NAME].entries[i];
        if ((path == NULL || !below(entry->key, path)) && strcmp(entry->value, hex) == 0) {
            return true;
        }
    }
    for (uint32_t i = 0; i < mirror->kinds[KVS_KEY_STEP].n; i++) {
        const struct kvs_entry *entry = mirror->kinds[KVS_KEY_STEP].entries[i];
        if ((path == NULL || !below(entry->key, path)) && kvs_member_step_stands(entry, lineage)) {
            return true;
        }
    }
    return false;
}

static kvb_status_t put_record(struct op *op, struct kvs_txn *txn, const char *path, const char *id,
                               const struct kvb_lineage *lineages, uint32_t n, bool whole,
                               bool quiet, bool awaited)
{
    char key[KVS_ETCD_KEY_MAX];
    char *text = record_text(path, op->member == NULL ? "" : op->member->id, whole, quiet, awaited,
                             lineages, n);
    if (text == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvs_etcd_key(op->etcd, KVS_KEY_RETIRED, id, NULL, key);
    (void)kvs_txn_then(txn, kvs_wire_put(key, text, op->etcd->retired_lease));
    free(text);
    return KVB_OK;
}

void kvs_retire_quietly(struct op *op, struct kvs_txn *txn, const char *path,
                        struct kvb_lineage lineage)
{
    char id[KVS_ETCD_ID_MAX];
    if (kvb_id_none(lineage.id)) {
        return;
    }
    kvb_id_format(kvb_id_draw(op->etcd->sched->random), id);
    if (put_record(op, txn, path, id, &lineage, 1, false, true, false) != KVB_OK) {
        txn->failed = true;
    }
}

/* If no name and no step below path was written since the mirror's revision. */
static void guard_names(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    uint64_t rev = op->etcd->mirror.rev;
    kvs_txn_when(txn, kvs_wire_if_prefix_older(
                          kvs_etcd_key(op->etcd, KVS_KEY_NAME, op->path, NULL, key), rev));
    kvs_txn_when(txn, kvs_wire_if_prefix_older(
                          kvs_etcd_key(op->etcd, KVS_KEY_STEP, op->path, NULL, key), rev));
    kvs_txn_when(txn,
                 kvs_wire_if_absent(kvs_etcd_key(op->etcd, KVS_KEY_RETIRED, op->id, NULL, key)));
}

/* Who is there, in both outcomes; and whether it was done before. */
static void list_members(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    kvs_etcd_key(op->etcd, KVS_KEY_MEMBER, op->path, NULL, key);
    op->place = kvs_txn_then(txn, kvs_wire_range_prefix(key, true));
    (void)kvs_txn_otherwise(txn, kvs_wire_range_prefix(key, true));
    kvs_etcd_key(op->etcd, KVS_KEY_RETIRED, op->id, NULL, key);
    (void)kvs_txn_otherwise(txn, kvs_wire_range(key));
}

static kvb_status_t build_retire(struct op *op, struct kvs_txn *txn)
{
    struct etcd *etcd = op->etcd;
    const struct kvs_mirror *mirror = &etcd->mirror;
    char key[KVS_ETCD_KEY_MAX];
    struct kvb_lineage all[LINEAGES_MAX + 1];
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->nlineages; i++) {
        if (!stands_elsewhere(etcd, op->quiet ? NULL : op->path, op->lineages[i])) {
            all[n++] = op->lineages[i];
        }
    }
    if (op->quiet && n == 0) {
        return KVB_ERR_EXISTS;
    }
    guard_names(op, txn);
    for (uint32_t place = kvs_mirror_place(mirror, KVS_KEY_NAME, op->path);; place++) {
        const struct kvs_entry *entry = kvs_mirror_at(mirror, KVS_KEY_NAME, place, op->path);
        struct kvb_lineage lineage;
        if (entry == NULL) {
            break;
        }
        bool named = op->text != NULL && strcmp(entry->key + strlen(op->path), op->text) == 0;
        if (!kvs_etcd_parse_lineage(entry->value, &lineage) ||
            (!named && !among(all, n, lineage))) {
            continue;
        }
        if (!among(all, n, lineage)) {
            all[n++] = lineage;
        }
        (void)kvs_txn_then(
            txn, kvs_wire_delete(kvs_etcd_key(etcd, KVS_KEY_NAME, entry->key, NULL, key)));
    }
    for (uint32_t i = 0; i < n; i++) {
        char *text;
        uint64_t mod_rev;
        if (!kvs_member_step_redrawn(op, all[i], &text, &mod_rev)) {
            continue;
        }
        if (text == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        kvs_etcd_key(etcd, KVS_KEY_STEP, op->path, NULL, key);
        (void)kvs_txn_then(txn, kvs_wire_put(key, text, 0));
        free(text);
    }
    kvb_status_t status =
        n == 0 ? KVB_OK
               : put_record(op, txn, op->path, op->id, all, n, false, op->quiet, !op->quiet);
    op->fenced = n == 0; /* nobody is told, nobody is waited for */
    op->uncounts = op->member != NULL && op->member->uncount;
    kvs_member_uncount(op, txn);
    list_members(op, txn);
    return status;
}

struct listing {
    struct op *op;
    const char *prefix; /* of members' keys */
    uint64_t rev;
    uint32_t cap;
};

static kvb_status_t list_member(void *ctx, const struct kvs_kv *kv)
{
    struct listing *listing = ctx;
    struct op *op = listing->op;
    size_t len = strlen(listing->prefix);
    if (strncmp(kv->key, listing->prefix, len) != 0) {
        return KVB_ERR_PROTOCOL;
    }
    const char *key = kv->key + len;
    const char *id = strrchr(key, '/');
    if (kv->create_rev > listing->rev ||
        (op->member != NULL && id != NULL && strcmp(id + 1, op->member->id) == 0)) {
        return KVB_OK; /* it came later, or asks */
    }
    if (op->nwaiting == listing->cap) {
        uint32_t cap = listing->cap == 0 ? 16 : 2 * listing->cap;
        char **grown = realloc(op->waiting, cap * sizeof *grown);
        if (grown == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        op->waiting = grown;
        listing->cap = cap;
    }
    op->waiting[op->nwaiting] = strdup(key);
    if (op->waiting[op->nwaiting] == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    op->nwaiting++;
    return KVB_OK;
}

/* Who has to leave. */
static kvb_status_t note_members(struct op *op, const struct kvs_txn_answer *answer, uint32_t place,
                                 uint64_t rev)
{
    char prefix[KVS_ETCD_KEY_MAX];
    bool sound;
    struct listing listing = {
        .op = op,
        .prefix = kvs_etcd_key(op->etcd, KVS_KEY_MEMBER, NULL, NULL, prefix),
        .rev = rev,
    };
    const json_t *kvs = kvs_txn_kvs(answer, place, &sound);
    kvb_status_t status = sound ? kvs_wire_each_kv(kvs, list_member, &listing) : KVB_ERR_PROTOCOL;
    op->retired_rev = rev;
    /* It is done, but nobody knows who has to leave: then not all of them have. */
    return status == KVB_ERR_NO_MEMORY ? KVB_ERR_TIMEOUT : status;
}

static kvb_status_t answer_retire(struct op *op, const struct kvs_txn_answer *answer)
{
    if (answer->succeeded) {
        if (op->uncounts) {
            kvs_member_uncounted(op->member);
        }
        if (op->fenced || op->quiet) {
            bool sound;
            (void)kvs_txn_kvs(answer, op->place, &sound);
            return sound ? KVB_OK : KVB_ERR_PROTOCOL;
        }
        return note_members(op, answer, op->place, answer->rev);
    }
    struct kvs_found found;
    kvb_status_t status = kvs_op_one_kv(answer, 1, &found);
    free(found.value);
    if (status != KVB_OK) {
        return status;
    }
    if (found.n == 0) {
        return KVB_ERR_AGAIN; /* a name was bound or unbound meanwhile */
    }
    return op->quiet ? KVB_OK : note_members(op, answer, 0, found.create_rev);
}

/* ---- waiting for members ---- */

static void finish(struct op *op, kvb_status_t status);

static void on_wait_over(struct kvb_timer *timer)
{
    struct op *op = kvb_container_of(timer, struct op, again);
    for (uint32_t i = 0; i < op->nwaiting; i++) {
        KVB_LOG(WARN, "a member did not leave in time and is fenced",
                KVB_STR("member", op->waiting[i]), KVB_STR("retirement", op->id));
    }
    finish(op, KVB_ERR_TIMEOUT);
}

static bool has_left(const struct op *op, const char *member_key)
{
    char key[2 * KVS_ETCD_ID_MAX + 1];
    const struct kvs_mirror *mirror = &op->etcd->mirror;
    const struct kvs_entry *member = kvs_mirror_find(mirror, KVS_KEY_MEMBER, member_key);
    if (member == NULL || member->create_rev > op->retired_rev) {
        return true; /* its record is gone, or was and is there again */
    }
    const char *id = strrchr(member_key, '/');
    snprintf(key, sizeof key, "%s/%.*s", op->id, KVB_ID_HEX_LEN, id == NULL ? "" : id + 1);
    return kvs_mirror_find(mirror, KVS_KEY_LEFT, key) != NULL;
}

static void look(struct op *op)
{
    if (op->etcd->mirror.rev < op->retired_rev) {
        return; /* the mirror shows what was before */
    }
    for (uint32_t i = op->nwaiting; i-- > 0;) {
        if (has_left(op, op->waiting[i])) {
            free(op->waiting[i]);
            op->waiting[i] = op->waiting[--op->nwaiting];
        }
    }
    if (op->nwaiting == 0) {
        finish(op, KVB_OK);
    }
}

void kvs_retire_settle(struct etcd *etcd)
{
    kvb_list_each(&etcd->waiting, link)
    {
        look(kvb_container_of(link, struct op, link));
    }
}

void kvs_retire_give_up(struct etcd *etcd)
{
    kvb_list_each(&etcd->waiting, link)
    {
        finish(kvb_container_of(link, struct op, link), KVB_ERR_TIMEOUT);
    }
}

/* Its transaction is over. True: it waits. */
static bool end_retire(struct op *op, kvb_status_t status)
{
    struct etcd *etcd = op->etcd;
    if (status != KVB_OK || op->nwaiting == 0) {
        return false;
    }
    op->nwaited = op->nwaiting;
    kvb_list_push_back(&etcd->waiting, &op->link);
    kvb_timer_init(&op->again, on_wait_over);
    kvb_sched_timer_set(etcd->sched, &op->again, op->until_ns);
    look(op);
    return true;
}

static const struct op_type retire_type = {
    .name = "retire", .build = build_retire, .answer = answer_retire, .end = end_retire};
static const struct op_type quiet_type = {
    .name = "abandon", .lasting = true, .build = build_retire, .answer = answer_retire};

/* Best effort: what stays goes with the leases of who said it. */
static kvb_status_t build_clean(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char under[KVS_ETCD_ID_MAX + 1];
    snprintf(under, sizeof under, "%s/", op->id);
    kvs_etcd_key(op->etcd, KVS_KEY_LEFT, under, NULL, key);
    (void)kvs_txn_then(txn, kvs_wire_delete_prefix(key));
    return KVB_OK;
}

static kvb_status_t answer_clean(struct op *op, const struct kvs_txn_answer *answer)
{
    (void)op, (void)answer;
    return KVB_OK;
}

static const struct op_type clean_type = {
    .name = "clean", .build = build_clean, .answer = answer_clean};

static void clean(struct etcd *etcd, const char *id)
{
    struct op *op = etcd->up ? kvs_op_create(etcd, &clean_type, NULL, NULL) : NULL;
    if (op != NULL) {
        snprintf(op->id, sizeof op->id, "%s", id);
        kvs_op_beside(&etcd->beside, op);
    }
}

/* ---- asked for by a member ---- */

static void begin_op(struct etcd *etcd, const struct op_type *type, struct member *member,
                     uint64_t deadline_ns, struct kvs_coord_request *request, struct op **op_p)
{
    kvs_request_begin(member == NULL ? &etcd->requests : &member->requests, &etcd->base,
                      member == NULL ? NULL : &member->base, request);
    *op_p = NULL;
    if (!etcd->up) {
        kvs_request_answer(etcd->sched, request, KVB_ERR_UNAVAILABLE);
        return;
    }
    struct op *op = kvs_op_create(etcd, type, member, request);
    if (op == NULL) {
        kvs_request_answer(etcd->sched, request, KVB_ERR_NO_MEMORY);
        return;
    }
    op->until_ns = deadline_ns;
    op->deadline_ns = deadline_ns < op->deadline_ns ? deadline_ns : op->deadline_ns;
    kvb_id_format(kvb_id_draw(etcd->sched->random), op->id);
    *op_p = op;
}

static void refuse(struct op *op, kvb_status_t status)
{
    op->request->impl.state = NULL;
    kvs_request_answer(op->etcd->sched, op->request, status);
    kvs_op_free(op);
}

void kvs_retire_member(struct member *member, const struct kvb_lineage *lineages, uint32_t n,
                       const char *name, uint64_t deadline_ns, struct kvs_coord_request *request)
{
    struct op *op;
    begin_op(kvs_etcd_home(member), &retire_type, member, deadline_ns, request, &op);
    if (op == NULL) {
        return;
    }
    char text[3 * KVS_ETCD_NAME_MAX + 1];
    if (n >= LINEAGES_MAX ||
        (name != NULL && strnlen(name, KVS_ETCD_NAME_MAX + 1) > KVS_ETCD_NAME_MAX)) {
        refuse(op, KVB_ERR_INVALID);
        return;
    }
    if (name != NULL) {
        kvs_etcd_encode(text, sizeof text, name);
    }
    op->lineages = calloc((size_t)n + 1, sizeof *op->lineages);
    op->text = name == NULL ? NULL : strdup(text);
    if (op->lineages == NULL || (name != NULL && op->text == NULL)) {
        refuse(op, KVB_ERR_NO_MEMORY);
        return;
    }
    memcpy(op->lineages, lineages, n * sizeof *lineages);
    op->nlineages = n;
    kvs_op_queue(&member->queue, op);
}

void kvs_retire_abandon(struct member *member, struct kvb_lineage lineage)
{
    struct etcd *etcd = kvs_etcd_home(member);
    uint32_t waiting = 0;
    struct op *batch = NULL;
    kvb_list_each(&etcd->beside, link)
    {
        struct op *op = kvb_container_of(link, struct op, link);
        bool quiet = op->type == &quiet_type;
        waiting += quiet && !op->started;
        /* One that was sent may have been carried out as it was then. */
        bool open = quiet && op->lease == 0;
        if (open && op->nlineages < QUIET_BATCH && strcmp(op->path, member->path) == 0) {
            batch = op;
        }
    }
    if (batch == NULL && waiting < QUIET_MAX &&
        (batch = kvs_op_create(etcd, &quiet_type, NULL, NULL)) != NULL) {
        batch->lineages = calloc(QUIET_BATCH, sizeof *batch->lineages);
        if (batch->lineages == NULL) {
            kvs_op_free(batch);
            return;
        }
        batch->quiet = true;
        memcpy(batch->path, member->path, sizeof batch->path);
        kvb_id_format(kvb_id_draw(etcd->sched->random), batch->id);
        kvs_op_later(&etcd->beside, batch, QUIET_MS);
    }
    if (batch != NULL) { /* else its space is reclaimed by eviction */
        batch->lineages[batch->nlineages++] = lineage;
    }
}

/* ---- a tenant's reset ---- */

static const char *epoch_key(const struct op *op, char out[KVS_ETCD_KEY_MAX])
{
    char tenant[KVS_ETCD_PATH_MAX];
    size_t len = strlen(op->path);
    memcpy(tenant, op->path, len);
    tenant[len - 1] = '\0'; /* without its '/' */
    return kvs_etcd_key(op->etcd, KVS_KEY_EPOCH, tenant, NULL, out);
}

static void add_all(const struct kvs_mirror *mirror, const char *path, struct kvb_lineage *all,
                    uint32_t *n)
{
    for (uint32_t place = kvs_mirror_place(mirror, KVS_KEY_NAME, path);; place++) {
        const struct kvs_entry *entry = kvs_mirror_at(mirror, KVS_KEY_NAME, place, path);
        if (entry == NULL) {
            break;
        }
        *n += kvs_etcd_parse_lineage(entry->value, &all[*n]);
    }
    for (uint32_t place = kvs_mirror_place(mirror, KVS_KEY_STEP, path);; place++) {
        const struct kvs_entry *entry = kvs_mirror_at(mirror, KVS_KEY_STEP, place, path);
        if (entry == NULL) {
            break;
        }
        *n += kvs_member_step_lineages(entry, &all[*n]);
    }
}

static kvb_status_t build_reset(struct op *op, struct kvs_txn *txn)
{
    struct etcd *etcd = op->etcd;
    char key[KVS_ETCD_KEY_MAX];
    char open[KVS_ETCD_ID_MAX + 8];
    uint32_t n = 0;
    size_t room = etcd->mirror.kinds[KVS_KEY_NAME].n + 2ul * etcd->mirror.kinds[KVS_KEY_STEP].n + 1;
    struct kvb_lineage *all = calloc(room, sizeof *all);
    if (all == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    add_all(&etcd->mirror, op->path, all, &n);
    guard_names(op, txn);
    kvs_etcd_key(etcd, KVS_KEY_NAME, op->path, NULL, key);
    (void)kvs_txn_then(txn, kvs_wire_delete_prefix(key));
    kvs_etcd_key(etcd, KVS_KEY_STEP, op->path, NULL, key);
    (void)kvs_txn_then(txn, kvs_wire_delete_prefix(key));
    snprintf(open, sizeof open, "open %s", op->id);
    (void)kvs_txn_then(txn, kvs_wire_put(epoch_key(op, key), open, 0));
    kvb_status_t status = put_record(op, txn, op->path, op->id, all, n, true, false, true);
    free(all);
    list_members(op, txn);
    return status;
}

static kvb_status_t answer_reset(struct op *op, const struct kvs_txn_answer *answer)
{
    op->fenced = false;
    kvb_status_t status = answer_retire(op, answer);
    if (op->retired_rev != 0) {
        op->number = op->retired_rev << RETIREMENT_SHIFT;
        if (op->request != NULL) {
            op->request->epoch = op->number;
        }
        KVB_LOG(INFO, "tenant reset", KVB_STR("tenant", op->path), KVB_U64("epoch", op->number),
                KVB_U64("members", op->nwaiting));
    }
    return status;
}

static bool end_reset(struct op *op, kvb_status_t status)
{
    if (status != KVB_OK) {
        return false;
    }
    if (!end_retire(op, status)) {
        finish(op, KVB_OK);
    }
    return true;
}

static const struct op_type reset_type = {
    .name = "tenant reset", .build = build_reset, .answer = answer_reset, .end = end_reset};

static kvb_status_t build_close(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char text[KVS_ETCD_ID_MAX + 8];
    snprintf(text, sizeof text, "open %s", op->id);
    kvs_txn_when(txn, kvs_wire_if_value(epoch_key(op, key), text));
    (void)kvs_txn_otherwise(txn, kvs_wire_range(key));
    snprintf(text, sizeof text, "%" PRIu64, op->number);
    (void)kvs_txn_then(txn, kvs_wire_put(key, text, 0));
    return build_clean(op, txn);
}

static kvb_status_t answer_close(struct op *op, const struct kvs_txn_answer *answer)
{
    bool closed = answer->succeeded;
    if (!closed) { /* by us, before; or by a later reset */
        struct kvs_found found;
        uint64_t epoch;
        kvb_status_t status = kvs_op_one_kv(answer, 0, &found);
        closed = status == KVB_OK && found.n == 1 && kvs_etcd_parse_u64(found.value, &epoch) &&
                 epoch == op->number;
        free(found.value);
        if (status != KVB_OK) {
            return status;
        }
    }
    if (closed && op->member != NULL && op->number > op->member->epoch) {
        op->member->epoch = op->number;
    }
    return KVB_OK;
}

/* How the reset went does not hang on the epoch: one that is not closed lets nobody take a step. */
static bool end_close(struct op *op, kvb_status_t status)
{
    (void)status;
    if (op->request != NULL) {
        op->request->impl.state = NULL;
        kvs_request_answer(op->etcd->sched, op->request, op->outcome);
    }
    kvs_op_free(op);
    return true;
}

static const struct op_type close_type = {
    .name = "epoch", .build = build_close, .answer = answer_close, .end = end_close};

void kvs_retire_tenant(struct etcd *etcd, const char *tenant, struct member *asker,
                       uint64_t deadline_ns, struct kvs_coord_request *request)
{
    struct op *op;
    uint64_t now_ns = kvb_now_ns(etcd->sched->clock);
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    uint64_t margin_ns = CLOSE_MARGIN_MS * KVB_NS_PER_MS;
    margin_ns = deadline_ns == KVB_NEVER ? 0 : margin_ns < left_ns / 4 ? margin_ns : left_ns / 4;
    begin_op(etcd, &reset_type, asker, deadline_ns - margin_ns, request, &op);
    if (op == NULL) {
        return;
    }
    if (!kvs_etcd_sound_tenant(tenant)) {
        refuse(op, KVB_ERR_INVALID);
        return;
    }
    kvs_etcd_encode(op->path, sizeof op->path - 1, tenant);
    strcat(op->path, "/");
    kvs_op_beside(&etcd->beside, op);
}

/* All have left, or the time is over. */
static void finish(struct op *op, kvb_status_t status)
{
    struct etcd *etcd = op->etcd;
    kvb_sched_timer_clear(etcd->sched, &op->again);
    kvb_list_remove(&op->link);
    if (op->type == &reset_type) {
        op->outcome = status;
        op->type = &close_type;
        kvs_op_restart(&etcd->beside, op);
        return;
    }
    clean(etcd, op->id);
    if (op->request != NULL) {
        op->request->impl.state = NULL;
        kvs_request_answer(etcd->sched, op->request, status);
    }
    kvs_op_free(op);
}

/* ---- names that nobody uses ---- */

static kvb_status_t build_forget(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    kvs_txn_when(txn, kvs_wire_if_modified(
                          kvs_etcd_key(op->etcd, KVS_KEY_NAME, op->text, NULL, key), op->number));
    (void)kvs_txn_then(txn, kvs_wire_delete(key));
    /* nobody has joined any name of the space since we saw that nobody is in this one */
    kvs_etcd_key(op->etcd, KVS_KEY_IN, op->path, NULL, key);
    kvs_txn_when(txn, kvs_wire_if_prefix_older(key, op->retired_rev));
    return put_record(op, txn, op->path, op->id, &op->lineage, 1, false, false, false);
}

static const struct op_type forget_type = {
    .name = "forget", .build = build_forget, .answer = answer_clean};

void kvs_retire_forget(struct etcd *etcd, const struct kvs_entry *name)
{
    const char *end = strrchr(name->key, '/');
    struct kvb_lineage lineage;
    if (end == NULL || (size_t)(end - name->key) >= KVS_ETCD_PATH_MAX - 1 ||
        !kvs_etcd_parse_lineage(name->value, &lineage)) {
        return; /* not one of ours */
    }
    struct op *op = kvs_op_create(etcd, &forget_type, NULL, NULL);
    if (op == NULL || (op->text = strdup(name->key)) == NULL) {
        if (op != NULL) {
            kvs_op_free(op);
        }
        return; /* the next sweep */
    }
    memcpy(op->path, name->key, (size_t)(end - name->key) + 1);
    op->number = name->mod_rev;
    op->lineage = lineage;
    op->retired_rev = etcd->mirror.rev;
    kvb_id_format(kvb_id_draw(etcd->sched->random), op->id);
    KVB_LOG(DEBUG, "a name without members is forgotten", KVB_STR("name", name->key));
    kvs_op_beside(&etcd->beside, op);
}

uint64_t kvs_retire_note_members(struct etcd *etcd)
{
    uint64_t now_ns = kvb_now_ns(etcd->sched->clock);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_IN].n; i++) {
        struct kvs_entry *name = kvs_etcd_name_of(etcd, etcd->mirror.kinds[KVS_KEY_IN].entries[i]);
        if (name != NULL) {
            name->since_ns = now_ns;
        }
    }
    return now_ns;
}

void kvs_retire_sweep(struct etcd *etcd)
{
    uint64_t now_ns = kvs_retire_note_members(etcd);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_NAME].n; i++) {
        struct kvs_entry *name = etcd->mirror.kinds[KVS_KEY_NAME].entries[i];
        if (now_ns - name->since_ns > etcd->grace_ms * KVB_NS_PER_MS) {
            name->since_ns = now_ns; /* asked once in a grace */
            kvs_retire_forget(etcd, name);
        }
    }
    kvb_list_each(&etcd->watchers, link)
    {
        struct watcher *watcher = kvb_container_of(link, struct watcher, link);
        if (watcher->behind) {
            kvs_retire_replay(etcd, watcher);
        }
    }
    kvb_list_each(&etcd->members, link)
    {
        struct member *member = kvb_container_of(link, struct member, link);
        if (member->behind) {
            kvs_retire_catch_up(member);
        }
    }
}

/* ---- ends ---- */

void kvs_retire_disown(void *state)
{
    struct op *op = state;
    op->request = NULL;
}

bool kvs_retire_goes_on(const struct op *op)
{
    return op->type == &retire_type;
}

void kvs_retire_close(struct member *member)
{
    struct etcd *etcd = kvs_etcd_home(member);
    for (struct kvb_list *link; (link = kvb_list_first(&member->tells)) != NULL;) {
        free_tell(kvb_container_of(link, struct tell, link));
    }
    struct kvb_list *const lists[] = {&etcd->waiting, &etcd->beside};
    for (int i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            struct op *op = kvb_container_of(link, struct op, link);
            if (op->member == member && op != member->record) {
                op->member = NULL;
            }
        }
    }
}
