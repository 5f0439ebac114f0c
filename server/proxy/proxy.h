/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_PROXY_PROXY_H
#define SERVER_PROXY_PROXY_H

#include "base/clock.h"
#include "base/link.h"
#include "base/metrics.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Requests that are not ours go through to the engine's own HTTP server, and its answers back, as
 * they come: bounded buffers, and whoever is faster waits. A thread of its own drives libcurl; the
 * HTTP server (http/pass.c) puts what its clients send into a call and takes the answer out of it.
 *
 * A target is one such server, by the name of the instance that it is of. Which of them may take
 * traffic is told by whoever knows (kvp_proxy_tell()), so no request ever asks the loop.
 */
struct kvp_proxy;

/* What a request meets that would make an engine compute, where the engine does not run. */
enum kvp_gate {
    KVP_GATE_PASS,  /* it goes through: the server does with it what it does */
    KVP_GATE_HOLD,  /* it waits here until the engine runs, bounded in number and time */
    KVP_GATE_REFUSE /* 503, with what the engine's state is */
};
bool kvp_gate_parse(const char *text, enum kvp_gate *gate_p); /* pass, hold, refuse */

enum kvp_target_state {
    KVP_TARGET_RUNNING, /* also where nobody has told yet */
    KVP_TARGET_PAUSED,
    KVP_TARGET_ASLEEP, /* memory is not resident, or it is degraded: nothing can be computed */
    /* Nobody speaks for it any more: it is in the state it was in, and the last choice. */
    KVP_TARGET_GONE
};

#define KVP_PROXY_REASON_MAX  128
#define KVP_PROXY_TARGETS_MAX 64

struct kvp_proxy_config {
    const struct kvb_clock *clock;
    struct kvb_metrics *metrics; /* families KVP_M_UPSTREAM_… */
    enum kvp_gate while_paused;
    enum kvp_gate while_asleep;
    uint32_t requests_max; /* at a time, held ones among them; further ones: 503 */
    uint32_t hold_max;
    uint64_t hold_ms;
    uint32_t idle_max;   /* connections kept open for the next requests, of all targets */
    uint64_t connect_ms; /* bound of connecting, and of TLS */
    const char *ca_file; /* of https; "": the system's */
    uint64_t idle_ms;    /* bound between two bytes of a server; 0: none */
    uint64_t receive_ms; /* bound of waiting for KVP_PROXY_SMALL more bytes of a client; 0: none */
};

/* Its thread runs. NO_MEMORY, LIMIT, IO; logged. */
KVB_MUST_USE kvb_status_t kvp_proxy_create(const struct kvp_proxy_config *config,
                                           struct kvp_proxy **proxy_p);
/* Any thread: nothing new passes, and what is held is refused; what is under way goes on. */
void kvp_proxy_drain(struct kvp_proxy *proxy);
/* Any thread but its own: nothing passes any more; what waits is refused, and what is under way is
 * broken off (an answer that has begun ends as a broken one). When it returns nobody sleeps, or
 * will (kvp_proxy_waiter). Idempotent. */
void kvp_proxy_close(struct kvp_proxy *proxy);
/* Every call has ended. NULL: nothing. */
void kvp_proxy_destroy(struct kvp_proxy *proxy);

/* ---- targets; any thread ---- */

/*
 * The server of an instance; again: from now on that one. url: http://HOST[:PORT] or https://, and
 * nothing behind it. name "": the server of all instances that have no target of their own.
 * INVALID: the url; LIMIT: too many targets; NO_MEMORY; logged.
 */
KVB_MUST_USE kvb_status_t kvp_proxy_set_target(struct kvp_proxy *proxy, const char *name,
                                               const char *url);
/* What it is answering goes on. Nothing if there is none of that name. */
void kvp_proxy_remove_target(struct kvp_proxy *proxy, const char *name);
/*
 * The state of an instance, target or not; reason: why it takes no traffic, and what ends that if
 * it is known, said to whom the gate refuses; copied (and cut). A target named "" is in the worst
 * state of all instances told.
 */
void kvp_proxy_tell(struct kvp_proxy *proxy, const char *instance, enum kvp_target_state state,
                    const char *reason);

