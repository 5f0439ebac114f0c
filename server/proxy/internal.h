/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_PROXY_INTERNAL_H
#define SERVER_PROXY_INTERNAL_H

#include "proxy/fields.h"
#include "proxy/proxy.h"

#include "base/list.h"
#include "base/mutex.h"

#include <curl/curl.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/*
 * What the files of this folder share. A call has two owners, the thread that began it (the HTTP
 * server's) and the proxy's own, and is gone when both have let go of it: kvp_proxy_end() and
 * `finished`. Order of locks: a call's, then the proxy's.
 */
#define KVP_PROXY_BUFFER (128u << 10) /* bytes on the way, of each direction of a call */

/* A ring that grows; empty, it begins at its front again, so that little is little memory. */
struct kvp_ring {
    char *data; /* malloc'd with its first byte */
    size_t cap, start, len;
};

struct kvp_target {
    struct kvb_list link;    /* guarded by proxy->lock: in proxy->targets; empty: it was removed */
    char name[KVB_NAME_MAX]; /* immutable */
    char *url;               /* immutable */
    uint32_t calls;          /* guarded by proxy->lock: that are with it, running or held for it */
    uint64_t unreached_ns;   /* guarded by proxy->lock: when it last was not reached; 0: never */
};

enum kvp_post {
    KVP_POST_BEGIN = 1,
    KVP_POST_BODY = 2, /* more of it, or its end */
    KVP_POST_ROOM = 4, /* for more of the answer */
    KVP_POST_END = 8
};

struct kvp_proxy_call {
    /* immutable once it has begun */
    struct kvp_proxy *proxy;
    struct kvp_proxy_waiter waiter;
    char *method;
    char *path; /* the target of the request line */
    char instance[KVB_NAME_MAX];
    struct curl_slist *lines; /* in the one piece of memory of the call */
    uint64_t body_len;
    bool has_length;
    bool generates;
    bool repeatable; /* that it may arrive twice */
    bool small;      /* its body is sent when it is whole */
    int client_fd;
    /* guarded by proxy->lock */
    struct kvb_list posted; /* in proxy->posted; empty: it is not */
    unsigned posts;         /* kvp_post */
    struct kvp_target *target;
    uint64_t generation; /* of states and targets, when it was admitted */
    bool finished;       /* the proxy's thread has let go of it */
    /* guarded by lock */
    struct kvb_mutex lock;
    bool sleeps; /* the waiter does */
    bool ended;
    bool watched; /* client_fd is in the epoll set */
    bool sent;    /* the body is whole */
    uint64_t dropped;
    struct kvp_ring up, down;
    bool starved; /* libcurl waits for more of the body */
    bool stuffed; /* libcurl waits for room in down */
    bool headed;  /* the answer's head is there */
    bool whole;   /* the answer is */
    bool broken;  /* it never will be */
    bool left;
    bool refused;
    struct kvp_proxy_refusal refusal;
    unsigned http_status;
    struct kvp_fields fields;
    struct kvp_proxy_header *headers; /* of the answer, for who asked; malloc'd */
    /* the proxy's thread alone */
    struct kvb_list link;  /* in running or held */
    struct kvb_list dirty; /* in dirty; empty: it is not */
    CURL *easy;            /* NULL: there is no transfer */
    uint64_t begun_ns;
    uint64_t tried_ns; /* when it first went to a server */
    uint64_t byte_ns; /* the last byte either way, or the end of a wait that was not the server's */
    uint64_t starved_ns; /* since when its client is waited for; 0: it is not */
    uint64_t waited_ns;  /* for its client, before that, and for less than KVP_PROXY_SMALL bytes: */
    uint64_t fed;
    bool held;
    bool over; /* it is finished when what it has become was told */
};

struct kvp_told {
    char instance[KVB_NAME_MAX];
    enum kvp_target_state state; /* that it was last known to be in; not GONE */
    bool gone;
    char reason[KVP_PROXY_REASON_MAX];
};
#define KVP_PROXY_TOLD_MAX 256

struct kvp_proxy {
    struct kvp_proxy_config config; /* immutable */
    pthread_t thread;
    int epoll, woken;   /* immutable */
    atomic_bool closed; /* nobody sleeps from now on; set under lock */
    sem_t all_awake;    /* nor does anybody */
    /* guarded by lock */
    struct kvb_mutex lock;
    struct kvb_list posted;
    bool asleep; /* its thread waits, and must be woken */
    bool drains, ends;
    uint64_t generation; /* of states and targets */
    struct kvb_list targets;
    uint32_t ntargets;
    struct kvp_told told[KVP_PROXY_TOLD_MAX];
    uint32_t ntold;
    uint32_t calls, nheld;
    /* the thread alone */
    CURLM *multi;
    struct kvb_list running, held, dirty;
    uint64_t now_ns;   /* of this turn */
    uint64_t timer_ns; /* libcurl's */
    uint8_t *watched;  /* by descriptor: what of it is in the epoll set, and OURS, IDLE */
    uint32_t nwatched;
    uint64_t tick_ns;
    bool closing;
    uint64_t seen; /* generation when held ones were looked at */
    CURL **spare;
    uint32_t nspare;
    uint64_t sent_bytes, received_bytes; /* not counted yet */
};

/* ---- target.c ---- */

enum kvp_admission { KVP_ADMITTED, KVP_HOLD, KVP_REFUSED };
/* Which target, and may it go there now? ADMITTED: *target_p, counted. HOLD, REFUSED: why. */
enum kvp_admission kvp_proxy_admit_locked(struct kvp_proxy *proxy, const char *instance,
                                          bool generates, struct kvp_target **target_p,
                                          struct kvp_proxy_refusal *refusal_p)
    KVB_REQUIRES(proxy->lock);
void kvp_proxy_put_target_locked(struct kvp_proxy *proxy, struct kvp_target *target)
    KVB_REQUIRES(proxy->lock);
const char *kvp_target_label(const struct kvp_target *target); /* of metrics */

/* ---- call.c ---- */

/* What it took: all, where it has less than max. */
size_t kvp_ring_put(struct kvp_ring *ring, size_t max, const char *data, size_t len);
size_t kvp_ring_take(struct kvp_ring *ring, char *data, size_t cap);
/* Tells the proxy's thread. */
void kvp_call_post(struct kvp_proxy_call *call, enum kvp_post post);
void kvp_call_free(struct kvp_proxy_call *call); /* nobody has it */
/* reason: a word, for metrics. */
void kvp_refusal_set(struct kvp_proxy_refusal *refusal, unsigned http_status,
                     unsigned retry_after_s, const char *reason, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
extern const struct kvp_proxy_refusal kvp_refusal_memory, kvp_refusal_closed;

/* ---- transfer.c; the proxy's thread ---- */

/* Begins it at its target; if it cannot, the call is refused. */
void kvp_transfer_start(struct kvp_proxy_call *call);
/* There is more to send, or room for more. */
void kvp_transfer_go_on(struct kvp_proxy_call *call);
void kvp_transfer_stop(struct kvp_proxy_call *call); /* nothing if there is none */
/* Those that libcurl says have ended. */
void kvp_transfers_ended(struct kvp_proxy *proxy);
void kvp_transfers_cleanup(struct kvp_proxy *proxy);

/* ---- proxy.c; the proxy's thread ---- */

/* libcurl opens and closes a socket of a connection. */
curl_socket_t kvp_proxy_open_socket(void *proxy, curlsocktype purpose,
                                    struct curl_sockaddr *address);
int kvp_proxy_close_socket(void *proxy, curl_socket_t fd);
/* Its waiter is to look at it, when this turn's work is done. over: nothing more comes. */
void kvp_call_touch(struct kvp_proxy_call *call, bool over);
/* Its target was not reached, and nothing of it was sent: another one takes it. False: none can. */
bool kvp_call_elsewhere(struct kvp_proxy_call *call);
/* Ends it from our side: refused if its answer has not begun, else broken. error: a word, for
 * metrics; NULL: it is none. */
void kvp_call_fail(struct kvp_proxy_call *call, const struct kvp_proxy_refusal *refusal,
                   const char *error);
/* A request that was not let through. Any thread. */
void kvp_proxy_count_refused(struct kvp_proxy *proxy, const struct kvp_proxy_refusal *refusal);

#endif
