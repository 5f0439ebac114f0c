/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members: what an instance asks, one transaction after the other. Its record at etcd comes before
 * all of them, under the lease of this process; a transaction that names a lease which has ended is
 * refused whole, so nothing is ever bound for a member that etcd has given up.
 */
#include "etcd_impl.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNCOUNT_MS 20   /* mostly the next transaction takes it along */
#define PUBLISH_MS 200  /* at most one record in this time */
#define TEXT_MAX   1024 /* bytes of what is published */
#define NAMES_MAX  4096 /* beyond this the oldest without members is forgotten early */

static struct member *member_of(struct kvs_member *base)
{
    return kvb_container_of(base, struct member, base);
}

static const char *own_key(const struct member *member, enum kvs_key_kind kind,
                           char out[KVS_ETCD_KEY_MAX])
{
    return kvs_etcd_key(kvs_etcd_of(member->base.coordinator), kind, member->path, member->id, out);
}

static const char *name_key(const struct op *op, char out[KVS_ETCD_KEY_MAX])
{
    char name[3 * KVS_ETCD_NAME_MAX + 1];
    kvs_etcd_encode(name, sizeof name, op->text);
    return kvs_etcd_key(op->etcd, KVS_KEY_NAME, op->path, name, out);
}

/* ---- its record ---- */

static char *record_text(const struct member *member)
{
    const struct etcd *etcd = kvs_etcd_of(member->base.coordinator);
    json_t *record = json_pack("{s:s, s:s, s:s}", "instance", member->instance, "process",
                               etcd->process, "life", etcd->id);
    bool ok = record != NULL;
    if (ok && member->text != NULL) {
        ok = json_object_set_new(record, "text", json_string(member->text)) == 0;
    }
    char *text = ok ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    return text;
}

