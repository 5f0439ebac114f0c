/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_KVPLANE_H
#define FAKE_KVPLANE_H

#include "kvplane.h"

#include <stdlib.h>
#include <string.h>

/*
 * libkvplane without a daemon, for tests of the engine: calls are kept until the test answers them,
 * and what the engine answers is kept for the test. One engine at a time.
 */
struct fake_call { /* of the daemon to the engine */
    int answered, result;
    unsigned held;
    bool written;
    char text[4096];
};
struct kvplane_call {
    struct fake_call fake;
};
struct fake_asked { /* of the engine to the daemon */
    char kind;      /* l, g, p; 0: none */
    uint64_t request;
    kvplane_token token;
    size_t n;
    struct kvplane_entry entries[64];
    struct kvplane_slice slices[64];
    char keys[64][24];
    char placements[64][24];
    kvplane_lookup_fn looked;
    kvplane_batch_fn done;
    void *arg;
};
static struct {
    const struct kvplane_callbacks *callbacks;
    void *ctx;
    bool attached;
    kvplane_token token;
    struct fake_asked asked[16];
    struct kvplane_region regions[8];
    size_t nregions;
    unsigned discards;
    bool full; /* answers AGAIN */
} fake;

static struct fake_asked *fake_free_slot(void)
{
    for (size_t i = 0; i < 16; i++) {
        if (fake.asked[i].kind == 0) {
            return &fake.asked[i];
        }
    }
    abort();
}

/* The oldest open call of this kind, or NULL. */
static struct fake_asked *fake_find(char kind)
{
    struct fake_asked *found = NULL;
    for (size_t i = 0; i < 16; i++) {
        struct fake_asked *asked = &fake.asked[i];
        if (asked->kind == kind && (found == NULL || asked->request < found->request)) {
            found = asked;
        }
    }
    return found;
}

int kvplane_open(const struct kvplane_options *options, struct kvplane **kv_p)
{
    memset(&fake, 0, sizeof fake);
    fake.callbacks = options->callbacks;
    fake.ctx = options->ctx;
    *kv_p = (struct kvplane *)&fake;
    return KVPLANE_OK;
}
void kvplane_close(struct kvplane *kv)
{
    (void)kv;
    fake.attached = false;
    for (size_t i = 0; i < 16; i++) {
        struct fake_asked asked = fake.asked[i];
        int results[64];
        fake.asked[i].kind = 0;
        for (size_t k = 0; k < 64; k++) {
            results[k] = KVPLANE_ERR_CANCELED;
        }
        if (asked.kind == 'l') {
            asked.looked(asked.arg, KVPLANE_ERR_CANCELED, NULL, 0);
        } else if (asked.kind != 0) {
            asked.done(asked.arg, results, asked.n);
        }
    }
}
int kvplane_reattach(struct kvplane *kv)
{
    (void)kv;
    return KVPLANE_OK;
}
int kvplane_fd(const struct kvplane *kv)
{
    (void)kv;
    return -1;
}
int kvplane_process(struct kvplane *kv)
{
    (void)kv;
    return KVPLANE_OK;
}
bool kvplane_attached(const struct kvplane *kv)
{
    (void)kv;
    return fake.attached;
}
const char *kvplane_last_error(const struct kvplane *kv)
{
    (void)kv;
    return "";
}
const char *kvplane_strerror(int result)
{
    (void)result;
    return "";
}
kvplane_token kvplane_get_token(const struct kvplane *kv)
{
    (void)kv;
    return fake.token;
}
int kvplane_register_region(struct kvplane *kv, const struct kvplane_region *region,
                            kvplane_done_fn done, void *arg)
{
    (void)kv;
    (void)done;
    (void)arg;
    fake.regions[fake.nregions++ % 8] = *region;
    return KVPLANE_OK;
}
int kvplane_lookup(struct kvplane *kv, uint64_t request, kvplane_token token,
                   const struct kvplane_keys *groups, size_t ngroups, kvplane_lookup_fn done,
                   void *arg)
{
    (void)kv;
    (void)ngroups;
    if (fake.full) {
        return KVPLANE_ERR_AGAIN;
    }
    struct fake_asked *asked = fake_free_slot();
    *asked = (struct fake_asked){.kind = 'l',
                                 .request = request,
                                 .token = token,
                                 .n = groups[0].nkeys,
                                 .looked = done,
                                 .arg = arg};
    for (size_t i = 0; i < asked->n && i < 64; i++) {
        const struct kvplane_key *key = &groups[0].keys[i];
        memcpy(asked->keys[i], key->key, key->len);
        memcpy(asked->placements[i], key->placement, key->placement_len);
    }
    return KVPLANE_OK;
}
static int fake_batch(char kind, uint64_t request, kvplane_token token,
                      const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done,
                      void *arg)
{
    struct fake_asked *asked = fake_free_slot();
    if (fake.full) {
        return KVPLANE_ERR_AGAIN;
    }
    *asked = (struct fake_asked){
        .kind = kind, .request = request, .token = token, .n = n, .done = done, .arg = arg};
    for (size_t i = 0; i < n; i++) {
        asked->entries[i] = entries[i];
        asked->slices[i] = entries[i].slices[0];
        memcpy(asked->keys[i], entries[i].key, entries[i].key_len);
        memcpy(asked->placements[i], entries[i].placement, entries[i].placement_len);
    }
    return KVPLANE_OK;
}
int kvplane_get(struct kvplane *kv, uint64_t request, kvplane_token token,
                const struct kvplane_entry *entries, size_t n, kvplane_batch_fn done, void *arg)
{
    (void)kv;
    return fake_batch('g', request, token, entries, n, done, arg);
}
int kvplane_put(struct kvplane *kv, const struct kvplane_entry *entries, size_t n,
                kvplane_batch_fn done, void *arg)
{
    static uint64_t puts;
    (void)kv;
    return fake_batch('p', puts++, n > 0 ? entries[0].token : fake.token, entries, n, done, arg);
}
int kvplane_discard(struct kvplane *kv, uint64_t request)
{
    (void)kv;
    (void)request;
    fake.discards++;
    return KVPLANE_OK;
}
int kvplane_report(struct kvplane *kv, uint32_t running, uint32_t waiting, uint32_t loading,
                   uint32_t blocks_held)
{
    (void)kv;
    (void)running;
    (void)waiting;
    (void)loading;
    (void)blocks_held;
    return KVPLANE_OK;
}
void kvplane_answer(struct kvplane_call *call, int result)
{
    call->fake.answered++;
    call->fake.result = result;
}
void kvplane_answer_reset(struct kvplane_call *call, int result, uint32_t blocks_held)
{
    call->fake.held = blocks_held;
    kvplane_answer(call, result);
}
uint64_t kvplane_call_operation(const struct kvplane_call *call)
{
    (void)call;
    return 0;
}
void kvplane_answer_text(struct kvplane_call *call, int result, const char *text)
{
    strncpy(call->fake.text, text, sizeof call->fake.text - 1);
    kvplane_answer(call, result);
}
void kvplane_answer_relay(struct kvplane_call *call, int result, bool weights_written,
                          const char *json, size_t len)
{
    memcpy(call->fake.text, json, len < 4095 ? len : 4095);
    call->fake.written = weights_written;
    kvplane_answer(call, result);
}

#endif
