/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_WIRE_WIRE_H
#define STORE_WIRE_WIRE_H

#include "base/wire.h"
#include "store/client.h"
#include "store/core.h"
#include "store/share.h"

/*
 * What a store's client asks of a node over a connection, and what it is answered: the questions
 * and answers that transport/tcp carries (its `ask` and `answer`). Both sides use the table,
 * structs and functions of this header; there is no other description of them. The bytes of an
 * object are no part of them: they are the body, of the question (PUT) or of the answer (GET).
 *
 * A question is its fields, in the order of the list of fields. The status of the answer travels
 * beside it. Numbers travel: append only.
 */
#define KVS_WIRE_ITEMS_MAX   256u /* keys in one question: one step of the node */
#define KVS_WIRE_TENANTS_MAX 256u /* in one answer */
#define KVS_WIRE_TENANT_MAX  63u  /* bytes of a tenant's name, at least 1 */
#define KVS_WIRE_LAYOUT_MAX  255u

/* bit, what it holds */
#define KVS_WIRE_FIELDS(X)                                                                         \
    X(SPACE, 0) /* tenant, layout, lineage */                                                      \
    X(HOLD, 1)  /* instance, request */                                                            \
    X(FORCE, 2) /* bool */                                                                         \
    X(PIN, 3)   /* enum kvs_pin */                                                                 \
    X(LEN, 4)   /* bytes asked for: 1 to KVS_CORE_VALUE_MAX */                                     \
    X(KEY, 5)   /* one key */                                                                      \
    X(KEYS, 6)  /* 1 to KVS_WIRE_ITEMS_MAX keys */                                                 \
    X(ALL, 7)   /* bool: everything that the hold's instance holds */                              \
    X(FROM, 8)  /* number of the first tenant wanted */                                            \
    X(PLACE, 9) /* shard, bucket, object; and how many, 1 to KVS_LIST_MAX */
enum {
#define X(name, bit) KVS_FIELD_##name = 1 << (bit),
    KVS_WIRE_FIELDS(X)
#undef X
};

/* What an answer holds: nothing; a status and length for each key, in order; the bytes stored, if
 * it was found; struct kvs_wire_status; struct kvs_wire_tenants; of a struct kvs_list what is
 * answered. */
enum kvs_wire_answer {
    KVS_ANSWER_EMPTY,
    KVS_ANSWER_ITEMS,
    KVS_ANSWER_LEN,
    KVS_ANSWER_STATUS,
    KVS_ANSWER_TENANTS,
    KVS_ANSWER_LIST,
};

/* name, type, label, fields, has a body, answer */
#define KVS_QUESTIONS(X)                                                                           \
    X(EXISTS, 1, "exists", KVS_FIELD_SPACE | KVS_FIELD_HOLD | KVS_FIELD_KEYS, false, ITEMS)        \
    X(GET, 2, "get", KVS_FIELD_SPACE | KVS_FIELD_HOLD | KVS_FIELD_LEN | KVS_FIELD_KEY, false, LEN) \
    X(PUT, 3, "put", KVS_FIELD_SPACE | KVS_FIELD_PIN | KVS_FIELD_KEY, true, EMPTY)                 \
    X(REMOVE, 4, "remove", KVS_FIELD_SPACE | KVS_FIELD_FORCE | KVS_FIELD_KEYS, false, ITEMS)       \
    X(PIN, 5, "pin", KVS_FIELD_SPACE | KVS_FIELD_PIN | KVS_FIELD_KEYS, false, ITEMS)               \
    X(DISCARD, 6, "discard", KVS_FIELD_HOLD | KVS_FIELD_ALL, false, EMPTY)                         \
    X(STATUS, 7, "status", 0, false, STATUS)                                                       \
    X(TENANTS, 8, "tenants", KVS_FIELD_FROM, false, TENANTS)                                       \
    X(SCRUB, 9, "scrub", KVS_FIELD_SPACE | KVS_FIELD_KEY, false, EMPTY)                            \
    /* of a space: no layout, no lineage: of all */                                                \
    X(LIST, 10, "list", KVS_FIELD_SPACE | KVS_FIELD_PLACE, false, LIST)

