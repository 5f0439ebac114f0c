/* SPDX-License-Identifier: Apache-2.0 */
#include "upstream.h"

#include "program.h"

#include "base/assert.h"

#include <string.h>

static enum kvp_gate gate(const char *word)
{
    enum kvp_gate gate = KVP_GATE_PASS;
    bool known = kvp_gate_parse(word, &gate);
    kvb_assert(known); /* one of the words of its list */
    return gate;
}

kvb_status_t kvp_upstream_create(const struct kvp_config *config, struct kvb_metrics *metrics,
                                 struct kvp_upstream *upstream)
{
    const struct kvp_proxy_config proxy = {
        .clock = &kvb_clock_real,
        .metrics = metrics,
        .while_paused = gate(config->upstream_while_paused),
        .while_asleep = gate(config->upstream_while_asleep),
        .requests_max = (uint32_t)config->upstream_requests_max,
        .hold_max = (uint32_t)config->upstream_hold_max,
        .hold_ms = config->upstream_hold_bound,
        .idle_max = (uint32_t)config->upstream_connections_kept,
        .connect_ms = config->upstream_connect_timeout,
        .ca_file = config->upstream_ca_file,
        .idle_ms = config->upstream_idle_timeout,
        .receive_ms = config->receive_timeout,
    };
    if (config->upstream[0] == '\0' && config->nengines == 0) {
        return KVB_OK;
    }
    kvb_status_t status = kvp_program_bearer("upstream-key-file", config->upstream_key_file,
                                             &upstream->authorization);
    if (status == KVB_OK) {
        status = kvp_proxy_create(&proxy, &upstream->proxy);
    }
    if (status == KVB_OK && config->upstream[0] != '\0') {
        status = kvp_proxy_set_target(upstream->proxy, "", config->upstream);
    }
    for (uint32_t i = 0; i < config->nengines && status == KVB_OK; i++) {
        status =
            kvp_proxy_set_target(upstream->proxy, config->engines[i].name, config->engines[i].url);
        kvp_proxy_tell(upstream->proxy, config->engines[i].name, KVP_TARGET_ASLEEP,
                       "its server has not been reached yet");
    }
    return status;
}

void kvp_upstream_destroy(struct kvp_upstream *upstream)
{
    kvp_proxy_destroy(upstream->proxy);
    kvp_program_bearer_free(upstream->authorization);
}

/* A pause that a sleep has begun with is the sleep already: nothing is to arrive any more. */
static bool falls_asleep(const struct kvp_view *view)
{
    return view->operation_id != 0 && view->scheduler != KVP_SCHEDULER_RUNNING &&
           (view->operation == KVP_OP_SLEEP || view->operation == KVP_OP_RELEASE_KV ||
            view->operation == KVP_OP_RELEASE);
}

static enum kvp_target_state state_of(const struct kvp_view *view)
{
    const unsigned sleeps = KVP_STOPPED_BY_SLEEP | KVP_STOPPED_BY_RELEASE | KVP_STOPPED_BY_SLEEP0 |
                            KVP_STOPPED_BY_DEGRADED;
    if (!view->attached) {
        return KVP_TARGET_GONE;
    }
    if (view->is_sleeping || view->degraded || (view->stopped_by & sleeps) != 0 ||
        falls_asleep(view)) {
        return KVP_TARGET_ASLEEP;
    }
    return view->scheduler == KVP_SCHEDULER_RUNNING ? KVP_TARGET_RUNNING : KVP_TARGET_PAUSED;
}

static const char *why(const struct kvp_view *view)
{
    if (view->ready) {
        return "";
    }
    return view->degraded && view->message[0] != '\0' ? view->message : view->not_ready;
}

void kvp_upstream_tell(const struct kvp_upstream *upstream, const struct kvp_view *view)
{
    if (upstream->proxy != NULL) {
        kvp_proxy_tell(upstream->proxy, view->instance, state_of(view), why(view));
    }
}
