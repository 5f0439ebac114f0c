/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many producers, a consumer and a close in the middle: every item is completed exactly once, by
 * the consumer, by drop, or by its producer when it was refused. Run under TSan, too.
 */
#include "base/assert.h"
#include "base/queue.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#define PRODUCERS 3
#define ITEMS     4000 /* each */
#define ROUNDS    20

struct entry {
    struct kvb_item item;
    _Atomic(int) completed;
};

struct run {
    struct kvb_queue queue;
    sem_t wakes;
    atomic_uint popped;
    atomic_uint dropped;
    atomic_uint refused;
    struct entry entries[PRODUCERS][ITEMS];
    unsigned close_after; /* popped items */
};
struct producer {
    struct run *run;
    int index;
};

static void wake(void *ctx)
{
    struct run *run = ctx;
    sem_post(&run->wakes);
}

static void complete(struct kvb_item *item)
{
    kvb_container_of(item, struct entry, item)->completed++;
}

static void drop(void *ctx, struct kvb_item *item)
{
    struct run *run = ctx;
    complete(item);
    run->dropped++;
}

static void *produce(void *arg)
{
    struct producer *producer = arg;
    struct run *run = producer->run;
    for (int i = 0; i < ITEMS; i++) {
        struct kvb_item *item = &run->entries[producer->index][i].item;
        kvb_status_t status;
        while ((status = kvb_queue_put(&run->queue, item)) == KVB_ERR_AGAIN) {
            sched_yield();
        }
        if (status == KVB_ERR_CANCELED) {
            complete(item);
            run->refused++;
        } else {
            kvb_assert(status == KVB_OK);
        }
    }
    return NULL;
}

/* Pops until NULL at each wake-up, and closes when it has had enough. */
static void consume(struct run *run)
{
    for (;;) {
        sem_wait(&run->wakes);
        for (struct kvb_item *item; (item = kvb_queue_pop(&run->queue)) != NULL;) {
            complete(item);
            if (++run->popped == run->close_after) {
                kvb_queue_close(&run->queue, drop, run);
                return;
            }
        }
    }
}

static void one_round(unsigned close_after)
{
    struct run *run = calloc(1, sizeof *run);
    pthread_t threads[PRODUCERS];
    struct producer producers[PRODUCERS];
    kvb_assert(run != NULL);
    run->close_after = close_after;
    sem_init(&run->wakes, 0, 0);
    kvb_queue_init(&run->queue, "stress", 64, wake, run);
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){run, i};
        int rc = pthread_create(&threads[i], NULL, produce, &producers[i]);
        kvb_assert(rc == 0);
    }
    consume(run);
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
    }
    unsigned total = run->popped + run->dropped + run->refused;
    for (int p = 0; p < PRODUCERS; p++) {
        for (int i = 0; i < ITEMS; i++) {
            if (run->entries[p][i].completed != 1) {
                fprintf(stderr, "item %d/%d completed %d times\n", p, i,
                        run->entries[p][i].completed);
                exit(1);
            }
        }
    }
    if (total != PRODUCERS * ITEMS || run->popped != close_after) {
        fprintf(stderr, "completed %u\n", total);
        exit(1);
    }
    kvb_queue_cleanup(&run->queue);
    sem_destroy(&run->wakes);
    free(run);
}

int main(void)
{
    for (unsigned round = 1; round <= ROUNDS; round++) {
        one_round(round * PRODUCERS * ITEMS / ROUNDS); /* the last one closes an empty queue */
    }
    printf("stress_queue: ok rounds=%d items=%d\n", ROUNDS, PRODUCERS * ITEMS);
    return 0;
}
