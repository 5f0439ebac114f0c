/* SPDX-License-Identifier: Apache-2.0 */
#include "base/queue.h"

#include <criterion/criterion.h>

#include <signal.h>

struct numbered {
    struct kvb_item item;
    int completed;
};

static int wakes;

static void count_wake(void *ctx)
{
    struct kvb_queue *queue = ctx;
    cr_assert_not(kvb_mutex_held(&queue->lock), "woken without the lock");
    wakes++;
}

static struct kvb_queue *dropping; /* may be looked at from drop */

static void drop(void *ctx, struct kvb_item *item)
{
    int *dropped = ctx;
    struct numbered *numbered = kvb_container_of(item, struct numbered, item);
    numbered->completed++;
    ++*dropped;
    cr_assert_eq(kvb_queue_put(dropping, item), KVB_ERR_CANCELED, "closed before the first drop");
    kvb_list_init(&item->link);
}

Test(queue, items_come_out_in_order_and_wake_once_per_filling)
{
    struct kvb_queue queue;
    struct numbered items[4] = {{{{NULL, NULL}}, 0}};
    kvb_queue_init(&queue, "test", 3, count_wake, &queue);
    wakes = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(kvb_queue_put(&queue, &items[i].item), KVB_OK);
            cr_assert_eq(kvb_queue_len(&queue), i + 1);
        }
        cr_assert_eq(kvb_queue_put(&queue, &items[3].item), KVB_ERR_AGAIN);
        cr_assert_eq(wakes, round + 1);
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(kvb_queue_pop(&queue), &items[i].item);
        }
        cr_assert_null(kvb_queue_pop(&queue));
    }
    kvb_queue_cleanup(&queue);
}

Test(queue, close_gives_every_item_left_to_drop_once)
{
    struct kvb_queue queue;
    struct numbered items[3] = {{{{NULL, NULL}}, 0}};
    int dropped = 0;
    kvb_queue_init(&queue, "test", 3, NULL, NULL);
    dropping = &queue;
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(kvb_queue_put(&queue, &items[i].item), KVB_OK);
    }
    cr_assert_eq(kvb_queue_pop(&queue), &items[0].item);
    kvb_queue_close(&queue, drop, &dropped);
    cr_assert_eq(dropped, 2);
    cr_assert_eq(items[0].completed, 0, "it was the consumer's");
    cr_assert_eq(items[1].completed, 1);
    cr_assert_eq(items[2].completed, 1);
    cr_assert_eq(kvb_queue_put(&queue, &items[0].item), KVB_ERR_CANCELED);
    kvb_queue_close(&queue, drop, &dropped);
    cr_assert_eq(dropped, 2);
    cr_assert_eq(kvb_queue_len(&queue), 0);
    kvb_queue_cleanup(&queue);
}

Test(mutex, it_knows_its_owner_and_counts)
{
    struct kvb_mutex mutex;
    kvb_mutex_init(&mutex, "test");
    cr_assert_not(kvb_mutex_held(&mutex));
    kvb_mutex_lock(&mutex);
    cr_assert(kvb_mutex_held(&mutex));
    kvb_mutex_unlock(&mutex);
    cr_assert_not(kvb_mutex_held(&mutex));
    cr_assert_eq(mutex.locked, 1);
    cr_assert_eq(mutex.contended, 0);
    kvb_mutex_cleanup(&mutex);
}

Test(mutex, locking_what_one_holds_is_an_assertion, .signal = SIGABRT)
{
    struct kvb_mutex mutex;
    kvb_mutex_init(&mutex, "test");
    kvb_mutex_lock(&mutex);
    kvb_mutex_lock(&mutex);
}

Test(mutex, unlocking_what_one_does_not_hold_is_an_assertion, .signal = SIGABRT)
{
    struct kvb_mutex mutex;
    kvb_mutex_init(&mutex, "test");
    kvb_mutex_unlock(&mutex);
}
