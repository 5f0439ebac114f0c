/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_HTTP_INTERNAL_H
#define SERVER_HTTP_INTERNAL_H

#include "http/connections.h"
#include "http/framing.h"
#include "http/http.h"

#include "base/id.h"

#include <microhttpd.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/* What the files of this folder share; see exchange.c for who owns what when. */

/* Where a request is, and whose the exchange is meanwhile. */
enum kvp_phase {
    KVP_HEAD,      /* libmicrohttpd reads the headers */
    KVP_BODY,      /* it reads the body; an answer may be decided already */
    KVP_PARSING,   /* suspended; the parser's until it resumes */
    KVP_SUBMITTED, /* suspended; control's until it replies */
    KVP_PASSING,   /* its answer comes from the engine's server; suspended while it does not */
    KVP_ANSWERING  /* libmicrohttpd sends the answer */
};

#define KVP_EXCHANGE_MAGIC 0x6b76685eu
#define KVP_SPARE_MAX      16 /* exchanges kept for the next requests */

struct kvp_exchange {
    uint32_t magic;
    enum kvp_phase phase;
    struct kvp_http *http;
    struct MHD_Connection *mhd;
    struct kvp_connection *connection;
    uint64_t begun_ns;
    const char *raw_target; /* libmicrohttpd's, only to be compared */
    size_t raw_target_len;
    char *target; /* path and query as sent: short_target, or owned */
    char short_target[128];
    const char *query; /* in target; NULL: none */
    struct kvp_framing framing;
    size_t body_cap;
    uint64_t received;           /* bytes of body, kept or dropped */
    bool owed;                   /* counted in http->owed */
    bool close;                  /* after the answer */
    uint32_t token;              /* that it came with, from 1 */
    uint32_t judged;             /* http->tokens_read then */
    bool needs_reset;            /* only that tells the client that its answer is not whole */
    struct kvp_proxy_call *pass; /* NULL: it is not passed on */
    /* What was decided, by a check or by reply(): the answer. http_status 0: nothing yet. */
    unsigned http_status;
    json_t *json;
    unsigned retry_after_s;
    const char *extra_name; /* one more header */
    const char *extra_value;
    struct kvp_request request;
    struct {                  /* guarded by http->lock */
        struct kvb_list link; /* in http->streams; empty: it is none */
        uint64_t cursor;
        bool sleeps; /* suspended until there is more */
        bool beat;   /* a sign of life is due */
        bool ended;  /* HTTP thread only: its token does not allow it any more */
    } stream;
};

struct kvp_http {
    /* immutable after start */
    struct MHD_Daemon *mhd;
    struct kvp_http_config config;
    uint16_t port;
    pthread_t parser; /* reads large bodies */
    /* HTTP thread only */
    struct kvp_connections connections;
    struct kvp_exchange *spare[KVP_SPARE_MAX]; /* exchanges that were */
    uint32_t nspare;
    uint32_t added;    /* connections given to libmicrohttpd and not begun by it */
    uint64_t added_ns; /* the last of them */
    uint64_t bodies;   /* bytes of all request bodies */
    struct kvb_id id;  /* the last request's that brought none */
    /* any thread */
    _Atomic(uint64_t) parsing_since_ns; /* if nobody else wants to know */
    struct kvb_queue parsing;           /* exchanges by request.item */
    sem_t parser_woken;
    atomic_bool parser_stopping;
    /* guarded by lock */
    struct kvp_http_token tokens[KVP_HTTP_TOKENS_MAX];
    uint32_t ntokens;
    uint32_t tokens_read; /* how often */
    struct kvp_tls *tls;  /* of the connections that begin now; NULL for as long as it runs: none */
    pthread_mutex_t lock;
    pthread_cond_t paid; /* owed became 0 */
    int unix_lock;       /* of config.unix_path */
    int listener;        /* libmicrohttpd's until quiesced; -1: no more are let in */
    uint32_t owed;       /* whole requests not yet completed */
    struct kvb_list streams;
    uint32_t nstreams;
};

/* exchange.c: libmicrohttpd's callbacks; cls is the struct kvp_http. */
void *kvp_exchange_target(void *cls, const char *target, struct MHD_Connection *mhd);
enum MHD_Result kvp_exchange_handle(void *cls, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *data,
                                    size_t *len, void **con_cls);
