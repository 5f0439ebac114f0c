/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connections.h"

#include "http/http.h"

#include "base/log.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void kvp_connections_init(struct kvp_connections *connections, uint32_t max, uint64_t receive_ns)
{
    *connections = (struct kvp_connections){.max = max, .crowd = max / 2, .receive_ns = receive_ns};
    for (int i = 0; i < KVP_CONNECTION_STATES; i++) {
        kvb_list_init(&connections->lists[i]);
    }
}

static void leave(struct kvp_connections *connections, struct kvp_connection *connection)
{
    kvb_list_remove(&connection->link);
    connections->counts[connection->state]--;
}

static void enter(struct kvp_connections *connections, struct kvp_connection *connection,
                  enum kvp_connection_state state, uint64_t now_ns)
{
    connection->state = state;
    connection->since_ns = now_ns;
    kvb_list_push_back(&connections->lists[state], &connection->link);
    connections->counts[state]++;
}

static struct kvp_connection *oldest(struct kvp_connections *connections,
                                     enum kvp_connection_state state)
{
    struct kvb_list *first = kvb_list_first(&connections->lists[state]);
    return first != NULL ? kvb_container_of(first, struct kvp_connection, link) : NULL;
}

static void shut(struct kvp_connections *connections, struct kvp_connection *connection,
                 const char *why, uint64_t now_ns)
{
    leave(connections, connection);
    enter(connections, connection, KVP_CONNECTION_SHUT, now_ns);
    KVB_LOG_LIMITED(WARN, "connection closed", KVB_STR("why", why));
    shutdown(connection->fd, SHUT_RDWR); /* libmicrohttpd sees its end, and closes it */
}

/* Who can be spared, and how much longer than the others it may have been in its state. */
static const struct {
    enum kvp_connection_state state;
    uint64_t grace_ns;
    const char *why;
} spared[] = {
    {KVP_CONNECTION_IDLE, 0, "too many connections: the longest idle one"},
    {KVP_CONNECTION_RECEIVING, 0, "too many connections: the slowest sender"},
    {KVP_CONNECTION_SENDING, KVP_HTTP_SEND_NS,
     "too many connections: one that does not read its answer"},
};

static void shut_overdue(struct kvp_connections *connections, uint64_t now_ns)
{
    struct kvp_connection *sender;

    while ((sender = oldest(connections, KVP_CONNECTION_RECEIVING)) != NULL &&
           now_ns - sender->since_ns > connections->receive_ns) {
        shut(connections, sender, "its request, or its TLS handshake, was not whole in time",
             now_ns);
    }
}

/* Before one more connection is counted. */
static void make_room(struct kvp_connections *connections, uint64_t now_ns)
{
    struct kvp_connection *least = NULL;
    uint64_t least_ns = 0;
    const char *why = NULL;

    shut_overdue(connections, now_ns);
    if (connections->n - connections->counts[KVP_CONNECTION_SHUT] < connections->max) {
        return;
    }
    for (size_t i = 0; i < sizeof spared / sizeof spared[0]; i++) {
        struct kvp_connection *each = oldest(connections, spared[i].state);
        if (each != NULL && (least == NULL || each->since_ns + spared[i].grace_ns < least_ns)) {
            least = each;
            least_ns = each->since_ns + spared[i].grace_ns;
            why = spared[i].why;
        }
    }
    if (least != NULL) {
        shut(connections, least, why, now_ns);
    }
}

static void keep_from(struct kvp_connection *connection, const struct sockaddr *from)
{
    union {
        const struct sockaddr *any;
        const struct sockaddr_in *v4;
        const struct sockaddr_in6 *v6;
    } as = {.any = from};

    if (from != NULL && from->sa_family == AF_INET) {
        memcpy(connection->from, &as.v4->sin_addr, sizeof as.v4->sin_addr);
        connection->has_from = true;
    } else if (from != NULL && from->sa_family == AF_INET6) {
        memcpy(connection->from, &as.v6->sin6_addr, sizeof as.v6->sin6_addr);
        connection->has_from = true;
    }
}

struct kvp_connection *kvp_connection_opened(struct kvp_connections *connections,
                                             struct kvp_http *http, int fd,
                                             const struct sockaddr *from, uint64_t now_ns)
{
    struct kvp_connection *connection = calloc(1, sizeof *connection);

    if (connection != NULL) {
        make_room(connections, now_ns);
        connection->http = http;
        connection->fd = fd;
        keep_from(connection, from);
        enter(connections, connection, KVP_CONNECTION_IDLE, now_ns);
        connections->n++;
    }
    return connection;
}

void kvp_connection_closed(struct kvp_connections *connections, struct kvp_connection *connection)
{
    leave(connections, connection);
    free(connection);
    connections->n--;
}

void kvp_connection_enters(struct kvp_connections *connections, struct kvp_connection *connection,
                           enum kvp_connection_state state, uint64_t now_ns)
{
    if (connection->state != KVP_CONNECTION_SHUT) {
        leave(connections, connection);
        enter(connections, connection, state, now_ns);
    }
    if (state == KVP_CONNECTION_RECEIVING) {
        shut_overdue(connections, now_ns);
    }
}

bool kvp_connections_crowded(const struct kvp_connections *connections)
{
    return connections->counts[KVP_CONNECTION_WAITING] +
               connections->counts[KVP_CONNECTION_STREAMING] >=
           connections->crowd;
}

/* They are few: those whose answers take a while. */
bool kvp_connections_wait_from(const struct kvp_connections *connections,
                               const struct kvp_connection *like, uint32_t n)
{
    uint32_t found = 0;

    kvb_list_each(&connections->lists[KVP_CONNECTION_WAITING], link)
    {
        const struct kvp_connection *each = kvb_container_of(link, struct kvp_connection, link);
        found += each->has_from && memcmp(each->from, like->from, sizeof like->from) == 0;
        if (found == n) {
            return true;
        }
    }
    return false;
}
