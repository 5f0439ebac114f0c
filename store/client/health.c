/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

#include "base/clock.h"

struct kvs_health_call kvs_health_begin(struct kvs_health *health, enum kvs_batch_op op)
{
    health->trying = health->sick;
    return (struct kvs_health_call){.op = op, .number = ++health->begun, .tries = health->sick};
}

bool kvs_health_answered(struct kvs_health *health, const struct kvs_health_call *call)
{
    if (health->sick && !call->tries) {
        return false; /* from before: says nothing of now */
    }
    bool changed = health->sick;
    health->sick = false;
    health->in_row[call->op] = 0;
    return changed;
}

static void leave_alone(struct kvs_health *health, const struct kvs_client_health *limits,
                        uint64_t now_ns)
{
    health->next_ns = now_ns + limits->backoff_ms * KVB_NS_PER_MS;
}

bool kvs_health_failed(struct kvs_health *health, const struct kvs_health_call *call, bool silent,
                       const struct kvs_client_health *limits, uint64_t now_ns)
{
    health->failures++;
    if (health->sick) {
        if (call->tries) {
            leave_alone(health, limits, now_ns);
        }
        return false;
    }
    if (call->number <= health->failed_at && !silent) {
        return false;
    }
    health->failed_at = health->begun;
    if (++health->in_row[call->op] < limits->failures && !silent) {
        return false;
    }
    health->sick = true;
    health->sick_times++;
    health->since_ns = now_ns;
    leave_alone(health, limits, now_ns);
    for (uint32_t op = 0; op < KVS_BATCH_OPS; op++) {
        health->in_row[op] = limits->failures - 1;
    }
    return true;
}

void kvs_health_end(struct kvs_health *health, const struct kvs_health_call *call)
{
    if (call->tries) {
        health->trying = false;
    }
}
