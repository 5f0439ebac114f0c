/* SPDX-License-Identifier: Apache-2.0 */
#include "standing.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

void kvt_standing_admitted(struct kvt_standing *standing, const struct kvt_identity *identity,
                           const struct kvt_handshake *shake)
{
    standing->hello = (struct kvt_hello){.incarnation = identity->incarnation,
                                         .version = shake->version,
                                         .features = shake->features};
    memcpy(standing->hello.name, identity->name, sizeof identity->name);
    standing->admitted++;
    standing->counted.connects++;
    standing->reached = true;
}

void kvt_count_end(struct kvt_peer_stats *counted, bool admitted, kvb_status_t why)
{
    if (admitted) {
        counted->disconnects++;
    } else {
        counted->connect_failures++;
    }
    if (why == KVB_ERR_TIMEOUT && admitted) {
        counted->silences++;
    } else if (why == KVB_ERR_PROTOCOL) {
        counted->protocol_errors++;
    }
}

void kvt_standing_gone(struct kvt_standing *standing, bool admitted, kvb_status_t why)
{
    kvt_count_end(&standing->counted, admitted, why);
    standing->why = why == KVB_ERR_UNSUPPORTED ? KVB_ERR_REFUSED : why; /* no common version */
}

/* ---- what the user is told ---- */

static void tell_down(struct kvt_standing *standing, const char *address, kvb_status_t why)
{
    char text[64];
    standing->told_up = false;
    standing->told_down = true;
    (void)snprintf(text, sizeof text, "%s: a node cannot be reached", standing->by);
    KVB_LOG_LIMITED(WARN, text, KVB_STR("address", address), KVB_STATUS(why),
                    KVB_STR("reason", why == KVB_ERR_REFUSED
                                          ? "not the same secret, or no version in common"
                                          : kvb_status_text(why)));
    standing->ops->down(standing->ctx, why);
}

static void tell_up(struct kvt_standing *standing, const char *address)
{
    char text[64];
    standing->told_up = true;
    standing->told_down = false;
    standing->told_incarnation = standing->hello.incarnation;
    (void)snprintf(text, sizeof text, "%s: a node is reached", standing->by);
    KVB_LOG_LIMITED(INFO, text, KVB_STR("node", standing->hello.name), KVB_STR("address", address),
                    KVB_U64("version", standing->hello.version));
    standing->ops->up(standing->ctx, &standing->hello);
}

void kvt_standing_tell(struct kvt_standing *standing, const char *address)
{
    if (standing->told_up &&
        (standing->admitted == 0 || standing->told_incarnation != standing->hello.incarnation)) {
        tell_down(standing, address,
                  standing->admitted == 0 ? standing->why : KVB_ERR_DISCONNECTED);
    }
    if (!standing->told_up && standing->admitted > 0) {
        tell_up(standing, address);
    }
    if (!standing->told_up && !standing->told_down && standing->reached) {
        tell_down(standing, address, standing->why);
    }
}

/* ---- the rest ---- */

void kvt_stats_of(const struct kvt_peer_stats *counted, uint32_t admitted, uint64_t heard_ns,
                  uint64_t bytes_sent, uint64_t bytes_received, struct kvt_peer_stats *stats_p)
{
    *stats_p = *counted;
    stats_p->up = admitted > 0;
    stats_p->lanes = admitted;
    stats_p->heard_ns = heard_ns;
    stats_p->bytes_sent = bytes_sent;
    stats_p->bytes_received = bytes_received;
}

uint64_t kvt_backoff_ns(const struct kvb_random *random, uint32_t first_ms, uint32_t max_ms,
                        uint32_t failures)
{
    uint64_t wait_ms = first_ms;
    for (uint32_t i = 1; i < failures && wait_ms < max_ms; i++) {
        wait_ms *= 2;
    }
    wait_ms = wait_ms < max_ms ? wait_ms : max_ms;
    uint64_t wait_ns = wait_ms * KVB_NS_PER_MS;
    uint64_t drawn;
    random->fill(random->ctx, &drawn, sizeof drawn);
    return wait_ns / 2 + drawn % (wait_ns / 2 + 1);
}
