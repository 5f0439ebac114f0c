/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/rdma.h"

static const struct {
    const char *label;
    const char *what;
} causes[] = {
#define X(name, label, what) [KVT_RDMA_##name] = {label, what},
    KVT_RDMA_CAUSES(X)
#undef X
};

const char *kvt_rdma_cause_label(enum kvt_rdma_cause cause)
{
    return causes[cause].label;
}

const char *kvt_rdma_cause_text(enum kvt_rdma_cause cause)
{
    return causes[cause].what;
}
