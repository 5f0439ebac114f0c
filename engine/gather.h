/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_GATHER_H
#define ENGINE_GATHER_H

#include "model/model.h"

/*
 * What the ranks of a model exchange within a step: each has a socket to each other, and waits for
 * what they say. A rank that is gone, or says nothing for a while, ends the step for all.
 */
struct kve_gather {
    uint32_t rank, n;
    uint32_t wait_ms;         /* then a rank that says nothing is stopped, or stuck */
    int fds[KVE_MODEL_LANES]; /* to rank i; -1: this one */
};
/* Sockets between n processes that are still one. */
struct kve_gather_mesh {
    uint32_t n;
    int fds[KVE_MODEL_LANES][KVE_MODEL_LANES];
};
KVB_MUST_USE kvb_status_t kve_gather_mesh_open(uint32_t n, struct kve_gather_mesh *mesh);
/* In each of the processes: its own ends are kept, the others closed. */
void kve_gather_take(struct kve_gather_mesh *mesh, uint32_t rank, struct kve_gather *gather);
void kve_gather_mesh_close(struct kve_gather_mesh *mesh);
void kve_gather_close(struct kve_gather *gather);

/*
 * Every rank calls this with as many bytes; `all` holds them in order of rank, this one's are there
 * already. With mine not OK, or another rank's, the bytes mean nothing and every rank returns the
 * same such status. DISCONNECTED, TIMEOUT: of another rank; no more can be exchanged.
 */
KVB_MUST_USE kvb_status_t kve_gather_all(struct kve_gather *gather, kvb_status_t mine, void *all,
                                         size_t bytes);
/* From rank 0 to all others. Errors as above. */
KVB_MUST_USE kvb_status_t kve_gather_tell(struct kve_gather *gather, const void *bytes, size_t len);
/* What rank 0 told; TOO_LARGE: more than cap. */
KVB_MUST_USE kvb_status_t kve_gather_hear(struct kve_gather *gather, void *bytes, size_t cap,
                                          size_t *len_p);

#endif
