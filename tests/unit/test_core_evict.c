/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes when room is needed, and what that is worth: a core that is far too small. */
#include "core_fixture.h"

#include <criterion/criterion.h>

#define PAGE KVS_CORE_PAGE

static void is(kvb_status_t status, kvb_status_t want)
{
    cr_assert_eq(status, want, "%s", kvb_status_text(status));
}

static void valid(struct shard *s)
{
    const char *broken = kvs_core_validate(s->core);
    cr_assert_null(broken, "%s", broken);
}

Test(core_evict, what_was_put_just_now_is_not_what_goes_next)
{
    enum { N = 64, PUTS = 6 * N };
    for (uint64_t read = 0; read <= N; read += 4) { /* where the hand comes to stand */
        struct shard s;
        shard_init(&s, N);
        for (uint64_t i = 0; i < N + PUTS; i++) {
            is(shard_put(&s, "a", i, PAGE), KVB_OK);
            if (i < read) {
                is(shard_find(&s, "a", i), KVB_OK);
                is(shard_release(&s), KVB_OK);
            }
            for (uint64_t k = i < N / 2 ? 0 : i - N / 2 + 1; k <= i; k++) {
                cr_assert(shard_has(&s, "a", k), "%d read, put %d: %d", (int)read, (int)i, (int)k);
            }
        }
        valid(&s);
        for (uint64_t i = 0; i < N; i++) {
            cr_assert(!shard_has(&s, "a", i), "once read is not kept for ever: %d", (int)i);
        }
        shard_cleanup(&s);
    }
}

/* ---- how often what is asked for is there, against the textbook ---- */

enum { TRACE_KEYS = 4096, TRACE_ROOM = 128, TRACE_LEN = 40000 };

static uint32_t trace[TRACE_LEN];

/* Few keys are asked for often, many seldom. */
static void trace_zipf(struct sim_sched *sim, uint32_t from, uint32_t to, uint32_t first)
{
    static double sums[TRACE_KEYS / 2];
    double sum = 0;
    for (uint32_t i = 0; i < TRACE_KEYS / 2; i++) {
        sum += 1.0 / (i + 1);
        sums[i] = sum;
    }
    for (uint32_t i = from; i < to; i++) {
        double at = (double)sim_below(sim, 1u << 30) / (1u << 30) * sum;
        uint32_t low = 0, high = TRACE_KEYS / 2 - 1;
        while (low < high) {
            uint32_t mid = (low + high) / 2;
            if (sums[mid] < at) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        trace[i] = first + low;
    }
}

static void trace_one_distribution(struct sim_sched *sim)
{
    trace_zipf(sim, 0, TRACE_LEN, 0);
}

static void trace_that_shifts(struct sim_sched *sim)
{
    trace_zipf(sim, 0, TRACE_LEN / 2, 0);
    trace_zipf(sim, TRACE_LEN / 2, TRACE_LEN, TRACE_KEYS / 2);
}

/* Conversations, some at a time: each comes back with all its blocks and a few more, ends
 * some day and is never heard of again. */
static void trace_conversations(struct sim_sched *sim)
{
    enum { TALKS = 16, TURNS = 6 };
    uint32_t begin[TALKS] = {0}, len[TALKS] = {0}, turns[TALKS] = {0}, next = 0;
    for (uint32_t n = 0; n < TRACE_LEN;) {
        uint32_t t = (uint32_t)sim_below(sim, TALKS);
        if (turns[t] == 0) {
            begin[t] = next;
            next = (next + 32) % TRACE_KEYS;
            len[t] = 0;
            turns[t] = 1 + (uint32_t)sim_below(sim, TURNS);
        }
        turns[t]--;
        len[t] += 1 + (uint32_t)sim_below(sim, 5);
        for (uint32_t i = 0; i < len[t] && n < TRACE_LEN; i++) {
            trace[n++] = (begin[t] + i) % TRACE_KEYS;
        }
    }
}

static double hits_of_core(void)
{
    struct shard s;
    uint32_t hits = 0;
    shard_init(&s, TRACE_ROOM);
    for (uint32_t i = 0; i < TRACE_LEN; i++) {
        if (shard_find(&s, "a", trace[i]) == KVB_OK) {
            is(shard_release(&s), KVB_OK);
            hits++;
        } else {
            is(shard_put(&s, "a", trace[i], PAGE), KVB_OK);
        }
    }
    valid(&s);
    shard_cleanup(&s);
    return (double)hits / TRACE_LEN;
}

/* Least recently put, or used. */
static double hits_of_textbook(bool used)
{
    static uint32_t held[TRACE_KEYS]; /* since when; 0: it is not there */
    uint32_t hits = 0;
    memset(held, 0, sizeof held);
    for (uint32_t i = 0, n = 0; i < TRACE_LEN; i++) {
        bool hit = held[trace[i]] != 0;
        hits += hit;
        if (!hit && n++ >= TRACE_ROOM) {
            uint32_t oldest = 0;
            for (uint32_t k = 1; k < TRACE_KEYS; k++) {
                oldest = held[k] != 0 && (held[oldest] == 0 || held[k] < held[oldest]) ? k : oldest;
            }
            held[oldest] = 0;
        }
        if (!hit || used) {
            held[trace[i]] = i + 1;
        }
    }
    return (double)hits / TRACE_LEN;
}

Test(core_evict, as_much_is_found_as_where_the_least_recently_used_goes)
{
    static const struct {
        const char *name;
        void (*make)(struct sim_sched *sim);
        double of_lru, of_fifo; /* at least */
    } cases[] = {
        {"one distribution", trace_one_distribution, 1.05, 1.15},
        {"one that shifts", trace_that_shifts, 1.05, 1.15},
        {"conversations", trace_conversations, 0.97, 1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sim_sched sim;
        sim_init(&sim, sim_seed(11));
        cases[i].make(&sim);
        double ours = hits_of_core(), lru = hits_of_textbook(true), fifo = hits_of_textbook(false);
        fprintf(stderr, "%s: %.3f of what is asked for is found, lru %.3f, fifo %.3f\n",
                cases[i].name, ours, lru, fifo);
        cr_assert_geq(ours, cases[i].of_lru * lru, "%s", cases[i].name);
        cr_assert_geq(ours, cases[i].of_fifo * fifo, "%s", cases[i].name);
        sim_cleanup(&sim);
    }
}
