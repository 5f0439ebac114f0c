/* SPDX-License-Identifier: Apache-2.0 */
#include "http/internal.h"
#include "http/tls_session.h"
#include "listen.h"
#include "proxy/proxy.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define CONNECTIONS_SPARE 16 /* above the limit: room while evicted ones are being closed */
#define CONNECTIONS_MIN   16
#define ADDED_MAX         128          /* connections that are let in together */
#define ADDED_LOST_NS     KVB_NS_PER_S /* libmicrohttpd had no memory for them */

static int accept_one(struct kvp_http *http, struct sockaddr_storage *from, socklen_t *len)
{
    int fd = -1;

    *len = sizeof *from;
    pthread_mutex_lock(&http->lock);
    if (http->listener >= 0) {
        fd = accept4(http->listener, (struct sockaddr *)from, len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
    pthread_mutex_unlock(&http->lock);
    return fd;
}

/* libmicrohttpd accepts one connection in each of its turns, and in a crowd a turn lasts as long as
 * all have something to say: a probe would wait behind everyone who has come with it. So with each
 * come the others that wait, as long as there is room. */
static void accept_more(struct kvp_http *http, struct MHD_Connection *mhd, uint64_t now_ns)
{
    const struct kvp_connections *connections = &http->connections;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_DAEMON);

    http->added -= http->added > 0;
    if (http->added > 0 && now_ns - http->added_ns < ADDED_LOST_NS) {
        return; /* first those */
    }
    http->added = 0;
    http->added_ns = now_ns;
    while (http->added < ADDED_MAX && connections->n + http->added < connections->max / 2) {
        struct sockaddr_storage from;
        socklen_t len;
        int fd = accept_one(http, &from, &len);
        if (fd < 0 ||
            MHD_add_connection(info->daemon, fd, (struct sockaddr *)&from, len) != MHD_YES) {
            return; /* none waits, or libmicrohttpd will meet what is wrong; it has closed fd */
        }
        http->added++;
    }
}

/* Once the client has said its last word of the handshake, it may be idle. */
static int on_finished(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
                       const gnutls_datum_t *message)
{
    struct kvp_connection *connection = gnutls_session_get_ptr(session);
    struct kvp_http *http = connection->http;

    (void)type;
    (void)when;
    (void)message;
    if (incoming) {
        kvp_connection_enters(&http->connections, connection, KVP_CONNECTION_IDLE,
                              kvb_now_ns(http->config.clock));
    }
    return 0;
}

/* Of what is current now. False: there is nothing it could be shown, and its handshake fails. */
static bool begin_tls(struct kvp_http *http, struct MHD_Connection *mhd,
                      struct kvp_connection *connection, uint64_t now_ns)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    pthread_mutex_lock(&http->lock);
    connection->tls = kvp_tls_get(http->tls);
    pthread_mutex_unlock(&http->lock);
    kvp_connection_enters(&http->connections, connection, KVP_CONNECTION_RECEIVING, now_ns);
    if (info == NULL) {
        return false;
    }
    gnutls_session_set_ptr(info->tls_session, connection); /* libmicrohttpd's is for PSK */
    gnutls_handshake_set_hook_function(info->tls_session, GNUTLS_HANDSHAKE_FINISHED,
                                       GNUTLS_HOOK_POST, on_finished);
    return kvp_tls_begin(connection->tls, info->tls_session) == 0;
}

static void connection_notice(void *cls, struct MHD_Connection *mhd, void **context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct kvp_http *http = cls;
    struct kvp_connection *connection = *context;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (connection != NULL) {
            kvp_tls_put(connection->tls);
            kvp_connection_closed(&http->connections, connection);
        }
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL) { /* without a context its first request will be closed */
        uint64_t now_ns = kvb_now_ns(http->config.clock);
        const union MHD_ConnectionInfo *from =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        connection = kvp_connection_opened(&http->connections, http, info->connect_fd,
                                           from != NULL ? from->client_addr : NULL, now_ns);
        *context = connection;
        if (connection != NULL && http->config.unix_path != NULL) {
            socklen_t len = sizeof connection->peer;
            (void)getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &connection->peer, &len);
        }
        if (connection != NULL && http->tls != NULL && !begin_tls(http, mhd, connection, now_ns)) {
            KVB_LOG_LIMITED(ERROR, "a TLS connection cannot begin");
        }
        accept_more(http, mhd, now_ns);
    }
}

/* Of libmicrohttpd's own credentials, which no session keeps: they have no certificate. */
static int no_certificate(gnutls_session_t session, const gnutls_datum_t *authorities, int n,
                          const gnutls_pk_algorithm_t *algorithms, int nalgorithms,
                          gnutls_pcert_st **pcert, unsigned *pcert_len, gnutls_privkey_t *key)
{
    (void)session;
    (void)authorities;
    (void)n;
    (void)algorithms;
    (void)nalgorithms;
    (void)pcert;
    (void)pcert_len;
    (void)key;
    return -1;
}