void kvp_exchanges_cleanup(struct kvp_http *http); /* there are none any more */
void kvp_exchange_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                            enum MHD_RequestTerminationCode code);
/* Decides the answer; it is sent once the body has been read. The exchange's owner. */
void kvp_exchange_refuse(struct kvp_exchange *exchange, unsigned http_status, const char *param,
                         const char *message);

/* Of its connection, now. */
void kvp_exchange_enters(struct kvp_exchange *exchange, enum kvp_connection_state state);

/* head.c: names the request and makes every check that needs no body; the first that fails refuses.
 */
void kvp_exchange_check_head(struct kvp_exchange *exchange, const char *method,
                             const char *version);

enum kvp_token_verdict { KVP_TOKEN_UNKNOWN, KVP_TOKEN_TOO_LITTLE, KVP_TOKEN_ALLOWED };
/* What its token is by now; http->lock is held. */
enum kvp_token_verdict kvp_exchange_token_locked(struct kvp_exchange *exchange);
/* Does the value of an Authorization header say one of ours, which nobody else is to learn? */
bool kvp_exchange_is_own_token(struct kvp_exchange *exchange, const char *authorization);

/* The name of a request that brought none; no two are the same, here or in another process. */
struct kvb_id kvp_http_next_id(struct kvp_http *http);

/* refusal.c */
#define KVP_SAY_TARGET  "path and query may have 8 KiB together"
#define KVP_SAY_HEADERS "at most 100 headers, and 32 KiB of them"
/* The library's MHD_queue_response(): ours is for what the library says. */
enum MHD_Result kvp_queue_response(struct MHD_Connection *mhd, unsigned http_status,
                                   struct MHD_Response *response);

/* origin.c */
/* NULL, or why a request that a browser was made to send by somebody else's page is not taken. */
const char *kvp_exchange_foreign(const struct kvp_exchange *exchange);

/* pass.c */
/* The role of a request that no route is there for, and that may be passed on; NULL: it may not. */
const struct kvp_route *kvp_pass_route(const struct kvp_http *http, const char *method,
                                       const char *path, size_t len);
/* Begins, or refuses. */
void kvp_pass_begin(struct kvp_exchange *exchange, const char *method);
/* *len: what is left. NO: the connection ends. */
enum MHD_Result kvp_pass_body(struct kvp_exchange *exchange, const char *data, size_t *len);
enum MHD_Result kvp_pass_whole(struct kvp_exchange *exchange);  /* the request */
enum MHD_Result kvp_pass_answer(struct kvp_exchange *exchange); /* if it is there */
void kvp_pass_ended(struct kvp_exchange *exchange);             /* if it was one */

/* document.c: answers with a document, or that the client has it already. */
enum MHD_Result kvp_exchange_document(struct kvp_exchange *exchange);

/* stream.c */
/* Answers with what comes, until the client or this process goes. The HTTP thread. */
enum MHD_Result kvp_exchange_stream(struct kvp_exchange *exchange);
void kvp_exchange_stream_ended(struct kvp_exchange *exchange); /* if it was one */
/* Takes response. */
enum MHD_Result kvp_exchange_queue(struct kvp_exchange *exchange, struct MHD_Response *response,
                                   const char *content_type);
enum MHD_Result kvp_exchange_answer(struct kvp_exchange *exchange);

/* parse.c */
/* Gives the exchange to the thread below. */
KVB_MUST_USE kvb_status_t kvp_parser_put(struct kvp_exchange *exchange);
/* Reads body and parameters; refuses if they are wrong. The exchange's owner. */
void kvp_exchange_parse(struct kvp_exchange *exchange);
/* The thread that does so for large bodies, and resumes. arg: the struct kvp_http. */
KVB_MUST_USE kvb_status_t kvp_parser_start(struct kvp_http *http, uint32_t queue_max);
/* After this none is with the parser: what it had is refused and resumed, and so is what comes. */
void kvp_parser_stop(struct kvp_http *http);
void kvp_parser_cleanup(struct kvp_http *http); /* stopped, and nothing comes any more */

#endif
