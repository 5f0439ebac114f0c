/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_ETCD_WIRE_H
#define STORE_ETCD_WIRE_H

#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * etcd's v3 messages as its JSON gateway has them: keys and values in base64, 64-bit numbers as
 * strings, and whatever is false, zero or empty left out. Nothing of an answer is believed before
 * it was checked. Builders give NULL when out of memory, and take what is given to them.
 */

/* ---- requests ---- */

json_t *kvs_wire_put(const char *key, const char *value, uint64_t lease); /* lease 0: none */
json_t *kvs_wire_delete(const char *key);
json_t *kvs_wire_delete_prefix(const char *prefix);
json_t *kvs_wire_range(const char *key);
json_t *kvs_wire_range_prefix(const char *prefix, bool keys_only);

json_t *kvs_wire_if_absent(const char *key);
json_t *kvs_wire_if_present(const char *key);
json_t *kvs_wire_if_value(const char *key, const char *value);
json_t *kvs_wire_if_created(const char *key, uint64_t create_rev);
json_t *kvs_wire_if_modified(const char *key, uint64_t mod_rev); /* 0: absent */
/* Nothing below prefix was written after rev. */
json_t *kvs_wire_if_prefix_older(const char *prefix, uint64_t rev);

/* If all of `when` hold then `then`, else `otherwise`: one atomic step. */
struct kvs_txn {
    json_t *when, *then, *otherwise;
    bool failed; /* out of memory on the way */
};
void kvs_txn_init(struct kvs_txn *txn);
void kvs_txn_when(struct kvs_txn *txn, json_t *compare);
/* The place of its answer. */
uint32_t kvs_txn_then(struct kvs_txn *txn, json_t *request);
uint32_t kvs_txn_otherwise(struct kvs_txn *txn, json_t *request);
/* The body of /v3/kv/txn, malloc'd; the txn is no more. NULL: out of memory. */
char *kvs_txn_body(struct kvs_txn *txn);

/* The whole body of /v3/kv/range: at most `limit` keys from `key` up to the end of `prefix`; rev 0:
 * the present one. */
char *kvs_wire_page_body(const char *key, const char *prefix, uint64_t rev, uint32_t limit);
/* Of /v3/watch: everything below prefix from rev on as watch 1, and one key as watch 2. */
char *kvs_wire_watch_body(const char *prefix, uint64_t rev, const char *key);
char *kvs_wire_lease_body(const char *field, uint64_t value); /* {"TTL": …} or {"ID": …} */

/* ---- answers ---- */

/* A field with a 64-bit number; left out: 0. False: it is no such thing. */
bool kvs_wire_u64(const json_t *object, const char *field, uint64_t *value_p);
/* Left out: false. */
bool kvs_wire_bool(const json_t *object, const char *field, bool *value_p);
/* header.revision, which is never 0. */
bool kvs_wire_revision(const json_t *answer, uint64_t *rev_p);

struct kvs_kv {
    char *key; /* NUL-terminated; may hold NULs before key_len if somebody else wrote it */
    size_t key_len;
    char *value; /* NUL-terminated */
    size_t value_len;
    uint64_t create_rev, mod_rev;
    bool deleted; /* of an event */
};
/* Every key-value of an array, left out: none. PROTOCOL: it is not sound (those before it were
 * given). NO_MEMORY. kv: borrowed. Stops at the first status other than OK that `each` gives. */
KVB_MUST_USE kvb_status_t kvs_wire_each_kv(const json_t *array,
                                           kvb_status_t (*each)(void *ctx, const struct kvs_kv *kv),
                                           void *ctx);
/* The same for the events of a watch. */
KVB_MUST_USE kvb_status_t kvs_wire_each_event(
    const json_t *array, kvb_status_t (*each)(void *ctx, const struct kvs_kv *kv), void *ctx);

struct kvs_txn_answer {
    bool succeeded;
    uint64_t rev;
    const json_t *responses;
};
/* then, otherwise: what was asked; each has its response, of its kind. */
bool kvs_txn_parse(const json_t *answer, const json_t *then, const json_t *otherwise,
                   struct kvs_txn_answer *parsed_p);
/* The key-values of a range in it; `sound` false: it is none. NULL and sound: there are none. */
const json_t *kvs_txn_kvs(const struct kvs_txn_answer *answer, uint32_t place, bool *sound_p);

#endif