/* ---- calls ---- */

/* Would it make an engine compute? method and path of a request; what is not known does not. */
bool kvp_proxy_generates(const char *method, const char *path);
/* Might it change anything of an engine's server? A generation does not. */
bool kvp_proxy_changes(const char *method, const char *path);

/* A name and its value, which point into one text. */
struct kvp_proxy_header {
    const char *name;
    const char *value;
};

#define KVP_PROXY_LENGTH_UNKNOWN UINT64_MAX  /* of a body; it is sent in chunks */
#define KVP_PROXY_SMALL          (64u << 10) /* a body of up to so many bytes is sent when whole */

/* One request. All of it is copied. */
struct kvp_proxy_head {
    const char *method;
    const char *target;                     /* path and query */
    const char *instance;                   /* "": any */
    const struct kvp_proxy_header *headers; /* those that are to go, in their order */
    uint32_t nheaders;
    uint64_t body_len; /* KVP_PROXY_LENGTH_UNKNOWN: chunked; 0: it has none */
    bool has_length;   /* of an empty body that said so */
    int client_fd;     /* looked at for whether the client is still there; -1: it is not */
};

/* Where a call cannot be, or has failed before its answer began. */
struct kvp_proxy_refusal {
    unsigned http_status;
    unsigned retry_after_s; /* 0: none */
    const char *param;      /* NULL: none */
    const char *reason;     /* a word, for metrics */
    char message[384];
};

struct kvp_proxy_call;

/* How the one who has a call waits. Both under a lock of the call, so they must not call back. */
struct kvp_proxy_waiter {
    void (*sleep)(void *arg); /* inside kvp_proxy_send(), _answer(), _read(): it is to wait */
    void (*wake)(void *arg);  /* any thread, once after each sleep: it is to ask again */
    void *arg;
};

/* The way of one call, on one thread: begin, send …, sent, answer, read …, end. False: it is
 * refused. */
KVB_MUST_USE bool kvp_proxy_begin(struct kvp_proxy *proxy, const struct kvp_proxy_head *head,
                                  const struct kvp_proxy_waiter *waiter,
                                  struct kvp_proxy_call **call_p,
                                  struct kvp_proxy_refusal *refusal_p);

/* How much of the body was taken; less than len: it waits, and then the rest is offered again.
 * Once the answer is decided the rest of the body is of no use, and all of it is taken. */
KVB_MUST_USE size_t kvp_proxy_send(struct kvp_proxy_call *call, const char *data, size_t len);
/* Bytes of a body that came when it was of no use any more. */
uint64_t kvp_proxy_dropped(struct kvp_proxy_call *call);
void kvp_proxy_sent(struct kvp_proxy_call *call); /* that was all of it */

enum kvp_proxy_answered {
    KVP_PROXY_WAITS,
    KVP_PROXY_ANSWERS, /* *answer_p, whose texts live as long as the call */
    KVP_PROXY_REFUSES, /* *refusal_p */
    KVP_PROXY_LEFT     /* the client has gone, or the program is going: nobody needs an answer */
};
struct kvp_proxy_answer {
    unsigned http_status;
    const struct kvp_proxy_header *headers; /* without those of this connection and its framing */
    uint32_t nheaders;
    uint64_t body_len; /* KVP_PROXY_LENGTH_UNKNOWN: until the end */
    const char *body;  /* all of it is there already; NULL: kvp_proxy_read() */
};
KVB_MUST_USE enum kvp_proxy_answered kvp_proxy_answer(struct kvp_proxy_call *call,
                                                      struct kvp_proxy_answer *answer_p,
                                                      struct kvp_proxy_refusal *refusal_p);

#define KVP_PROXY_READ_WAIT   0
#define KVP_PROXY_READ_END    (-1)
#define KVP_PROXY_READ_BROKEN (-2) /* the answer is not whole, and the client must see that */
KVB_MUST_USE ssize_t kvp_proxy_read(struct kvp_proxy_call *call, char *data, size_t cap);

/* The call is gone, and if its answer was not whole it is broken off at the server, too. It
 * is not woken any more. */
void kvp_proxy_end(struct kvp_proxy_call *call);

#endif