static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text);
}

static void log_line(void *cls, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

static void log_line(void *cls, const char *format, va_list arguments)
{
    char text[512];

    (void)cls;
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = '\0';
    KVB_LOG_LIMITED(DEBUG, "libmicrohttpd", KVB_STR("text", text));
}

/* What the process's descriptors allow. Reaching that limit instead would stop accept(), of probes,
 * too; and of lanes and engines. */
static uint32_t connections_allowed(const struct kvp_http_config *config)
{
    uint32_t wanted = config->connections_max != 0 ? config->connections_max : KVP_HTTP_CONNECTIONS;
    uint32_t servers = config->servers > 1 ? config->servers : 1;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        rlim_t quarter = files.rlim_cur / 4;
        rlim_t left = files.rlim_cur - quarter > config->fds_reserved
                          ? files.rlim_cur - config->fds_reserved
                          : quarter;
        left /= servers;
        if (wanted > left) {
            KVB_LOG(
                WARN,
                "fewer connections than configured: too few descriptors; raise their limit "
                "(LimitNOFILE=, ulimit -n), or lower connections-max, sessions-max or lanes-max",
                KVB_U64("connections_max", wanted), KVB_U64("allowed", left),
                KVB_U64("nofile", files.rlim_cur),
                KVB_U64("needed", (uint64_t)wanted * servers + config->fds_reserved));
            wanted = (uint32_t)left;
        }
    }
    return wanted > CONNECTIONS_MIN ? wanted : CONNECTIONS_MIN;
}

static kvb_status_t copy_tokens(struct kvp_http *http, const struct kvp_http_token *tokens,
                                uint32_t ntokens)
{
    if (ntokens > KVP_HTTP_TOKENS_MAX) {
        KVB_LOG(ERROR, "too many tokens", KVB_U64("max", KVP_HTTP_TOKENS_MAX));
        return KVB_ERR_INVALID;
    }
    pthread_mutex_lock(&http->lock);
    explicit_bzero(http->tokens, sizeof http->tokens);
    for (uint32_t i = 0; i < ntokens; i++) {
        http->tokens[i].role = tokens[i].role; /* and zeroes behind the secret: all is compared */
        (void)snprintf(http->tokens[i].secret, KVP_HTTP_TOKEN_MAX, "%s", tokens[i].secret);
    }
    http->ntokens = ntokens;
    pthread_mutex_unlock(&http->lock);
    return KVB_OK;
}

uint32_t kvp_http_connections(const struct kvp_http *http)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(http->mhd, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

kvb_status_t kvp_http_set_tokens(struct kvp_http *http, const struct kvp_http_token *tokens,
                                 uint32_t ntokens)
{
    if (http->config.ntokens == 0 || ntokens == 0) {
        return KVB_ERR_BAD_STATE;
    }
    kvb_status_t status = copy_tokens(http, tokens, ntokens);
    if (status == KVB_OK) {
        pthread_mutex_lock(&http->lock);
        http->tokens_read++;
        pthread_mutex_unlock(&http->lock);
        kvp_http_wake(http, false); /* streams whose token they took away end */
    }
    return status;
}

static void init_lock(struct kvp_http *http)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&http->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&http->paid, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

kvb_status_t kvp_http_set_tls(struct kvp_http *http, struct kvp_tls *tls)
{
    if (http->config.tls == NULL) {
        return KVB_ERR_BAD_STATE;
    }
    pthread_mutex_lock(&http->lock);
    struct kvp_tls *old = http->tls;
    http->tls = kvp_tls_get(tls);
    pthread_mutex_unlock(&http->lock);
    kvp_tls_put(old);
    return KVB_OK;
}

static struct MHD_Daemon *start_daemon(struct kvp_http *http)
{
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)no_certificate},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)KVP_TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = http->tls != NULL ? MHD_USE_TLS : 0;
    unsigned idle_s =
        http->config.idle_timeout_s != 0 ? http->config.idle_timeout_s : KVP_HTTP_IDLE_S;

    /* poll, not epoll: 0.9.75 uses edge-triggered epoll and misses the end of a client that came
     * together with the first part of a request, so that vanished clients stay until the idle
     * timeout. Not strict: that would add one check, of Host, which kvp_framing_ambiguous() makes
     * too; and what the library finds wrong itself it answers with its header sent twice. */
    return MHD_start_daemon(
        flags | MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, kvp_exchange_handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
        MHD_OPTION_LISTEN_SOCKET, http->listener, MHD_OPTION_NOTIFY_CONNECTION, connection_notice,
        http, MHD_OPTION_URI_LOG_CALLBACK, kvp_exchange_target, http, MHD_OPTION_NOTIFY_COMPLETED,
        kvp_exchange_completed, http, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)KVP_HTTP_CONNECTION_MEM, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(http->connections.max + CONNECTIONS_SPARE), MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)http->config.connections_per_ip_max, MHD_OPTION_CONNECTION_TIMEOUT, idle_s,
        MHD_OPTION_ARRAY, http->tls != NULL ? tls : none, MHD_OPTION_END);
}

