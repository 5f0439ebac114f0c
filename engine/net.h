/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_NET_H
#define ENGINE_NET_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * A network of a rehearsal's own: this process and all it starts live in a network namespace that
 * nobody else sees, and a second one lies behind a pair of virtual interfaces whose far end can be
 * taken down, as if a cable were drawn: packets vanish, nobody is told.
 */
struct kve_net {
    bool made;
    int home, far;  /* namespaces; -1 */
    int far_socket; /* made there, to move its interface */
};

#define KVE_NET_HOME_ADDRESS "10.77.0.1" /* of this process, seen from the far namespace */
#define KVE_NET_FAR_ADDRESS  "10.77.0.2"

/*
 * Moves this process into its namespace; before it has threads. REFUSED, IO: why says
 * what it lacks (at most cap bytes), and made stays false; the process can go on all the same, its
 * 127.0.0.1 works.
 */
KVB_MUST_USE kvb_status_t kve_net_create(struct kve_net *net, char *why, size_t cap);
void kve_net_destroy(struct kve_net *net); /* the process stays where it is */

/* Takes the far end down (true) or up again. */
KVB_MUST_USE kvb_status_t kve_net_cut(const struct kve_net *net, bool cut);

#endif
