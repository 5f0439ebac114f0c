/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        KVB_LOG(ERROR, "cannot open the lock of a CUDA helper", KVB_STR("path", path),
                KVB_ERRNO(errno));
    }
    return fd;
}

static struct flock whole(void)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

kvb_status_t cuda_lock_take(const char *path)
{
    int fd = open_lock(path);
    struct flock lock = whole();
    if (fd < 0) {
        return KVB_ERR_IO;
    }
    if (fcntl(fd, F_SETLK, &lock) == 0) {
        return KVB_OK; /* held, and the descriptor with it, to the end of the process */
    }
    kvb_status_t status = errno == EAGAIN || errno == EACCES ? KVB_ERR_BUSY : KVB_ERR_IO;
    (void)close(fd);
    return status;
}

/* 0: nobody; -1: it cannot be told. */
static pid_t holder(int fd)
{
    struct flock lock = whole();
    if (fcntl(fd, F_GETLK, &lock) != 0) {
        return -1;
    }
    if (lock.l_type == F_UNLCK) {
        return 0;
    }
    return lock.l_pid > 0 ? lock.l_pid : -1; /* 0: of another namespace of processes */
}

/* Never by a process that holds it: closing the file here would give its lock back. */
kvb_status_t cuda_lock_evict(const char *path)
{
    int fd = open_lock(path);
    if (fd < 0) {
        return KVB_ERR_IO;
    }
    pid_t pid = holder(fd);
    kvb_status_t status = pid == 0 ? KVB_OK : KVB_ERR_BUSY;
    if (pid < 0) {
        status = KVB_ERR_IO;
    }
    if (pid > 0) {
        /* Its number may be another's by now, but not once it is held and still has the lock. */
        int process = (int)syscall(SYS_pidfd_open, pid, 0);
        if (process >= 0 && holder(fd) == pid) {
            KVB_LOG(WARN, "killing a CUDA helper that an earlier daemon left",
                    KVB_U64("pid", (uint64_t)pid), KVB_STR("path", path));
            if (syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0) != 0 && errno != ESRCH) {
                status = KVB_ERR_IO;
            }
        }
        if (process >= 0) {
            (void)close(process);
        }
    }
    (void)close(fd);
    return status;
}
