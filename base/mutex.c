/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutex.h"

#include "base/assert.h"

#include <errno.h>
#include <unistd.h>

static _Thread_local uint64_t self; /* gettid() costs a system call: asked once per thread */

static uint64_t thread_id(void)
{
    if (self == 0) {
        self = (uint64_t)gettid();
    }
    return self;
}

void kvb_mutex_init(struct kvb_mutex *mutex, const char *name)
{
    int rc = pthread_mutex_init(&mutex->raw, NULL);
    kvb_assert(rc == 0);
    mutex->name = name;
    atomic_init(&mutex->owner, 0);
    atomic_init(&mutex->locked, 0);
    atomic_init(&mutex->contended, 0);
}

void kvb_mutex_cleanup(struct kvb_mutex *mutex)
{
    int rc = pthread_mutex_destroy(&mutex->raw);
    kvb_assert(rc == 0);
}

/* The owner is only compared with the own thread's id, which no other thread writes: relaxed is
 * enough. */
void kvb_mutex_lock(struct kvb_mutex *mutex) KVB_NO_THREAD_ANALYSIS
{
    kvb_assert(!kvb_mutex_held(mutex));
    int rc = pthread_mutex_trylock(&mutex->raw);
    if (rc == EBUSY) {
        atomic_fetch_add_explicit(&mutex->contended, 1, memory_order_relaxed);
        rc = pthread_mutex_lock(&mutex->raw);
    }
    kvb_assert(rc == 0);
    atomic_fetch_add_explicit(&mutex->locked, 1, memory_order_relaxed);
    atomic_store_explicit(&mutex->owner, thread_id(), memory_order_relaxed);
}

void kvb_mutex_unlock(struct kvb_mutex *mutex) KVB_NO_THREAD_ANALYSIS
{
    kvb_assert(kvb_mutex_held(mutex));
    atomic_store_explicit(&mutex->owner, 0, memory_order_relaxed);
    int rc = pthread_mutex_unlock(&mutex->raw);
    kvb_assert(rc == 0);
}

bool kvb_mutex_held(const struct kvb_mutex *mutex)
{
    return atomic_load_explicit(&mutex->owner, memory_order_relaxed) == thread_id();
}