enum kvs_question {
#define X(name, type, label, fields, body, answer) KVS_ASK_##name = (type),
    KVS_QUESTIONS(X)
#undef X
};
struct kvs_question_info {
    uint16_t type;
    const char *label;
    unsigned fields;
    bool body; /* of the question */
    enum kvs_wire_answer answer;
};
/* NULL for a number that is not in the table. */
const struct kvs_question_info *kvs_question_info(uint16_t type);

/* ---- questions ---- */

/* Of these the fields that the question has. Spans borrow: from the caller when packed, from the
 * question's bytes when unpacked. */
struct kvs_ask {
    struct kvs_space_spans {
        struct kvb_span tenant; /* text without NUL */
        struct kvb_span layout;
        struct kvb_span packed; /* unpacked only: both, as they travelled; one for each space */
    } space;
    struct kvb_lineage lineage;
    struct kvs_hold hold;
    bool force;
    enum kvs_pin pin;
    uint64_t len;
    bool all_of_instance;
    uint32_t from;
    struct kvs_list_place place;
    uint32_t max;
    uint32_t nkeys; /* KEY: 1 */
    struct kvs_core_key keys[KVS_WIRE_ITEMS_MAX];
};

/* The writer is appended to. */
void kvs_ask_pack(struct kvb_writer *out, enum kvs_question type, const struct kvs_ask *ask);
/* PROTOCOL: a field is out of its limits, bytes are missing or left over; ask is undefined then. */
KVB_MUST_USE kvb_status_t kvs_ask_unpack(struct kvb_span in, enum kvs_question type,
                                         struct kvs_ask *ask);

/* ---- answers ---- */

struct kvs_wire_item {
    kvb_status_t status;
    uint64_t len;
};
/* As many as were asked, else PROTOCOL. */
void kvs_items_pack(struct kvb_writer *out, const struct kvs_wire_item *items, uint32_t n);
KVB_MUST_USE kvb_status_t kvs_items_unpack(struct kvb_span in, struct kvs_wire_item *items,
                                           uint32_t n);
#define KVS_ITEM_WIRE 12u /* bytes of each */

void kvs_len_pack(struct kvb_writer *out, uint64_t len);
KVB_MUST_USE kvb_status_t kvs_len_unpack(struct kvb_span in, uint64_t *len_p);
#define KVS_LEN_WIRE 8u

struct kvs_wire_status {
    bool draining;
    uint64_t capacity_bytes, used_bytes, objects;
    uint64_t puts, put_bytes, gets, get_bytes;
};
void kvs_status_pack(struct kvb_writer *out, const struct kvs_wire_status *status);
KVB_MUST_USE kvb_status_t kvs_status_unpack(struct kvb_span in, struct kvs_wire_status *status_p);
#define KVS_STATUS_WIRE 57u

struct kvs_wire_tenant {
    char tenant[KVS_WIRE_TENANT_MAX + 1];
    struct kvs_core_tenant_stats stats;
};
struct kvs_wire_tenants {
    uint32_t next; /* from where to ask for more; 0: that was all */
    uint32_t n;
    struct kvs_wire_tenant at[KVS_WIRE_TENANTS_MAX];
};
void kvs_tenants_pack(struct kvb_writer *out, const struct kvs_wire_tenants *tenants);
KVB_MUST_USE kvb_status_t kvs_tenants_unpack(struct kvb_span in, struct kvs_wire_tenants *tenants);
#define KVS_TENANTS_WIRE_MAX (8u + KVS_WIRE_TENANTS_MAX * (4u + KVS_WIRE_TENANT_MAX + 40u))

/* Reads at most max. */
void kvs_list_pack(struct kvb_writer *out, const struct kvs_list *list);
KVB_MUST_USE kvb_status_t kvs_list_unpack(struct kvb_span in, struct kvs_list *list);
#define KVS_LISTED_WIRE_MAX (4u + KVS_WIRE_LAYOUT_MAX + 16u + 4u + KVS_CORE_KEY_MAX + 17u)
#define KVS_LIST_WIRE_MAX   (17u + KVS_LIST_MAX * KVS_LISTED_WIRE_MAX)

#endif