static kvb_status_t build_record(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    struct member *member = op->member;
    char *text = record_text(member);
    if (text == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    member->text_new = false;
    own_key(member, KVS_KEY_MEMBER, key);
    kvs_txn_then(txn, kvs_wire_put(key, text, op->etcd->lease));
    op->place = kvs_txn_then(txn, kvs_wire_range(key));
    free(text);
    return KVB_OK;
}

static kvb_status_t answer_record(struct op *op, const struct kvs_txn_answer *answer)
{
    struct kvs_found found;
    kvb_status_t status = kvs_op_one_kv(answer, op->place, &found);
    free(found.value);
    if (status != KVB_OK || found.n != 1) {
        return status == KVB_OK ? KVB_ERR_PROTOCOL : status;
    }
    struct member *member = op->member;
    member->lease = op->lease;
    member->token = found.create_rev;
    if (member->told_rev == 0) {
        member->told_rev = found.create_rev; /* what was retired before is not for it */
    }
    return KVB_OK;
}

static bool end_record(struct op *op, kvb_status_t status)
{
    struct member *member = op->member;
    member->record = NULL;
    if (member->closed) {
        kvs_op_run_queue(op->etcd, member, &member->queue);
        return false;
    }
    if (status == KVB_OK) {
        kvs_retire_catch_up(member);
    }
    if (status != KVB_OK) {
        /* If etcd was reached again meanwhile, nothing else makes it known: what waits for that
         * would wait for ever. */
        member->text_new = true;
        if (!kvb_timer_armed(&member->text_timer)) {
            kvb_sched_timer_set(op->etcd->sched, &member->text_timer,
                                kvb_deadline_in_ms(op->etcd->sched->clock, PUBLISH_MS));
        }
    }
    if (status == KVB_OK || status == KVB_ERR_NO_MEMORY) {
        kvs_op_run_beside(&member->lefts);
        if (status == KVB_OK || member->lease == op->etcd->lease) { /* else the timer's turn */
            kvs_op_run_queue(op->etcd, member, &member->queue);
        }
        if (member->text_new && !kvb_timer_armed(&member->text_timer)) {
            kvb_sched_timer_set(op->etcd->sched, &member->text_timer,
                                kvb_deadline_in_ms(op->etcd->sched->clock, PUBLISH_MS));
        }
    }
    return false;
}

static const struct op_type record_type = {
    .name = "member record", .build = build_record, .answer = answer_record, .end = end_record};

void kvs_member_register(struct member *member)
{
    struct etcd *etcd = kvs_etcd_home(member);
    if (member->record != NULL || !etcd->up || member->closed) {
        return;
    }
    struct op *op = kvs_op_create(etcd, &record_type, member, NULL);
    if (op == NULL) {
        kvb_sched_timer_set(etcd->sched, &member->text_timer,
                            kvb_deadline_in_ms(etcd->sched->clock, PUBLISH_MS));
        return;
    }
    member->record = op;
    kvs_op_beside(&etcd->beside, op);
}

static void on_text_timer(struct kvb_timer *timer)
{
    struct member *member = kvb_container_of(timer, struct member, text_timer);
    if (member->text_new || member->lease != kvs_etcd_home(member)->lease) {
        kvs_member_register(member);
    }
}

kvb_status_t kvs_member_etcd_publish(struct kvs_member *base, const char *text)
{
    struct member *member = member_of(base);
    struct etcd *etcd = kvs_etcd_home(member);
    char *copy = strnlen(text, TEXT_MAX + 1) > TEXT_MAX ? NULL : strdup(text);
    if (copy == NULL) {
        return strnlen(text, TEXT_MAX + 1) > TEXT_MAX ? KVB_ERR_TOO_LARGE : KVB_ERR_NO_MEMORY;
    }
    free(member->text);
    member->text = copy;
    member->text_new = true;
    if (!kvb_timer_armed(&member->text_timer)) {
        kvb_sched_timer_set(etcd->sched, &member->text_timer,
                            kvb_deadline_in_ms(etcd->sched->clock, PUBLISH_MS));
    }
    return KVB_OK;
}

/* ---- names ---- */

/* In the txn of another op: it is counted in this name from then on. */
static void count(struct op *op, struct kvs_txn *txn, const char *name)
{
    char key[KVS_ETCD_KEY_MAX];
    (void)kvs_txn_then(txn,
                       kvs_wire_put(own_key(op->member, KVS_KEY_IN, key), name, op->etcd->lease));
}

static void leave_soon(struct member *member)
{
    struct etcd *etcd = kvs_etcd_home(member);
    member->uncount = true;
    kvb_sched_timer_set(etcd->sched, &member->uncount_timer,
                        kvb_deadline_in_ms(etcd->sched->clock, UNCOUNT_MS));
}

/* It has left nothing any more that etcd does not know of. */
static void uncounted(struct member *member)
{
    member->uncount = false;
    kvb_sched_timer_clear(kvs_etcd_home(member)->sched, &member->uncount_timer);
}

static void counted(struct op *op)
{
    struct member *member = op->member;
    uncounted(member);
    snprintf(member->in, sizeof member->in, "%s", op->text);
    if (op->left && !member->closed) {
        leave_soon(member);
    }
}

/* In the txn of another op: what was left is not counted any more. */
void kvs_member_uncount(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    if (op->member != NULL && op->member->uncount) {
        (void)kvs_txn_then(txn, kvs_wire_delete(own_key(op->member, KVS_KEY_IN, key)));
    }
}

void kvs_member_uncounted(struct member *member)
{
    if (member != NULL && member->uncount) {
        member->in[0] = '\0';
        uncounted(member);
    }
}

static void forget_one(struct etcd *etcd)
{
    const struct kvs_entry *oldest = NULL;
    uint64_t now_ns = kvs_retire_note_members(etcd);
    for (uint32_t i = 0; i < etcd->mirror.kinds[KVS_KEY_NAME].n; i++) {
        const struct kvs_entry *entry = etcd->mirror.kinds[KVS_KEY_NAME].entries[i];
        if (entry->since_ns < now_ns && (oldest == NULL || entry->since_ns < oldest->since_ns)) {
            oldest = entry;
        }
    }
    if (oldest != NULL) {
        kvs_retire_forget(etcd, oldest);
    }
}

/* Not below what is watched: only transactions look at it. */
static const char *drawn_key(const struct op *op, char out[KVS_ETCD_KEY_MAX])
{
    char hex[KVS_ETCD_ID_MAX];
    kvb_id_format(op->lineage.id, hex);
    snprintf(out, KVS_ETCD_KEY_MAX, "%sdrawn/%s", op->etcd->prefix, hex);
    return out;
}

/* Joins what the name stands for; or makes it stand for a fresh lineage. A lineage is bound once:
 * the same request that comes a second time, when what it bound has been retired since, must not
 * bring it back. So each that was bound leaves a mark, as long as retirements are kept. */
static kvb_status_t build_resolve(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char hex[KVS_ETCD_ID_MAX];
    name_key(op, key);
    if (!op->creates) {
        kvs_txn_when(txn, kvs_wire_if_present(key));
        op->place = kvs_txn_then(txn, kvs_wire_range(key));
        count(op, txn, op->text);
        return KVB_OK;
    }
    op->lineage.id = kvb_id_draw(op->etcd->sched->random);
    kvb_id_format(op->lineage.id, hex);
    kvs_txn_when(txn, kvs_wire_if_absent(key));
    (void)kvs_txn_then(txn, kvs_wire_put(key, hex, 0));
    drawn_key(op, key);
    kvs_txn_when(txn, kvs_wire_if_absent(key));
    (void)kvs_txn_then(txn, kvs_wire_put(key, "", op->etcd->retired_lease));
    count(op, txn, op->text);
    return KVB_OK;
}

static const struct kvs_entry *mirrored_name(const struct op *op)
{
    char name[3 * KVS_ETCD_NAME_MAX + 1];
    char key[KVS_ETCD_KEY_MAX];
    kvs_etcd_encode(name, sizeof name, op->text);
    snprintf(key, sizeof key, "%s%s", op->path, name);
    return kvs_mirror_find(&op->etcd->mirror, KVS_KEY_NAME, key);
}

/* The mirror may be ahead of this answer: has the name been unbound since? Then the members have
 * been told, and the answer must not come after that. */
static bool outdated(const struct op *op, uint64_t rev, struct kvb_lineage lineage)
{
    struct kvb_lineage bound;
    if (op->etcd->mirror.rev < rev) {
        return false;
    }
    const struct kvs_entry *entry = mirrored_name(op);
    return entry == NULL || !kvs_etcd_parse_lineage(entry->value, &bound) ||
           !kvb_lineage_equal(bound, lineage);
}

static kvb_status_t answer_resolve(struct op *op, const struct kvs_txn_answer *answer)
{
    struct kvb_lineage lineage = op->lineage;
    bool created = op->creates;
    if (!answer->succeeded) {
        op->creates = !created; /* it is there now, or is not any more */
        return KVB_ERR_AGAIN;
    }
    if (!created) {
        struct kvs_found found;
        kvb_status_t status = kvs_op_one_kv(answer, op->place, &found);
        if (status == KVB_OK && (found.n != 1 || !kvs_etcd_parse_lineage(found.value, &lineage))) {
            status = KVB_ERR_PROTOCOL;
        }
        free(found.value);
        if (status != KVB_OK) {
            return status;
        }
    }
    if (outdated(op, answer->rev, lineage)) {
        op->creates = false;
        return KVB_ERR_AGAIN;
    }
    counted(op);
    if (op->request != NULL) {
        op->request->lineage = lineage;
    }
    if (created && op->etcd->mirror.kinds[KVS_KEY_NAME].n >= NAMES_MAX) {
        forget_one(op->etcd);
    }
    return KVB_OK;
}

static const struct op_type resolve_type = {
    .name = "resolve", .leased = true, .build = build_resolve, .answer = answer_resolve};

static kvb_status_t build_check(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char hex[KVS_ETCD_ID_MAX];
    kvb_id_format(op->lineage.id, hex);
    kvs_txn_when(txn, kvs_wire_if_value(name_key(op, key), hex));
    count(op, txn, op->text);
    return KVB_OK;
}

static kvb_status_t answer_check(struct op *op, const struct kvs_txn_answer *answer)
{
    bool bound = answer->succeeded && !outdated(op, answer->rev, op->lineage);
    if (bound) {
        counted(op);
    }
    if (op->request != NULL) {
        op->request->bound = bound;
    }
    return KVB_OK;
}

static const struct op_type check_type = {
    .name = "check", .leased = true, .build = build_check, .answer = answer_check};

static kvb_status_t build_uncount(struct op *op, struct kvs_txn *txn)
{
    kvs_member_uncount(op, txn);
    return op->member->uncount ? KVB_OK : KVB_ERR_CANCELED;
}

static kvb_status_t answer_uncount(struct op *op, const struct kvs_txn_answer *answer)
{
    (void)answer;
    kvs_member_uncounted(op->member);
    return KVB_OK;
}

static const struct op_type uncount_type = {
    .name = "leave", .build = build_uncount, .answer = answer_uncount};

static void on_uncount(struct kvb_timer *timer)
{
    struct member *member = kvb_container_of(timer, struct member, uncount_timer);
    struct etcd *etcd = kvs_etcd_home(member);
    if (!member->uncount || !etcd->up) {
        return; /* when it is back */
    }
    struct op *op = kvs_op_create(etcd, &uncount_type, member, NULL);
    if (op == NULL) {
        kvb_sched_timer_set(etcd->sched, timer, kvb_deadline_in_ms(etcd->sched->clock, UNCOUNT_MS));
        return;
    }
    kvs_op_queue(&member->queue, op);
}

/* ---- what an instance asks ---- */

/* NULL: answered already. */
static struct op *ask(struct member *member, const struct op_type *type, const char *text,
                      struct kvs_coord_request *request)
{
    struct etcd *etcd = kvs_etcd_home(member);
    kvs_request_begin(&member->requests, &etcd->base, &member->base, request);
    if (!etcd->up) {
        kvs_request_answer(etcd->sched, request, KVB_ERR_UNAVAILABLE);
        return NULL;
    }
    struct op *op = kvs_op_create(etcd, type, member, request);
    if (op != NULL && text != NULL && (op->text = strdup(text)) == NULL) {
        request->impl.state = NULL;
        kvs_op_free(op);
        op = NULL;
    }
    if (op == NULL) {
        kvs_request_answer(etcd->sched, request, KVB_ERR_NO_MEMORY);
    }
    return op;
}

static bool sound_name(const char *text)
{
    size_t len = strnlen(text, KVS_ETCD_NAME_MAX + 1);
    return len > 0 && len <= KVS_ETCD_NAME_MAX;
}

void kvs_member_etcd_resolve(struct kvs_member *base, const char *name,
                             struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct etcd *etcd = kvs_etcd_home(member);
    if (!sound_name(name)) {
        kvs_request_begin(&member->requests, &etcd->base, base, request);
        kvs_request_answer(etcd->sched, request, KVB_ERR_INVALID);
        return;
    }
    struct op *op = ask(member, &resolve_type, name, request);
    if (op != NULL) {
        op->creates = mirrored_name(op) == NULL;
        kvs_op_queue(&member->queue, op);
    }
}

void kvs_member_etcd_check(struct kvs_member *base, const char *name, struct kvb_lineage lineage,
                           struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct etcd *etcd = kvs_etcd_home(member);
    if (!sound_name(name)) {
        kvs_request_begin(&member->requests, &etcd->base, base, request);
        request->bound = false;
        kvs_request_answer(etcd->sched, request, KVB_OK);
        return;
    }
    struct op *op = ask(member, &check_type, name, request);
    if (op != NULL) {
        op->lineage = lineage;
        kvs_op_queue(&member->queue, op);
    }
}

void kvs_member_etcd_leave(struct kvs_member *base, const char *name)
{
    struct member *member = member_of(base);
    kvb_list_each(&member->queue, link)
    {
        struct op *op = kvb_container_of(link, struct op, link);
        if ((op->type == &resolve_type || op->type == &check_type) && strcmp(op->text, name) == 0) {
            op->left = true; /* as soon as it is counted */
        }
    }
    if (strcmp(member->in, name) == 0) {
        leave_soon(member);
    }
}

/* ---- steps (DESIGN.md section 4, rule 7) ---- */

struct step_record {
    uint64_t epoch, step;
    struct kvb_lineage lineage, previous;
};

static bool parse_step(const char *text, struct step_record *record_p)
{
    json_t *record = json_loads(text, 0, NULL);
    const char *lineage = json_string_value(json_object_get(record, "lineage"));
    const char *previous = json_string_value(json_object_get(record, "previous"));
    struct step_record parsed = {0};
    bool ok = kvs_wire_u64(record, "epoch", &parsed.epoch) &&
              kvs_wire_u64(record, "step", &parsed.step) && lineage != NULL && previous != NULL &&
              kvs_etcd_parse_lineage(lineage, &parsed.lineage) &&
              kvs_etcd_parse_lineage(previous, &parsed.previous);
    json_decref(record);
    if (ok) {
        *record_p = parsed;
    }
    return ok;
}

/* malloc'd; NULL: no memory. */
static char *step_text(const struct step_record *record)
{
    char text[256];
    char lineage[KVS_ETCD_ID_MAX];
    char previous[KVS_ETCD_ID_MAX];
    kvb_id_format(record->lineage.id, lineage);
    kvb_id_format(record->previous.id, previous);
    snprintf(text, sizeof text,
             "{\"epoch\":\"%" PRIu64 "\",\"step\":\"%" PRIu64
             "\",\"lineage\":\"%s\",\"previous\":\"%s\"}",
             record->epoch, record->step, lineage, previous);
    return strdup(text);
}

/* The step of a space as last heard; none: zeroes. */
static void step_of(const struct op *op, struct step_record *record_p, uint64_t *mod_rev_p)
{
    const struct kvs_entry *entry = kvs_mirror_find(&op->etcd->mirror, KVS_KEY_STEP, op->path);
    *record_p = (struct step_record){0};
    *mod_rev_p = entry == NULL ? 0 : entry->mod_rev;
    if (entry != NULL && !parse_step(entry->value, record_p)) {
        KVB_LOG_LIMITED(WARN, "a step at etcd is broken", KVB_STR("key", entry->key));
    }
}

bool kvs_member_step_redrawn(const struct op *op, struct kvb_lineage lineage, char **text_p,
                             uint64_t *mod_rev_p)
{
    struct step_record record;
    step_of(op, &record, mod_rev_p);
    *text_p = NULL;
    if (*mod_rev_p == 0 || !kvb_lineage_equal(record.lineage, lineage)) {
        return false;
    }
    /* later callers of this step get another: the same weights, but nothing cleared */
    record.lineage.id = kvb_id_draw(op->etcd->sched->random);
    *text_p = step_text(&record);
    return true;
}

uint32_t kvs_member_step_lineages(const struct kvs_entry *entry, struct kvb_lineage out[2])
{
    struct step_record record;
    uint32_t n = 0;
    if (parse_step(entry->value, &record)) {
        out[n] = record.lineage;
        n += !kvb_id_none(record.lineage.id);
        out[n] = record.previous;
        n += !kvb_id_none(record.previous.id);
    }
    return n;
}

bool kvs_member_step_stands(const struct kvs_entry *entry, struct kvb_lineage lineage)
{
    struct step_record record;
    return parse_step(entry->value, &record) && (kvb_lineage_equal(record.lineage, lineage) ||
                                                 kvb_lineage_equal(record.previous, lineage));
}

static kvb_status_t build_step(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    char epoch[24];
    struct step_record record;
    uint64_t mod_rev;
    if (op->number != op->member->epoch) {
        return kvs_retire_is_leaving(op->member, op->number) ? KVB_ERR_AGAIN : KVB_ERR_FENCED;
    }
    step_of(op, &record, &mod_rev);
    if (record.epoch != op->number) {
        record = (struct step_record){.epoch = op->number};
    }
    snprintf(epoch, sizeof epoch, "%" PRIu64, op->number);
    kvs_txn_when(txn, kvs_wire_if_value(kvs_etcd_key(op->etcd, KVS_KEY_EPOCH,
                                                     op->member->space.tenant, NULL, key),
                                        epoch));
    (void)kvs_txn_otherwise(txn, kvs_wire_range(key));
    kvs_etcd_key(op->etcd, KVS_KEY_STEP, op->path, NULL, key);
    kvs_txn_when(txn, kvs_wire_if_modified(key, mod_rev));
    op->lineage = record.lineage;
    if (op->step == record.step + 1) {
        /* in lockstep, all have left the one before the last */
        kvs_retire_quietly(op, txn, op->path, record.previous);
        record.previous = record.lineage;
        record.lineage.id = kvb_id_draw(op->etcd->sched->random);
        record.step = op->step;
        op->lineage = record.lineage;
        char *text = step_text(&record);
        if (text == NULL) {
            return KVB_ERR_NO_MEMORY;
        }
        (void)kvs_txn_then(txn, kvs_wire_put(key, text, 0));
        free(text);
    }
    op->fenced = op->step == 0 || op->step != record.step; /* if nothing has changed since */
    if (!op->fenced) {
        (void)kvs_txn_then(txn, kvs_wire_delete(own_key(op->member, KVS_KEY_IN, key)));
    }
    return KVB_OK;
}

static kvb_status_t answer_step(struct op *op, const struct kvs_txn_answer *answer)
{
    if (answer->succeeded) {
        if (op->fenced) {
            return KVB_ERR_FENCED;
        }
        op->member->in[0] = '\0';
        uncounted(op->member);
        if (op->request != NULL) {
            op->request->lineage = op->lineage;
        }
        return KVB_OK;
    }
    char epoch[24];
    struct kvs_found found;
    kvb_status_t status = kvs_op_one_kv(answer, 0, &found);
    snprintf(epoch, sizeof epoch, "%" PRIu64, op->number);
    bool same_epoch = status == KVB_OK && found.n == 1 && strcmp(found.value, epoch) == 0;
    free(found.value);
    return status != KVB_OK ? status : same_epoch ? KVB_ERR_AGAIN : KVB_ERR_FENCED;
}

static const struct op_type step_type = {
    .name = "step", .leased = true, .build = build_step, .answer = answer_step};

void kvs_member_etcd_step(struct kvs_member *base, uint64_t epoch, uint64_t step,
                          struct kvs_coord_request *request)
{
    struct member *member = member_of(base);
    struct op *op = ask(member, &step_type, NULL, request);
    if (op == NULL) {
        return;
    }
    /* The watch may have told the reset's asker that we have left before the answer tells us. */
    if (epoch == 0 || (epoch != member->epoch && !kvs_retire_is_leaving(member, epoch))) {
        request->impl.state = NULL;
        kvs_op_free(op);
        kvs_request_answer(kvs_etcd_home(member)->sched, request, KVB_ERR_FENCED);
        return;
    }
    op->number = epoch;
    op->step = step;
    kvs_op_queue(&member->queue, op);
}

/* ---- retirements ---- */

void kvs_member_etcd_abandon(struct kvs_member *base, struct kvb_lineage lineage)
{
    kvs_retire_abandon(member_of(base), lineage);
}

void kvs_member_etcd_left(struct kvs_member *base, uint64_t retirement)
{
    kvs_retire_left(member_of(base), retirement);
}

void kvs_member_etcd_retire(struct kvs_member *base, const struct kvb_lineage *lineages, uint32_t n,
                            const char *name, uint64_t deadline_ns,
                            struct kvs_coord_request *request)
{
    kvs_retire_member(member_of(base), lineages, n, name, deadline_ns, request);
}

/* ---- opening and closing ---- */

static void reap(struct member *member)
{
    if (member->record != NULL || !kvb_list_empty(&member->queue)) {
        return; /* comes again when they end */
    }
    kvb_list_remove(&member->link);
    kvb_sched_unpost(&member->reach);
    free(member->text);
    free(member);
}

void kvs_member_reap(struct member *member)
{
    kvb_sched_post(kvs_etcd_home(member)->sched, &member->reach);
}

static void on_reach(struct kvb_event *event)
{
    struct member *member = kvb_container_of(event, struct member, reach);
    if (member->closed) {
        reap(member);
        return;
    }
    bool up = kvs_etcd_home(member)->up;
    if (member->lost) {
        member->lost = false;
        if (member->ops->lost != NULL) {
            member->ops->lost(member->ctx);
        }
    }
    /* it may have closed inside */
    if (!member->closed) {
        member->ops->reachable(member->ctx, up);
    }
}

bool kvs_member_tell_lost(struct member *member)
{
    if (!member->lost || member->closed) {
        return false;
    }
    /* an answer on its way to it that binds is none any more */
    kvb_list_each(&member->requests, link)
    {
        struct kvs_coord_request *request =
            kvb_container_of(link, struct kvs_coord_request, impl.link);
        if (request->impl.binds && request->impl.status == KVB_OK) {
            request->impl.status = KVB_ERR_UNAVAILABLE;
        }
    }
    kvb_sched_unpost(&member->reach);
    on_reach(&member->reach);
    return true;
}

void kvs_member_tell_reach(struct member *member)
{
    kvb_sched_unpost(&member->reach);
    kvb_sched_post(kvs_etcd_home(member)->sched, &member->reach);
}

void kvs_member_up(struct member *member)
{
    struct etcd *etcd = kvs_etcd_home(member);
    kvs_member_tell_reach(member); /* or reaps it */
    if (member->lease != etcd->lease || member->text_new) {
        kvs_member_register(member);
    }
    if (member->lease != etcd->lease && !member->closed) {
        return; /* then the rest */
    }
    kvs_op_run_queue(etcd, member, &member->queue);
    kvs_op_run_beside(&member->lefts);
    if (member->uncount) {
        leave_soon(member);
    }
}

void kvs_member_down(struct member *member, bool lost)
{
    if (lost) {
        member->lost = member->lost || member->lease != 0;
        member->lease = 0;
        member->in[0] = '\0';
        uncounted(member);
        member->epoch = 0;
    }
    kvs_op_fail_queue(&member->queue);
    if (member->closed && lost) { /* its keys go with the lease */
        kvs_op_drop_all(&member->queue);
    }
    kvs_member_tell_reach(member); /* or reaps it */
}

kvb_status_t kvs_member_etcd_open(struct kvs_coordinator *base, const char *instance,
                                  const struct kvs_space *space, const struct kvs_member_ops *ops,
                                  void *ctx, struct kvs_member **member_p)
{
    struct etcd *etcd = kvs_etcd_of(base);
    struct member *member = calloc(1, sizeof *member);
    if (member == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    member->base.coordinator = base;
    member->space = *space;
    member->ops = ops;
    member->ctx = ctx;
    snprintf(member->instance, sizeof member->instance, "%s", instance);
    kvb_id_format(kvb_id_draw(etcd->sched->random), member->id);
    kvs_etcd_encode(member->path, sizeof member->path, space->tenant);
    strcat(member->path, "/");
    size_t len = strlen(member->path);
    kvs_etcd_encode(member->path + len, sizeof member->path - len, space->layout);
    strcat(member->path, "/");
    kvb_list_init(&member->queue);
    kvb_list_init(&member->lefts);
    kvb_list_init(&member->tells);
    kvb_list_init(&member->requests);
    kvb_event_init(&member->reach, on_reach);
    kvb_timer_init(&member->uncount_timer, on_uncount);
    kvb_timer_init(&member->text_timer, on_text_timer);
    kvb_list_push_back(&etcd->members, &member->link);
    if (etcd->up) {
        kvs_member_register(member);
    } else {
        kvb_sched_post(etcd->sched, &member->reach);
    }
    *member_p = &member->base;
    return KVB_OK;
}

static kvb_status_t build_goodbye(struct op *op, struct kvs_txn *txn)
{
    char key[KVS_ETCD_KEY_MAX];
    (void)kvs_txn_then(txn, kvs_wire_delete(own_key(op->member, KVS_KEY_MEMBER, key)));
    (void)kvs_txn_then(txn, kvs_wire_delete(own_key(op->member, KVS_KEY_IN, key)));
    return KVB_OK;
}

static kvb_status_t answer_goodbye(struct op *op, const struct kvs_txn_answer *answer)
{
    (void)answer;
    op->member->lease = 0;
    return KVB_OK;
}

static const struct op_type goodbye_type = {
    .name = "goodbye", .lasting = true, .build = build_goodbye, .answer = answer_goodbye};

void kvs_member_etcd_close(struct kvs_member *base)
{
    struct member *member = member_of(base);
    struct etcd *etcd = kvs_etcd_home(member);
    member->closed = true;
    kvb_sched_unpost(&member->reach);
    kvb_sched_timer_clear(etcd->sched, &member->text_timer);
    uncounted(member);
    kvs_retire_close(member);
    kvs_op_drop_all(&member->lefts);
    kvs_request_cancel_all(&member->requests, kvs_retire_disown);
    kvb_list_each(&member->queue, link)
    {
        struct op *op = kvb_container_of(link, struct op, link);
        if (!op->started && !kvs_retire_goes_on(op)) {
            kvs_op_free(op);
        }
    }
    kvs_member_reap(member);
    if (member->record == NULL && member->lease == 0 && kvb_list_empty(&member->queue)) {
        return; /* etcd does not have it */
    }
    struct op *op = kvs_op_create(etcd, &goodbye_type, member, NULL);
    if (op == NULL) {
        KVB_LOG(WARN, "no memory to say goodbye at etcd: it is gone when this process is",
                KVB_STR("instance", member->instance));
        return;
    }
    kvs_op_queue(&member->queue, op);
}

/* ---- the rest of the contract ---- */

void kvs_member_etcd_tenant_reset(struct kvs_coordinator *base, const char *tenant,
                                  struct kvs_member *asker, uint64_t deadline_ns,
                                  struct kvs_coord_request *request)
{
    kvs_retire_tenant(kvs_etcd_of(base), tenant, asker == NULL ? NULL : member_of(asker),
                      deadline_ns, request);
}
