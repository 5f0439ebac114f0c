/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connections.h"

#include "http/http.h"

#include "base/log.h"

#include <stdlib.h>
#include <sys/socket.h>

void kvp_connections_init(struct kvp_connections *connections, uint32_t max)
{
    kvb_list_init(&connections->idle);
    kvb_list_init(&connections->receiving);
    connections->n = 0;
    connections->max = max;
}

static void move_to(struct kvp_connection *connection, struct kvb_list *list, uint64_t now_ns)
{
    kvb_list_remove(&connection->link);
    kvb_list_push_back(list, &connection->link);
    connection->since_ns = now_ns;
}

static struct kvp_connection *oldest(struct kvb_list *list)
{
    struct kvb_list *first = kvb_list_first(list);
    return first != NULL ? kvb_container_of(first, struct kvp_connection, link) : NULL;
}

static void shut(struct kvp_connection *connection, const char *why)
{
    kvb_list_remove(&connection->link);
    KVB_LOG_LIMITED(WARN, "connection closed", KVB_STR("why", why));
    shutdown(connection->fd, SHUT_RDWR); /* libmicrohttpd sees its end, and closes it */
}

/* Before one more connection is counted. */
static void make_room(struct kvp_connections *connections, uint64_t now_ns)
{
    struct kvp_connection *idle = oldest(&connections->idle);
    struct kvp_connection *sender;

    while ((sender = oldest(&connections->receiving)) != NULL &&
           now_ns - sender->since_ns > KVP_HTTP_RECEIVE_S * KVB_NS_PER_S) {
        shut(sender, "its request did not arrive whole in time");
    }
    if (connections->n < connections->max) {
        return;
    }
    if (idle != NULL && (sender == NULL || idle->since_ns <= sender->since_ns)) {
        shut(idle, "too many connections: the longest idle one");
    } else if (sender != NULL) {
        shut(sender, "too many connections: the slowest sender");
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
        kvb_list_init(&connection->link);
        move_to(connection, &connections->idle, now_ns);
        connections->n++;
    }
    return connection;
}

void kvp_connection_closed(struct kvp_connections *connections, struct kvp_connection *connection)
{
    kvb_list_remove(&connection->link);
    free(connection);
    connections->n--;
}

void kvp_connection_idle(struct kvp_connections *connections, struct kvp_connection *connection,
                         uint64_t now_ns)
{
    move_to(connection, &connections->idle, now_ns);
}

void kvp_connection_receiving(struct kvp_connections *connections,
                              struct kvp_connection *connection, uint64_t now_ns)
{
    move_to(connection, &connections->receiving, now_ns);
}

void kvp_connection_answering(struct kvp_connection *connection)
{
    kvb_list_remove(&connection->link);
}
