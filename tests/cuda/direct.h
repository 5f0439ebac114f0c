/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_DIRECT_H
#define TESTS_CUDA_DIRECT_H

/*
 * What the test (test_direct.c) and its helper (direct_helper.c) share: a helper process whose
 * verbs are the fake's, with a node that serves plain memory at the other end of the wire, in the
 * same process. The memory is shared with the test, and so is what the test wants of the wire.
 */
#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DIRECT_SHARED_ENV "KVPLANE_TEST_DIRECT" /* a path of the shared memory */
#define DIRECT_NODE_LEN   (8u << 20)

enum direct_command {
    DIRECT_NOTHING,
    DIRECT_FAIL,    /* name: the number-th call from now fails with value; value 0: none does */
    DIRECT_MUTE,    /* completions of the helper's device are held back, or not (number) */
    DIRECT_LATE,    /* the node answers nothing, or what waits and at once (number) */
    DIRECT_VERDICT, /* what it says of bytes that were read: value */
    DIRECT_CLOSE,   /* the node dies */
    DIRECT_OPEN,    /* and is back, elsewhere */
    DIRECT_REMOVE,  /* the helper's device is gone */
};

struct direct_shared {
    /* set before the helper starts */
    char fail_name[40]; /* as DIRECT_FAIL; "any" */
    uint32_t fail_number;
    int fail_value;
    bool no_device, no_dma_buf, peer_memory;
    bool forget_registration, forget_descriptor; /* bugs */

    /* one at a time: the test sets them and raises asked; done follows */
    enum direct_command command;
    char name[40];
    uint32_t number;
    int value;
    atomic_uint asked, done;

    /* the helper says */
    char address[80];   /* of the node */
    atomic_uint failed; /* calls that did as DIRECT_FAIL says */
    atomic_uint mrs, posted;
    atomic_uint running, puts, gets, gone; /* of the node's requests */

    uint8_t node[DIRECT_NODE_LEN];
};

#endif
