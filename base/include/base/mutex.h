/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MUTEX_H
#define BASE_MUTEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__clang__)
#define KVB_CAPABILITY(name)   __attribute__((capability(name)))
#define KVB_REQUIRES(lock)     __attribute__((requires_capability(lock)))
#define KVB_ACQUIRES(lock)     __attribute__((acquire_capability(lock)))
#define KVB_RELEASES(lock)     __attribute__((release_capability(lock)))
#define KVB_NO_THREAD_ANALYSIS __attribute__((no_thread_safety_analysis))
#else
#define KVB_CAPABILITY(name)
#define KVB_REQUIRES(lock)
#define KVB_ACQUIRES(lock)
#define KVB_RELEASES(lock)
#define KVB_NO_THREAD_ANALYSIS
#endif

/*
 * A pthread mutex with a name, an owner (so that `_locked` functions can check that their caller
 * holds it) and counters. Not recursive: locking a lock one holds is an assertion. Never held
 * across a callback or a system call that may wait.
 */
struct KVB_CAPABILITY("mutex") kvb_mutex {
    pthread_mutex_t raw;
    const char *name;
    _Atomic(uint64_t) owner; /* thread id, 0: free */
    atomic_ulong locked;     /* how often taken */
    atomic_ulong contended;  /* how often a thread had to wait for it */
};

void kvb_mutex_init(struct kvb_mutex *mutex, const char *name);
void kvb_mutex_cleanup(struct kvb_mutex *mutex);
void kvb_mutex_lock(struct kvb_mutex *mutex) KVB_ACQUIRES(mutex);
void kvb_mutex_unlock(struct kvb_mutex *mutex) KVB_RELEASES(mutex);
bool kvb_mutex_held(const struct kvb_mutex *mutex);
#define kvb_mutex_assert_held(mutex) kvb_assert(kvb_mutex_held(mutex))

#endif
