/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_HTTP_H
#define SERVER_HTTP_HTTP_H

#include "http/document.h"
#include "http/inbox.h"
#include "http/probe.h"
#include "http/tls.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * The REST server: one libmicrohttpd thread that never waits. A probe is answered at once from the
 * board; a control request is read whole, checked, suspended and given to `submit`, and its reply
 * resumes it. Every request gets exactly one answer, JSON with a Content-Length. A client that goes
 * away cancels nothing.
 *
 * What hostile or broken clients meet: ambiguous framing 400 and close; limits on target (414),
 * headers (431), bodies (413), bodies of all requests together (503), connections (the longest idle
 * one, or one that does not read its answer, is closed to make room, and half of them at most wait
 * for an answer (503), so a probe always gets in), requests of one address that wait (503) and time
 * (idle and slow ones are closed).
 */
#define KVP_HTTP_TARGET_MAX  (8u << 10)   /* bytes of path and query */
#define KVP_HTTP_HEADER_MAX  (32u << 10)  /* bytes of request line and headers together */
#define KVP_HTTP_HEADERS_MAX 100          /* header lines */
#define KVP_HTTP_BODIES_MAX  (256u << 20) /* bytes of all bodies held at one time */
#define KVP_HTTP_DISCARD_MAX (64u << 20)  /* refused bodies are read to their end up to this */
#define KVP_HTTP_SEND_NS     (5 * KVB_NS_PER_S) /* an answer that is read at all is read so soon */
#define KVP_HTTP_TOKEN_MAX   256                /* bytes of a token, NUL included */
#define KVP_HTTP_TOKENS_MAX  64
#define KVP_HTTP_CONNECTIONS 4096 /* default of connections_max */
#define KVP_HTTP_RECEIVE_S   300  /* default of receive_timeout_s */
#define KVP_HTTP_IDLE_S      150  /* default of idle_timeout_s; more than any client keeps one */
#define KVP_HTTP_STREAMS_MAX 64   /* streams at a time */
#define KVP_HTTP_STOP_MS     5000 /* slow readers get this long for their answer at stop */
/* libmicrohttpd's memory of one connection, which it clears after each request: it is to hold the
 * largest head that we judge, and the answer's, and not much else. */
#define KVP_HTTP_CONNECTION_MEM (40u << 10)

struct kvp_http_token {
    char secret[KVP_HTTP_TOKEN_MAX];
    enum kvp_role_needed role; /* ADMIN may do what READ may */
};

/* One finished request, for metrics. route NULL: no such route or not understood. */
struct kvp_http_answered {
    const struct kvp_route *route;
    unsigned http_status;
    uint64_t took_ns; /* from its request line to the last byte of the answer */
    const char *request_id;
    const char *instance;        /* "": none was named */
    const struct sockaddr *from; /* NULL: not known */
    const struct ucred *peer;    /* of a Unix socket; NULL: of none */
    uint32_t token; /* which, from 1 in the order they were given; 0: none was asked for, or it
                       was none */
};

/* A token of ours in this leaves Authorization to the engine's server; which instance is meant. */
#define KVP_PASS_TOKEN_HEADER    "X-Kvplane-Token"
#define KVP_PASS_INSTANCE_HEADER "X-Kvplane-Instance"

struct kvp_proxy;

/* What the server asks its program, on the HTTP thread; none of it may wait. */
struct kvp_http_ops {
    /* Answers a route of kind PROBE. instance: "" if not given. */
    void (*probe)(void *ctx, const struct kvp_route *route, const char *instance,
                  struct kvp_probe_answer *answer_p);
    /* The document of a route of kind STATIC, `name` what its {…} stands for; NULL: there is none.
     * May be NULL where there are no such routes. */
    const struct kvp_document *(*document)(const char *name);
    /* This process is going: answers close their connection. */
    bool (*stopping)(void *ctx);
    void (*answered)(void *ctx, const struct kvp_http_answered *answered); /* may be NULL */
    /* More of a stream (where STREAM): at most cap bytes of text, whole events; 0: nothing yet, and
     * kvp_http_wake() says when. *cursor begins as what the client saw last (Last-Event-ID, or
     * `after`). NULL: there are no such routes. */
    size_t (*stream)(void *ctx, uint64_t *cursor, char *text, size_t cap);
};

