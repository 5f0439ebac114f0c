/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include "base/assert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

kvb_status_t kve_memory_init(struct kve_memory *memory, const char *instance, const char *tag,
                             size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *base;

    *memory = (struct kve_memory){.fd = -1, .aside_fd = -1};
    memory->len = (len + page - 1) / page * page;
    snprintf(memory->name, sizeof memory->name, "kve-%.30s-%.30s", instance, tag);
    base = mmap(NULL, memory->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return KVB_ERR_NO_MEMORY;
    }
    memory->base = base;
    return KVB_OK;
}

void kve_memory_cleanup(struct kve_memory *memory)
{
    kve_memory_drop_aside(memory);
    if (memory->fd >= 0) {
        close(memory->fd);
    }
    if (memory->base != NULL) {
        munmap(memory->base, memory->len);
    }
    *memory = (struct kve_memory){.fd = -1, .aside_fd = -1};
}

static int sealed_memfd(const char *name, size_t len)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, (off_t)len) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

kvb_status_t kve_memory_map(struct kve_memory *memory)
{
    char name[128];
    int fd;

    kvb_assert(memory->fd < 0);
    snprintf(name, sizeof name, "%s-%" PRIu64, memory->name, memory->generation + 1);
    fd = sealed_memfd(name, memory->len);
    if (fd < 0) {
        return errno == ENOMEM ? KVB_ERR_NO_MEMORY : KVB_ERR_IO;
    }
    if (mmap(memory->base, memory->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
        MAP_FAILED) {
        close(fd);
        return KVB_ERR_NO_MEMORY;
    }
    memory->fd = fd;
    memory->generation++;
    return KVB_OK;
}

void kve_memory_unmap(struct kve_memory *memory)
{
    void *base;

    if (memory->fd < 0) {
        return;
    }
    /* One call replaces the mapping: the addresses are never free for others. */
    base = mmap(memory->base, memory->len, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    kvb_assert(base == memory->base);
    close(memory->fd);
    memory->fd = -1;
}

void kve_memory_renew(struct kve_memory *memory)
{
    kvb_assert(memory->fd >= 0);
    memory->generation++;
}

static kvb_status_t write_all(int fd, const unsigned char *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, bytes + done, len - done, (off_t)done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return KVB_ERR_IO;
        }
        done += (size_t)n;
    }
    return KVB_OK;
}

static kvb_status_t read_all(int fd, unsigned char *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, bytes + done, len - done, (off_t)done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return KVB_ERR_IO;
        }
        done += (size_t)n;
    }
    return KVB_OK;
}

kvb_status_t kve_memory_offload(struct kve_memory *memory)
{
    char name[128];
    kvb_status_t status;

    kvb_assert(memory->fd >= 0);
    if (memory->aside_fd < 0) {
        /* Not under the region's own name: this copy is host memory that sleep keeps. */
        snprintf(name, sizeof name, "aside-%s", memory->name);
        memory->aside_fd = memfd_create(name, MFD_CLOEXEC);
        if (memory->aside_fd < 0) {
            return KVB_ERR_NO_MEMORY;
        }
    }
    status = write_all(memory->aside_fd, memory->base, memory->len);
    if (status != KVB_OK) {
        kve_memory_drop_aside(memory);
    }
    return status;
}

kvb_status_t kve_memory_reload(struct kve_memory *memory)
{
    kvb_status_t status;

    kvb_assert(memory->fd >= 0 && memory->aside_fd >= 0);
    status = read_all(memory->aside_fd, memory->base, memory->len);
    if (status == KVB_OK) {
        kve_memory_drop_aside(memory);
    }
    return status;
}

void kve_memory_drop_aside(struct kve_memory *memory)
{
    if (memory->aside_fd >= 0) {
        close(memory->aside_fd);
        memory->aside_fd = -1;
    }
}

/* ---- what the kernel says ---- */

enum { FILES_MAX = 256 }; /* memfds of one prefix that are told apart */

struct memfd {
    uint64_t inode;
    uint64_t bytes;
};
struct memfds {
    struct memfd files[FILES_MAX];
    size_t n;
};

static void note(struct memfds *found, uint64_t inode, uint64_t bytes)
{
    for (size_t i = 0; i < found->n; i++) {
        if (found->files[i].inode == inode) {
            return;
        }
    }
    if (found->n < FILES_MAX) {
        found->files[found->n++] = (struct memfd){.inode = inode, .bytes = bytes};
    }
}

static kvb_status_t note_open(pid_t pid, const char *prefix, struct memfds *found)
{
    char path[64], start[128];
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(start, sizeof start, "/memfd:%s", prefix);
    dir = opendir(path);
    if (dir == NULL) {
        return KVB_ERR_IO;
    }
    while ((entry = readdir(dir)) != NULL) {
        char target[256];
        struct stat st;
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        if (n < 0) {
            continue; /* closed meanwhile, or "." */
        }
        target[n] = '\0';
        if (strncmp(target, start, strlen(start)) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &st, 0) == 0) {
            note(found, st.st_ino, (uint64_t)st.st_blocks * 512);
        }
    }
    closedir(dir);
    return KVB_OK;
}

static kvb_status_t note_mapped(pid_t pid, const char *prefix, struct memfds *found)
{
    char path[64], start[128], *line = NULL;
    size_t cap = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    snprintf(start, sizeof start, "/memfd:%s", prefix);
    file = fopen(path, "re");
    if (file == NULL) {
        return KVB_ERR_IO;
    }
    while (getline(&line, &cap, file) > 0) {
        uint64_t from, to, inode;
        const char *name = strchr(line, '/');
        if (name != NULL && strncmp(name, start, strlen(start)) == 0 &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64, &from, &to, &inode) == 3) {
            note(found, inode, to - from);
        }
    }
    free(line);
    fclose(file);
    return KVB_OK;
}

kvb_status_t kve_kernel_memfd_bytes(const pid_t *pids, size_t npids, const char *prefix,
                                    uint64_t *bytes_p)
{
    struct memfds found = {.n = 0};
    uint64_t bytes = 0;
    kvb_status_t status = KVB_OK;

    /* Open ones first: those tell how many pages they have. */
    for (size_t i = 0; i < npids && status == KVB_OK; i++) {
        status = note_open(pids[i], prefix, &found);
    }
    for (size_t i = 0; i < npids && status == KVB_OK; i++) {
        status = note_mapped(pids[i], prefix, &found);
    }
    if (status != KVB_OK) {
        return status;
    }
    for (size_t i = 0; i < found.n; i++) {
        bytes += found.files[i].bytes;
    }
    *bytes_p = bytes;
    return KVB_OK;
}

kvb_status_t kve_kernel_process_memory(pid_t pid, struct kve_kernel_memory *memory_p)
{
    struct kve_kernel_memory memory = {0};
    char path[64], *line = NULL;
    size_t cap = 0;
    unsigned seen = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    if (file == NULL) {
        return KVB_ERR_IO;
    }
    while (getline(&line, &cap, file) > 0) {
        uint64_t kib;
        if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1) {
            memory.anon = kib * 1024;
            seen++;
        } else if (sscanf(line, "RssFile: %" SCNu64, &kib) == 1) {
            memory.file = kib * 1024;
            seen++;
        } else if (sscanf(line, "RssShmem: %" SCNu64, &kib) == 1) {
            memory.shmem = kib * 1024;
            seen++;
        }
    }
    free(line);
    fclose(file);
    if (seen != 3) {
        return KVB_ERR_IO;
    }
    *memory_p = memory;
    return KVB_OK;
}
