/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/rank.h"

const char *kvp_queue_text(enum kvp_queue queue)
{
    static const char *const texts[] = {
#define X(name, text) [KVP_QUEUE_##name] = (text),
        KVP_QUEUES(X)
#undef X
    };
    return texts[queue];
}
