/* SPDX-License-Identifier: Apache-2.0 */
#include "share.h"

#include "base/assert.h"
#include "base/log.h"

#include <xxhash.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARD_BYTES (4ull << 30) /* one shard for each of these, unless the config says */
#define SHARDS_MAX  16u

/* A memfd rather than anonymous memory: it is counted apart from what the process itself uses, and
 * can be handed to a transport's helper. */
static kvb_status_t map_memory(struct kvs_share *share)
{
    int fd = memfd_create("kvplane-share", MFD_CLOEXEC);
    if (fd < 0) {
        KVB_LOG(ERROR, "the share's memory cannot be created", KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)share->bytes) == 0) {
        memory =
            mmap(NULL, share->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    }
    if (memory == MAP_FAILED) {
        KVB_LOG(ERROR, "the share's memory cannot be mapped", KVB_U64("bytes", share->bytes),
                KVB_ERRNO(errno));
        (void)close(fd);
        return KVB_ERR_NO_MEMORY;
    }
    (void)close(fd);
    (void)madvise(memory, share->bytes, MADV_HUGEPAGE); /* a wish */
    share->memory = memory;
    return KVB_OK;
}

static kvb_status_t shard_init(struct kvs_shard *shard, struct kvt_transport *transport,
                               const struct kvb_random *random,
                               const struct kvs_core_config *config, uint8_t *base)
{
    *shard = (struct kvs_shard){.base = base};
    kvb_status_t status = kvs_core_create(config, random, &shard->core);
    if (status != KVB_OK) {
        return status;
    }
    status = kvs_core_session_open(shard->core, KVS_LOCAL_SESSION);
    if (status != KVB_OK) {
        goto err_core;
    }
    status = kvt_share_create(transport, base, config->share_bytes, &shard->reach);
    if (status != KVB_OK) {
        goto err_core;
    }
    kvb_mutex_init(&shard->lock, "shard");
    return KVB_OK;

err_core:
    kvs_core_destroy(shard->core);
    return status;
}

static void shard_cleanup(struct kvs_shard *shard)
{
    kvt_share_destroy(shard->reach);
    kvs_core_destroy(shard->core);
    kvb_mutex_cleanup(&shard->lock);
}

static uint32_t choose_nshards(const struct kvs_node_config *config)
{
    uint64_t n = config->shards != 0 ? config->shards : config->share_bytes / SHARD_BYTES;
    if (n == 0) {
        n = 1;
    }
    return (uint32_t)(config->shards == 0 && n > SHARDS_MAX ? SHARDS_MAX : n);
}

kvb_status_t kvs_share_init(struct kvs_share *share, struct kvt_transport *transport,
                            const struct kvb_random *random, const struct kvs_node_config *config)
{
    uint32_t nshards = choose_nshards(config);
    uint64_t each = config->share_bytes / nshards / KVS_CORE_PAGE * KVS_CORE_PAGE;
    if (each == 0) {
        return KVB_ERR_INVALID;
    }
    *share = (struct kvs_share){.bytes = each * nshards};
    share->shards = calloc(nshards, sizeof *share->shards);
    if (share->shards == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    kvb_status_t status = map_memory(share);
    if (status != KVB_OK) {
        free(share->shards);
        return status;
    }
    random->fill(random->ctx, &share->seed, sizeof share->seed);
    kvs_names_init(&share->names);
    struct kvs_core_config core = {
        .share_bytes = each,
        .hold_bytes_max = config->hold_bytes_max / nshards,
    };
    for (; share->nshards < nshards; share->nshards++) {
        status = shard_init(&share->shards[share->nshards], transport, random, &core,
                            share->memory + share->nshards * each);
        if (status != KVB_OK) {
            kvs_share_cleanup(share);
            return status;
        }
    }
    return KVB_OK;
}

void kvs_share_cleanup(struct kvs_share *share)
{
    for (uint32_t i = 0; i < share->nshards; i++) {
        shard_cleanup(&share->shards[i]);
    }
    free(share->shards);
    kvs_names_cleanup(&share->names);
    (void)munmap(share->memory, share->bytes);
}

uint64_t kvs_share_seed(const struct kvs_share *share, const struct kvs_core_where *where)
{
    uint64_t parts[] = {where->space, where->lineage.id.hi, where->lineage.id.lo};
    return XXH3_64bits_withSeed(parts, sizeof parts, share->seed);
}

struct kvs_shard *kvs_share_shard(const struct kvs_share *share, uint64_t seed, struct kvb_span key)
{
    if (share->nshards == 1) {
        return &share->shards[0];
    }
    uint64_t hash = XXH3_64bits_withSeed(key.data, key.len, seed);
    return &share->shards[((hash >> 32) * share->nshards) >> 32];
}