struct kvp_http_config {
    const char *address;                 /* numeric or a name; NULL: 127.0.0.1 */
    uint16_t port;                       /* 0: any, see kvp_http_port() */
    const char *unix_path;               /* instead of both; NULL: none */
    mode_t unix_mode;                    /* of that socket */
    const struct kvp_http_token *tokens; /* copied; ntokens 0: no token is asked for, and
                                            Authorization is not looked at */
    uint32_t ntokens;
    struct kvp_tls *tls;             /* NULL: none is spoken. It takes a reference of its own */
    uint32_t connections_max;        /* 0: KVP_HTTP_CONNECTIONS; never more than RLIMIT_NOFILE
                                        less fds_reserved allows, or a
                                        quarter of that */
    uint32_t connections_per_ip_max; /* 0: no limit of its own */
    uint32_t requests_each_max;      /* requests of one address that wait; 0: no limit of its own */
    uint32_t fds_reserved;           /* descriptors that the rest of the process may want */
    uint32_t servers;                /* that share the process's descriptors; 0: one */
    uint32_t idle_timeout_s;         /* 0: KVP_HTTP_IDLE_S */
    uint32_t receive_timeout_s;      /* for a request, or a TLS handshake, to be whole; 0:
                                        KVP_HTTP_RECEIVE_S */
    const struct kvb_clock *clock;
    const struct kvb_random *random; /* request ids */
    const struct kvp_route_table *routes;
    /* NULL, or where it is told since when the thread for large bodies has had one; 0: it has none.
     * Named bodies; a Unix socket's, bodies-unix. To kvp_rest_start() one of each. */
    _Atomic(uint64_t) *parsing_since_ns;
    struct kvp_proxy *proxy; /* where requests go that no route is there for; NULL: they are 404 */
    bool pass_free;          /* they need no token of ours */
    const char *pass_authorization; /* that they get if they bring none; NULL: none. Borrowed */
    struct kvp_inbox *inbox;        /* of the loop that answers routes of kind CONTROL */
    const struct kvp_http_ops *ops;
    void *ctx;
};

struct kvp_http;

/* INVALID: address or limits; BUSY: the port or the path is taken; UNSUPPORTED: this libmicrohttpd
 * has no TLS; IO, LIMIT, NO_MEMORY; each logged with its cause. */
KVB_MUST_USE kvb_status_t kvp_http_start(const struct kvp_http_config *config,
                                         struct kvp_http **http_p);
uint16_t kvp_http_port(const struct kvp_http *http);
uint32_t kvp_http_connections(const struct kvp_http *http); /* open now; any thread */
/* Any thread: these, at most KVP_HTTP_TOKENS_MAX and at least one, instead of those it has; copied.
 * Event streams that came with one that no longer allows them end, with a comment that says so.
 * BAD_STATE: it was started without, and asks for none. */
KVB_MUST_USE kvb_status_t kvp_http_set_tokens(struct kvp_http *http,
                                              const struct kvp_http_token *tokens,
                                              uint32_t ntokens);
/* Any thread: connections that begin from now on are shown this; it takes a reference of its own.
 * BAD_STATE: it was started without, and speaks no TLS. */
KVB_MUST_USE kvb_status_t kvp_http_set_tls(struct kvp_http *http, struct kvp_tls *tls);
/* Any thread: streams have more to say. beat: those that have not say that they live, so that
 * clients, proxies and this server notice when the other end is gone; every few seconds. */
void kvp_http_wake(struct kvp_http *http, bool beat);

/*
 * Stops listening, waits up to KVP_HTTP_STOP_MS until the answers that are owed were sent, and
 * closes everything. Every submitted request must have been replied to before or be replied to
 * meanwhile by another thread: the program closes its inbox first (kvp_inbox_close()), which
 * replies 503 to what is open and refuses what still comes.
 */
void kvp_http_stop(struct kvp_http *http);

#endif
