/* SPDX-License-Identifier: Apache-2.0 */
#include "devices.h"

#include "base/log.h"
#include "base/xxh3.h"
#include "transport/cuda.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EVICT_MS 5000u /* a helper that is not gone by then cannot be killed */
#define PAUSE_MS 2u

/* Kills who holds it and waits, for as long as that may take; then the file goes, too. */
static kvb_status_t evict(const char *path)
{
    uint64_t until_ns = kvb_deadline_in_ms(&kvb_clock_real, EVICT_MS);
    kvb_status_t status;
    while ((status = kvt_cuda_evict(path)) == KVB_ERR_BUSY &&
           kvb_now_ns(&kvb_clock_real) < until_ns) {
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * (long)KVB_NS_PER_MS}, NULL);
    }
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "a CUDA helper of an earlier daemon cannot be ended: it may hold memory",
                KVB_STR("lock", path), KVB_STATUS(status));
        return status;
    }
    (void)unlink(path);
    return KVB_OK;
}

static kvb_status_t clear(void *ctx)
{
    const struct kvp_devices *devices = ctx;
    char folder[PATH_MAX];
    char prefix[NAME_MAX + 8];
    const char *slash = strrchr(devices->socket, '/');
    const char *name = slash != NULL ? slash + 1 : devices->socket;
    int len = slash != NULL ? (int)(slash - devices->socket) + 1 : 0;
    if (snprintf(folder, sizeof folder, "%.*s.", len, devices->socket) >= (int)sizeof folder ||
        snprintf(prefix, sizeof prefix, "%s.cuda-", name) >= (int)sizeof prefix) {
        return KVB_ERR_INVALID;
    }
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        KVB_LOG(ERROR, "the folder of the engine socket", KVB_STR("path", folder),
                KVB_ERRNO(errno));
        return KVB_ERR_IO;
    }
    kvb_status_t status = KVB_OK;
    for (const struct dirent *entry; status == KVB_OK && (entry = readdir(dir)) != NULL;) {
        char path[PATH_MAX + NAME_MAX + 2];
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            status = evict(path);
        }
    }
    (void)closedir(dir);
    return status;
}

static kvb_status_t open_device(void *ctx, const char *rank, uint64_t owner,
                                struct kvt_device **device_p)
{
    const struct kvp_devices *devices = ctx;
    char lock_path[PATH_MAX];
    if (snprintf(lock_path, sizeof lock_path, "%s.cuda-%016llx", devices->socket,
                 (unsigned long long)XXH3_64bits(rank, strlen(rank))) >= (int)sizeof lock_path) {
        return KVB_ERR_INVALID;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct kvt_cuda_config config = {
        .sched = devices->sched,
        .io = devices->io,
        .regions = devices->regions,
        .lock_path = lock_path,
        .owner = owner,
        .pool_len = (devices->pool_len + page - 1) / page * page,
        .direct = devices->direct,
    };
    kvb_status_t status = kvt_cuda_open(&config, device_p);
    if (status != KVB_OK) {
        KVB_LOG(ERROR, "no pool for GPU memory", KVB_STR("rank", rank),
                KVB_U64("bytes", config.pool_len), KVB_STATUS(status));
    }
    return status;
}

const struct kvp_link_devices kvp_device_ops = {
    .clear = clear,
    .open = open_device,
    .close = kvt_cuda_close,
};
