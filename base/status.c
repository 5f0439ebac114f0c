/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

const char *kvb_status_label(kvb_status_t status)
{
    switch (status) {
#define X(name, value, label, text)                                                                \
    case KVB_##name:                                                                               \
        return label;
        KVB_STATUS_LIST(X)
#undef X
    }
    return "unknown";
}

const char *kvb_status_text(kvb_status_t status)
{
    switch (status) {
#define X(name, value, label, text)                                                                \
    case KVB_##name:                                                                               \
        return text;
        KVB_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

kvb_status_t kvb_status_from_wire(int value)
{
    switch (value) {
#define X(name, number, label, text)                                                               \
    case (number):                                                                                 \
        return KVB_##name;
        KVB_STATUS_LIST(X)
#undef X
    default:
        return KVB_ERR_PROTOCOL;
    }
}
