/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_ETCD_MIRROR_H
#define STORE_ETCD_MIRROR_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What etcd holds for this cluster, as this process last heard it: the keys by kind, each kind in
 * the order of its keys. The kinds are the first part of a key; store/coordinator/etcd.c says what
 * each means.
 */
#define KVS_KEY_KINDS(X)                                                                           \
    X(NAME, "name/")                                                                               \
    X(IN, "in/")                                                                                   \
    X(MEMBER, "member/")                                                                           \
    X(STEP, "step/")                                                                               \
    X(EPOCH, "epoch/")                                                                             \
    X(RETIRED, "retired/")                                                                         \
    X(LEFT, "left/")                                                                               \
    X(NODE, "node/")                                                                               \
    X(QUOTA, "quota/")
enum kvs_key_kind {
#define X(name, text) KVS_KEY_##name,
    KVS_KEY_KINDS(X)
#undef X
        KVS_KEY_KINDS_COUNT
};
const char *kvs_key_kind_text(enum kvs_key_kind kind);

struct kvs_entry {
    uint64_t create_rev, mod_rev;
    uint32_t mark;     /* of the snapshot that had it last */
    uint64_t since_ns; /* the coordinator's own: NAME: when it was last seen with members */
    char *value;       /* NUL-terminated, without NULs */
    char key[];        /* without the kind; NUL-terminated, without NULs */
};

struct kvs_mirror {
    struct {
        struct kvs_entry **entries;
        uint32_t n, cap;
    } kinds[KVS_KEY_KINDS_COUNT];
    uint64_t rev; /* everything up to here is in it */
};

void kvs_mirror_cleanup(struct kvs_mirror *mirror);

/* NULL: there is none. Entries are borrowed until the mirror next changes. */
struct kvs_entry *kvs_mirror_find(const struct kvs_mirror *mirror, enum kvs_key_kind kind,
                                  const char *key);
/* The place of the first entry whose key is not below `key`. */
uint32_t kvs_mirror_place(const struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key);
/* The entry at a place if it begins with prefix, else NULL: ends a walk over the prefix. */
struct kvs_entry *kvs_mirror_at(const struct kvs_mirror *mirror, enum kvs_key_kind kind,
                                uint32_t place, const char *prefix);
/* New or changed; NULL: NO_MEMORY. */
struct kvs_entry *kvs_mirror_put(struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key,
                                 const char *value, uint64_t create_rev, uint64_t mod_rev);
void kvs_mirror_remove(struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key);

#endif
