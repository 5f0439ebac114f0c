/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STORE_CLIENT_H
#define STORE_CLIENT_H

#include "base/id.h"
#include "base/sched.h"
#include "base/wire.h"
#include "store/core.h"
#include "transport/transport.h"

/*
 * The daemon's way to the store (DESIGN.md section 12, seam 1): asynchronous batches, spread over
 * the nodes by placement and answered entry by entry, also when the only node is this process
 * itself. A node that does not answer is a miss within its bound (UNAVAILABLE), never an error of
 * the batch.
 *
 * Knows keys, tenants and lineages; knows nothing of stays, tokens or engines: whoever calls has
 * checked those, and checks them again when the answer comes. Loop thread only. A batch completes
 * exactly once, never inside submit.
 */
struct kvs_client;
struct kvs_node;

/* Whose objects, and what bytes are interchangeable with what. Both are part of every stored key.
 */
struct kvs_space {
    char tenant[64];
    char layout[256];
};

enum kvs_batch_op {
    KVS_EXISTS, /* status OK or NOT_FOUND per item; with hold: found objects are held */
    KVS_PUT,    /* OK, EXISTS (the first stays), NO_SPACE, QUOTA, TOO_LARGE, GENERATION, TIMEOUT,
                   CANCELED, FENCED (retired), DRAINING (the next one goes elsewhere) */
    KVS_GET,    /* OK, NOT_FOUND, CHECKSUM, TICKET, GENERATION, TIMEOUT, CANCELED; TOO_LARGE: stored
                   length differs */
    KVS_REMOVE, /* asked of every node, wherever an object may have been placed. OK, NOT_FOUND: it
                   is nowhere any more; BUSY: read or pinned, without force; UNAVAILABLE or another
                   failure: a node that did not answer may have it */
    KVS_PIN, /* asked of every node. OK: done where it was found; NOT_FOUND; UNAVAILABLE or another
                failure: a node that did not answer may have it, the others do not */
};
#define KVS_BATCH_OPS (KVS_PIN + 1)

struct kvs_item {
    /* set by the caller; spans and slices borrowed until done */
    struct kvb_span key;       /* 1 to 512 bytes */
    struct kvb_span placement; /* empty: the key */
    uint32_t group;
    uint32_t part;
    const struct kvt_slice *slices; /* PUT, GET */
    uint32_t nslices;
    /* the answer */
    kvb_status_t status;
    uint64_t len; /* EXISTS, GET: bytes stored */
};

/* Who holds what a lookup promised (DESIGN.md section 5): ends at get, discard, or its bound. */
struct kvs_hold {
    uint64_t instance; /* 0: no hold */
    uint64_t request;
};

struct kvs_batch {
    /* set by the caller */
    enum kvs_batch_op op;
    const struct kvs_space *space; /* borrowed until done */
    struct kvb_lineage lineage;
    struct kvs_hold hold; /* EXISTS: take; GET: give back what is got */
    bool force;           /* REMOVE */
    enum kvs_pin pin;     /* PUT, PIN: how what is stored then stays (store/core.h) */
    uint64_t deadline_ns;
    struct kvs_item *items; /* borrowed until done */
    uint32_t nitems;
    void (*done)(struct kvs_batch *batch); /* every item has its status */

    /* the client's own */
    struct {
        struct kvs_client *client;
        struct kvb_list link;
        void *state;
    } impl;
};

KVB_MUST_USE kvb_status_t kvs_client_create(struct kvb_sched *sched, struct kvs_client **client_p);
/* No batch in flight. Nodes whose removal is not over yet: removed does not come any more. */
void kvs_client_destroy(struct kvs_client *client);

/*
 * When a node of another process is no longer worth asking. A call that it has not answered by its
 * bound is stopped (UNAVAILABLE, TIMEOUT), long before the batch's deadline; a call that fails by
 * the node's fault (UNAVAILABLE, DISCONNECTED, TIMEOUT, PROTOCOL, REFUSED, CHECKSUM, IO, INTERNAL;
 * not where it was the memory of an engine that failed) counts against it. A sick node has no
 * place: puts, gets and lookups go where they would without it, at once. 0: the default.
 */
