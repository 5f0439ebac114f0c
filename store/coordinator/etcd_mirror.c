/* SPDX-License-Identifier: Apache-2.0 */
#include "etcd_mirror.h"

#include <stdlib.h>
#include <string.h>

const char *kvs_key_kind_text(enum kvs_key_kind kind)
{
    static const char *const texts[] = {
#define X(name, text) [KVS_KEY_##name] = (text),
        KVS_KEY_KINDS(X)
#undef X
    };
    return texts[kind];
}

static void free_entry(struct kvs_entry *entry)
{
    free(entry->value);
    free(entry);
}

void kvs_mirror_cleanup(struct kvs_mirror *mirror)
{
    for (int kind = 0; kind < KVS_KEY_KINDS_COUNT; kind++) {
        for (uint32_t i = 0; i < mirror->kinds[kind].n; i++) {
            free_entry(mirror->kinds[kind].entries[i]);
        }
        free(mirror->kinds[kind].entries);
    }
    memset(mirror, 0, sizeof *mirror);
}

uint32_t kvs_mirror_place(const struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key)
{
    uint32_t low = 0;
    uint32_t high = mirror->kinds[kind].n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(mirror->kinds[kind].entries[middle]->key, key) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct kvs_entry *kvs_mirror_at(const struct kvs_mirror *mirror, enum kvs_key_kind kind,
                                uint32_t place, const char *prefix)
{
    if (place >= mirror->kinds[kind].n) {
        return NULL;
    }
    struct kvs_entry *entry = mirror->kinds[kind].entries[place];
    return strncmp(entry->key, prefix, strlen(prefix)) == 0 ? entry : NULL;
}

struct kvs_entry *kvs_mirror_find(const struct kvs_mirror *mirror, enum kvs_key_kind kind,
                                  const char *key)
{
    struct kvs_entry *entry = kvs_mirror_at(mirror, kind, kvs_mirror_place(mirror, kind, key), key);
    return entry != NULL && strcmp(entry->key, key) == 0 ? entry : NULL;
}

static struct kvs_entry *insert(struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key)
{
    uint32_t n = mirror->kinds[kind].n;
    if (n == mirror->kinds[kind].cap) {
        uint32_t cap = n == 0 ? 16 : 2 * n;
        struct kvs_entry **grown =
            realloc(mirror->kinds[kind].entries, cap * sizeof(struct kvs_entry *));
        if (grown == NULL) {
            return NULL;
        }
        mirror->kinds[kind].entries = grown;
        mirror->kinds[kind].cap = cap;
    }
    size_t size = strlen(key) + 1;
    struct kvs_entry *entry = calloc(1, sizeof *entry + size);
    if (entry == NULL) {
        return NULL;
    }
    memcpy(entry->key, key, size);
    uint32_t place = kvs_mirror_place(mirror, kind, key);
    struct kvs_entry **at = &mirror->kinds[kind].entries[place];
    memmove(at + 1, at, (n - place) * sizeof *at);
    *at = entry;
    mirror->kinds[kind].n++;
    return entry;
}

struct kvs_entry *kvs_mirror_put(struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key,
                                 const char *value, uint64_t create_rev, uint64_t mod_rev)
{
    char *copy = strdup(value);
    struct kvs_entry *entry = copy == NULL ? NULL : kvs_mirror_find(mirror, kind, key);
    if (copy != NULL && entry == NULL) {
        entry = insert(mirror, kind, key);
    }
    if (entry == NULL) {
        free(copy);
        return NULL;
    }
    free(entry->value);
    entry->value = copy;
    entry->create_rev = create_rev;
    entry->mod_rev = mod_rev;
    return entry;
}

void kvs_mirror_remove(struct kvs_mirror *mirror, enum kvs_key_kind kind, const char *key)
{
    uint32_t place = kvs_mirror_place(mirror, kind, key);
    struct kvs_entry *entry = kvs_mirror_at(mirror, kind, place, key);
    if (entry == NULL || strcmp(entry->key, key) != 0) {
        return;
    }
    struct kvs_entry **at = &mirror->kinds[kind].entries[place];
    mirror->kinds[kind].n--;
    memmove(at, at + 1, (mirror->kinds[kind].n - place) * sizeof *at);
    free_entry(entry);
}