static kvb_status_t http_listen(struct kvp_http *http, const char *address)
{
    const struct kvp_http_config *config = &http->config;
    if (config->unix_path == NULL) {
        return kvp_listen(address, config->port, &http->listener, &http->port);
    }
    kvb_status_t status = kvp_unix_lock("http-socket", config->unix_path, &http->unix_lock);
    if (status != KVB_OK) {
        return status;
    }
    status = kvp_unix_bind("http-socket", config->unix_path, config->unix_mode, &http->listener);
    if (status != KVB_OK) {
        close(http->unix_lock);
    }
    return status;
}

/* Nobody finds it any more. */
static void unlisten(struct kvp_http *http, int listener)
{
    if (http->config.unix_path != NULL) {
        (void)unlink(http->config.unix_path); /* still ours */
        close(http->unix_lock);
    }
    if (listener >= 0) {
        close(listener);
    }
}

kvb_status_t kvp_http_start(const struct kvp_http_config *config, struct kvp_http **http_p)
{
    struct kvp_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        return KVB_ERR_NO_MEMORY;
    }
    const char *address = config->address != NULL ? config->address : "127.0.0.1";
    http->config = *config;
    kvp_connections_init(
        &http->connections, connections_allowed(config),
        (config->receive_timeout_s != 0 ? config->receive_timeout_s : KVP_HTTP_RECEIVE_S) *
            KVB_NS_PER_S);
    if (config->proxy != NULL) {
        http->connections.crowd = http->connections.max / 4;
    }
    http->id = kvb_id_draw(config->random);
    init_lock(http);
    kvb_list_init(&http->streams);
    kvb_status_t status = copy_tokens(http, config->tokens, config->ntokens);
    if (status != KVB_OK) {
        goto err_tokens;
    }
    if (config->tls != NULL && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        KVB_LOG(ERROR, "libmicrohttpd was built without TLS");
        status = KVB_ERR_UNSUPPORTED;
        goto err_tokens;
    }
    http->tls = config->tls != NULL ? kvp_tls_get(config->tls) : NULL;
    status = http_listen(http, address);
    if (status != KVB_OK) {
        goto err_tokens;
    }
    status = kvp_parser_start(http, http->connections.max + CONNECTIONS_SPARE);
    if (status != KVB_OK) {
        goto err_listener;
    }
    http->mhd = start_daemon(http);
    if (http->mhd == NULL) {
        KVB_LOG(ERROR, "libmicrohttpd does not start", KVB_ERRNO(errno));
        status = KVB_ERR_IO;
        goto err_parser;
    }
    KVB_LOG(INFO, "listening",
            KVB_STR("address", config->unix_path != NULL ? config->unix_path : address),
            KVB_U64("port", http->port), KVB_STR("tls", http->tls != NULL ? "yes" : "no"));
    *http_p = http;
    return KVB_OK;

err_parser:
    kvp_parser_stop(http);
    kvp_parser_cleanup(http);
err_listener:
    unlisten(http, http->listener);
err_tokens:
    kvp_tls_put(http->tls);
    pthread_cond_destroy(&http->paid);
    pthread_mutex_destroy(&http->lock);
    free(http);
    return status;
}

uint16_t kvp_http_port(const struct kvp_http *http)
{
    return http->port;
}

/* Until nothing is owed, or KVP_HTTP_STOP_MS are over. */
static void await_answers(struct kvp_http *http)
{
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_MONOTONIC, &until); /* the kernel's clock: pthread waits by no other */
    until.tv_sec += KVP_HTTP_STOP_MS / 1000;
    pthread_mutex_lock(&http->lock);
    while (http->owed > 0 && error == 0) {
        error = pthread_cond_timedwait(&http->paid, &http->lock, &until);
    }
    if (http->owed > 0) {
        KVB_LOG(WARN, "stopping before every answer was read", KVB_U64("unread", http->owed));
    }
    pthread_mutex_unlock(&http->lock);
}

void kvp_http_stop(struct kvp_http *http)
{
    pthread_mutex_lock(&http->lock);
    http->listener = -1;
    pthread_mutex_unlock(&http->lock);
    int listener = MHD_quiesce_daemon(http->mhd);
    unlisten(http, listener);
    kvp_http_wake(http, true); /* streams end: the process is going */
    await_answers(http);
    if (http->config.proxy != NULL) {
        kvp_proxy_close(http->config.proxy); /* nobody may be suspended when the library stops */
    }
    kvp_parser_stop(http);
    MHD_stop_daemon(http->mhd);
    kvp_parser_cleanup(http);
    kvb_assert(http->connections.n == 0);
    kvp_exchanges_cleanup(http);
    kvp_tls_put(http->tls);
    pthread_cond_destroy(&http->paid);
    pthread_mutex_destroy(&http->lock);
    free(http);
}
