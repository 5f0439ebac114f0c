/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_ETCD_H
#define TESTS_SIM_ETCD_H

#include <stdbool.h>
#include <stdint.h>

/*
 * One etcd, as its JSON gateway shows it, on machine 0: revisions, leases, transactions, pages,
 * watches with their history, compaction. It stands in at the seam of
 * store/coordinator/etcd_http.h, whose promises it keeps, the uncomfortable ones, too: a request is
 * sent again while there is no answer, so that it may be done twice; and one that ends UNAVAILABLE
 * may have been done.
 */
void sim_etcd_init(void);
/* No quorum: requests wait or fail, leases stand still and begin anew when it is back. */
void sim_etcd_away(bool away);
/* What was before is compacted: a watch that asks for it is told so. */
void sim_etcd_compact(void);
/* Every watch and connection ends. */
void sim_etcd_drop_connections(void);

#endif
