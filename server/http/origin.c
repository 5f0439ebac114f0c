/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose page made a browser send this? A browser lets any page send requests anywhere, if only to
 * fall blind: a form, an image. Where a token is asked for that does nothing, since no page can
 * make it add one; where none is, on loopback, any page that somebody on this machine looks at
 * could put an engine to sleep. So:
 *
 * - What acts is not taken from another site's page (Sec-Fetch-Site, which no page can set; from a
 *   browser that does not send it, Origin against Host). Another port of this host is another
 *   site's page too.
 * - What a name that is not of this machine leads to (DNS rebinding: the page of evil.example whose
 *   name has come to mean 127.0.0.1, for which this server then is "the same origin") is not
 *   answered at all, but for probes and documents: on a loopback address without tokens, Host is
 *   localhost, an address, or a name without a dot, which nobody outside can give out.
 *
 * Programs send neither Sec-Fetch-Site nor Origin, and reach loopback by localhost or its address.
 */
#include "http/internal.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define HOST_MAX 256 /* bytes of a name, NUL included; a longer one is none of ours */

static const char *header(const struct kvp_exchange *exchange, const char *name)
{
    return MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, name);
}

static bool has_tokens(const struct kvp_http *http)
{
    return http->config.ntokens > 0;
}

/* Origin is SCHEME://HOST[:PORT], or "null". */
static bool origin_is_host(const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    return authority != NULL && host != NULL && strcasecmp(authority + 3, host) == 0;
}

static bool from_other_page(const struct kvp_exchange *exchange)
{
    const char *site = header(exchange, "Sec-Fetch-Site");
    const char *origin = header(exchange, MHD_HTTP_HEADER_ORIGIN);

    if (site != NULL) {
        return strcasecmp(site, "same-origin") != 0 && strcasecmp(site, "none") != 0;
    }
    if (has_tokens(exchange->http)) {
        return false;
    }
    if (origin == NULL) { /* an image of a page: such a browser says nothing else of itself */
        const char *agent = header(exchange, MHD_HTTP_HEADER_USER_AGENT);
        return agent != NULL && strncmp(agent, "Mozilla/", 8) == 0;
    }
    return !origin_is_host(origin, header(exchange, MHD_HTTP_HEADER_HOST));
}

/* This end of the connection. */
static bool on_loopback(const struct kvp_exchange *exchange)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } own;
    socklen_t len = sizeof own;

    memset(&own, 0, sizeof own);
    if (getsockname(exchange->connection->fd, &own.any, &len) != 0) {
        return true; /* not known: the stricter way */
    }
    if (own.any.sa_family == AF_INET) {
        return (ntohl(own.v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    }
    return own.any.sa_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&own.v6.sin6_addr) ||
                                             (IN6_IS_ADDR_V4MAPPED(&own.v6.sin6_addr) &&
                                              own.v6.sin6_addr.s6_addr[12] == IN_LOOPBACKNET));
}

/* A Host header without its port; false: too long to be one of ours. */
static bool host_name(const char *host, char name[HOST_MAX])
{
    size_t len = strcspn(host, ":");

    if (len >= HOST_MAX) {
        return false;
    }
    memcpy(name, host, len);
    name[len] = '\0';
    return true;
}

static bool ours(const char *host)
{
    static const char suffix[] = ".localhost";
    char name[HOST_MAX];
    struct in6_addr address;

    if (*host == '[') {
        return true; /* an address */
    }
    if (!host_name(host, name)) {
        return false;
    }
    size_t len = strlen(name);
    return strchr(name, '.') == NULL || inet_pton(AF_INET, name, &address) == 1 ||
           (len >= sizeof suffix && strcasecmp(name + len - (sizeof suffix - 1), suffix) == 0);
}

static bool by_foreign_name(const struct kvp_exchange *exchange)
{
    const char *host = header(exchange, MHD_HTTP_HEADER_HOST);
    return host != NULL && !has_tokens(exchange->http) && !ours(host) && on_loopback(exchange);
}

const char *kvp_exchange_foreign(const struct kvp_exchange *exchange)
{
    const struct kvp_route *route = exchange->request.route;

    if (route->where == KVP_PROBE || route->where == KVP_STATIC) {
        return NULL;
    }
    if (by_foreign_name(exchange)) {
        return "this server is reached by a name that is not of this machine: use localhost or an "
               "address, or have it ask for tokens (--token-file)";
    }
    if (route->role == KVP_ROLE_ADMIN && from_other_page(exchange)) {
        return "a page of another site made your browser send this: nothing was done";
    }
    return NULL;
}
