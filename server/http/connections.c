/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connections.h"

#include "http/http.h"

#include "base/log.h"

#include <stdlib.h>
#include <sys/socket.h>

void kvp_connections_init(struct kvp_connections *connections, uint32_t max)
{
    *connections = (struct kvp_connections){.max = max};
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

/* Before one more connection is counted. */
static void make_room(struct kvp_connections *connections, uint64_t now_ns)
{
    struct kvp_connection *sender;
    struct kvp_connection *least = NULL;
    uint64_t least_ns = 0;
    const char *why = NULL;

    while ((sender = oldest(connections, KVP_CONNECTION_RECEIVING)) != NULL &&
           now_ns - sender->since_ns > KVP_HTTP_RECEIVE_S * KVB_NS_PER_S) {
        shut(connections, sender, "its request did not arrive whole in time", now_ns);
    }
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

struct kvp_connection *kvp_connection_opened(struct kvp_connections *connections,
                                             struct kvp_http *http, int fd, uint64_t now_ns)
{
    struct kvp_connection *connection = calloc(1, sizeof *connection);

    if (connection != NULL) {
        make_room(connections, now_ns);
        connection->http = http;
        connection->fd = fd;
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
}

bool kvp_connections_crowded(const struct kvp_connections *connections)
{
    return connections->counts[KVP_CONNECTION_WAITING] >= connections->max / 2;
}
