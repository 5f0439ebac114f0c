/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A share, and sessions on it, when memory, mappings or descriptors are refused, at every place in
 * turn: it is there whole or not at all, nothing of it stays, and the next attempt works.
 */
#include "fail_calls.h"
#include "share/share_impl.h"
#include "sim_sched.h"
#include "test_memory.h"

#include "base/log.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <sys/mman.h>

static int fail_errno;
static int64_t mapped; /* bytes */

#define WRAP(name, parameters, arguments)                                                          \
    int __real_##name parameters;                                                                  \
    int __wrap_##name parameters;                                                                  \
    int __wrap_##name parameters                                                                   \
    {                                                                                              \
        if (FAIL_CALLS_NOW()) {                                                                    \
            errno = fail_errno;                                                                    \
            return -1;                                                                             \
        }                                                                                          \
        return __real_##name arguments;                                                            \
    }
WRAP(memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(ftruncate, (int fd, off_t len), (fd, len))
WRAP(madvise, (void *at, size_t len, int what), (at, len, what))
WRAP(mprotect, (void *at, size_t len, int what), (at, len, what))

void *__real_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
    if (FAIL_CALLS_NOW()) {
        errno = fail_errno;
        return MAP_FAILED;
    }
    void *memory = __real_mmap(at, len, protection, flags, fd, offset);
    mapped += memory == MAP_FAILED ? 0 : (int64_t)len;
    return memory;
}
int __real_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len);
int __wrap_munmap(void *at, size_t len)
{
    mapped -= (int64_t)len;
    return __real_munmap(at, len);
}

static const struct kvs_share_config config = {
    .bytes = 1 << 20, .shards = 2, .prefault = true, .events = 8};

static void each_place(int error, uint32_t nth)
{
    struct sim_sched sim;
    size_t fds = test_count_fds();
    sim_init(&sim, 1);
    fail_errno = error;
    FAIL_CALLS_EACH(nth)
    {
        struct kvs_share *share = NULL;
        uint64_t session = 0;
        kvb_status_t status = kvs_share_create(&sim.random, &config, &share);
        if (status != KVB_OK) {
            cr_assert(fail_hit && (status == KVB_ERR_NO_MEMORY || status == KVB_ERR_IO),
                      "place %zx: %s", fail_calls_place(), kvb_status_label(status));
            cr_assert_null(share);
            cr_assert_eq(mapped, 0, "place %zx: %ld bytes stay", fail_calls_place(), (long)mapped);
            cr_assert_eq(test_count_fds(), fds);
            cr_assert_eq(kvs_share_create(&sim.random, &config, &share), KVB_OK);
        }
        status = kvs_share_session_open(share, &session);
        if (status != KVB_OK) {
            cr_assert(fail_hit && status == KVB_ERR_NO_MEMORY, "place %zx: %s", fail_calls_place(),
                      kvb_status_label(status));
            cr_assert_eq(session, 0);
            cr_assert_null(kvs_share_validate(share));
            cr_assert_eq(kvs_share_session_open(share, &session), KVB_OK);
        }
        status = kvs_share_set_quota(share, "t", 1 << 20);
        if (status != KVB_OK) {
            cr_assert(fail_hit && status == KVB_ERR_NO_MEMORY);
            cr_assert_eq(kvs_share_set_quota(share, "t", 1 << 20), KVB_OK);
        }
        fail_calls_stop();
        cr_assert_null(kvs_share_validate(share));
        kvs_share_session_close(share, session);
        kvs_share_destroy(share);
        cr_assert_eq(mapped, 0);
        cr_assert_eq(test_count_fds(), fds);
    }
    sim_cleanup(&sim);
}

Test(share_calls, a_share_is_whole_or_not_at_all)
{
    kvb_log_setup(KVB_LOG_ERROR, KVB_LOG_LOGFMT, -1);
    kvs_share_destroy(NULL); /* of one that could not be made */
    uint32_t nth = 0;
    do { /* of two shards, and their parts */
        each_place(ENOMEM, ++nth);
    } while (fail_hits > 0);
    each_place(EINVAL, 1); /* an older kernel's word for what it does not know */
}

Test(share_calls, a_name_that_no_tenant_can_have_has_no_quota)
{
    struct sim_sched sim;
    struct kvs_share *share;
    char name[65];
    sim_init(&sim, 1);
    cr_assert_eq(kvs_share_create(&sim.random, &config, &share), KVB_OK);
    memset(name, 'n', 64);
    name[64] = '\0';
    cr_assert_eq(kvs_share_set_quota(share, name, 1), KVB_ERR_INVALID);
    cr_assert_eq(kvs_share_set_quota(share, name + 1, 1), KVB_OK);
    kvs_share_destroy(share);
    sim_cleanup(&sim);
}
