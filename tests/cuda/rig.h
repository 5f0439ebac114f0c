/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_RIG_H
#define TESTS_CUDA_RIG_H

/*
 * The fake driver's device, for the processes of one test: a tmpfs of its own in a mount namespace
 * of its own, which goes with the test. The account of the device's memory is the kernel's.
 */
#include "fake.h"

#include "base/assert.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

struct cuda_rig {
    char dir[64];
    struct fake_cuda_control *control;
    uint64_t empty; /* bytes used before anything is allocated */
};

static inline bool rig_unshare_(void)
{
    unsigned uid = (unsigned)getuid();
    if (unshare(CLONE_NEWNS) == 0) {
        return true;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return false;
    }
    char map[32];
    int len = snprintf(map, sizeof map, "0 %u 1", uid);
    int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, map, (size_t)len) == len;
    if (fd >= 0) {
        (void)close(fd);
    }
    return ok;
}

static inline uint64_t rig_used_(const struct cuda_rig *rig)
{
    struct statvfs st;
    kvb_assert(statvfs(rig->dir, &st) == 0);
    return (uint64_t)(st.f_blocks - st.f_bfree) * st.f_frsize;
}

/* False: this machine lets us mount nothing. Before the driver is opened here or in a child. */
static inline bool cuda_rig_init(struct cuda_rig *rig, uint32_t size_mib)
{
    *rig = (struct cuda_rig){.dir = "/tmp/fake-cuda-XXXXXX"};
    char options[64];
    (void)snprintf(options, sizeof options, "size=%um,mode=0700", size_mib);
    if (!rig_unshare_() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mkdtemp(rig->dir) == NULL || mount("fake-cuda", rig->dir, "tmpfs", 0, options) != 0) {
        return false;
    }
    char path[128];
    (void)snprintf(path, sizeof path, "%s/" FAKE_CUDA_CONTROL, rig->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    kvb_assert(fd >= 0 && ftruncate(fd, sizeof *rig->control) == 0);
    rig->control = mmap(NULL, sizeof *rig->control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    kvb_assert(rig->control != MAP_FAILED);
    (void)close(fd);
    rig->control->magic = FAKE_CUDA_MAGIC;
    rig->control->ndevices = FAKE_CUDA_DEVICES;
    rig->empty = rig_used_(rig);
    kvb_assert(setenv("FAKE_CUDA_DIR", rig->dir, 1) == 0);
    return true;
}

static inline void cuda_rig_cleanup(struct cuda_rig *rig)
{
    (void)munmap(rig->control, sizeof *rig->control);
    (void)umount2(rig->dir, MNT_DETACH);
    (void)rmdir(rig->dir);
}

/* Bytes of the device's memory that anything holds. */
static inline uint64_t cuda_rig_held(const struct cuda_rig *rig)
{
    return rig_used_(rig) - rig->empty;
}

/* What a killed process held is given back a little after it was reaped. */
static inline bool cuda_rig_comes_to(const struct cuda_rig *rig, uint64_t bytes)
{
    for (int i = 0; i < 60000 && cuda_rig_held(rig) != bytes; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return cuda_rig_held(rig) == bytes;
}

/* The n-th call from now on of any other process (only: of that kind) goes wrong so. */
static inline void cuda_rig_arm(struct cuda_rig *rig, uint32_t n, enum fake_cuda_action action,
                                int code)
{
    atomic_store(&rig->control->spared, (int)getpid());
    atomic_store(&rig->control->fired, 0);
    atomic_store(&rig->control->action, (unsigned)action);
    atomic_store(&rig->control->code, code);
    atomic_store(&rig->control->fuse, n);
}

/* True: it happened. */
static inline bool cuda_rig_disarm(struct cuda_rig *rig)
{
    atomic_store(&rig->control->fuse, 0);
    atomic_store(&rig->control->burst, 0);
    atomic_store(&rig->control->only, 0);
    atomic_store(&rig->control->victim, 0);
    return atomic_load(&rig->control->fired) > 0;
}

static inline const char *cuda_rig_fired(const struct cuda_rig *rig)
{
    static const char *const names[] = {
#define X(need, name, version, member, arguments) #name,
        KVT_CU_CALLS(X) FAKE_CUDA_ENGINE_CALLS(X)
#undef X
    };
    return atomic_load(&rig->control->fired) > 0 ? names[atomic_load(&rig->control->fired_call)]
                                                 : "nothing";
}

#endif
