/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVER_BUILD_H
#define SERVER_BUILD_H

/* What the program was made of. */
extern const char kvp_build_revision[]; /* of git; "unknown" */
extern const char kvp_build_compiler[];
extern const char kvp_build_features[]; /* rdma, faults, sanitized; with commas between them */

#endif