struct kvs_client_health {
    uint32_t lookup_ms;    /* bound of lookups and removes; 500 */
    uint32_t transfer_ms;  /* of puts and gets, beside the time for their bytes; 5,000 */
    uint32_t bytes_per_ms; /* the slowest link worth using, for that time; 8,192 (8 MB/s) */
    uint32_t failures;     /* so many in a row of one operation make a node sick; 3 */
    uint32_t backoff_ms;   /* how long a sick one is left alone, each time; 2,000 */
};
/* Before the first node. */
void kvs_client_set_health(struct kvs_client *client, const struct kvs_client_health *health);

/* A node under a name; borrowed. weight: its capacity, for placement. EXISTS (the name), LIMIT,
 * NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_client_add_node(struct kvs_client *client, const char *name,
                                              struct kvs_node *node, uint64_t weight);
/* Changes what add_node said. readable only: lookups, gets and removes still go there, puts go
 * where they would without it (it leaves, DESIGN.md section 10). NOT_FOUND. */
KVB_MUST_USE kvb_status_t kvs_client_set_node(struct kvs_client *client, const char *name,
                                              uint64_t weight, bool readable_only);
/* Nothing goes there any more, and its name is free; its calls in flight are stopped (UNAVAILABLE).
 * removed, later, once none is left: the node may be destroyed. NOT_FOUND: removed does not come.
 */
KVB_MUST_USE kvb_status_t kvs_client_remove_node(struct kvs_client *client, const char *name,
                                                 void (*removed)(void *ctx, struct kvs_node *node),
                                                 void *ctx);

/* For status and metrics. */
struct kvs_client_node {
    const char *name;
    struct kvs_node *node;
    uint64_t weight;
    bool readable_only;
    bool sick;
    uint64_t sick_ns;          /* since when */
    uint64_t sick_times;       /* so far */
    uint64_t calls;            /* so far; those in flight, too */
    uint64_t failures;         /* calls that failed by its fault, so far */
    kvb_status_t last_failure; /* of those; OK: there was none */
    uint64_t failed_ns;        /* when that was */
    uint32_t in_flight;
};
/* Each node, in no order; each must not call into the client. */
void kvs_client_each_node(const struct kvs_client *client,
                          void (*each)(void *arg, const struct kvs_client_node *node), void *arg);

struct kvs_node_call;
/* For metrics: a part of a PUT or GET that one node had has ended, every item of it with its
 * status; took_ns since it was asked. Before the first batch. */
void kvs_client_on_moved(struct kvs_client *client,
                         void (*moved)(void *ctx, struct kvs_node *node,
                                       const struct kvs_node_call *call, uint64_t took_ns),
                         void *ctx);

/* Taken only on OK. AGAIN: too much in flight, the completion of any batch makes room. INVALID: no
 * items, or no tenant. NO_MEMORY. */
KVB_MUST_USE kvb_status_t kvs_client_submit(struct kvs_client *client, struct kvs_batch *batch);

/* The whole batch to that node, wherever its items are placed. NOT_FOUND: there is none of that
 * name. UNAVAILABLE: it is sick, and left alone for now. Else as submit. */
KVB_MUST_USE kvb_status_t kvs_client_submit_to(struct kvs_client *client, const char *name,
                                               struct kvs_batch *batch);

/* Items not begun complete CANCELED, running transfers are stopped by the deadline; done still
 * comes. Idempotent; a batch that is done already: no effect. */
void kvs_client_cancel(struct kvs_batch *batch, uint64_t stop_deadline_ns);

/* Gives back what a request still holds, on every node. */
void kvs_client_discard(struct kvs_client *client, struct kvs_hold hold);
/* Gives back everything an instance holds. */
void kvs_client_discard_instance(struct kvs_client *client, uint64_t instance);

#endif
