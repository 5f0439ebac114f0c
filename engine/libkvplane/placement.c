/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#define GROUP_TOKENS 1024u

/* Within the first group: 0, 1, 2 and 3, 4 to 7, and so on. */
size_t kvplane_placement(size_t block, uint32_t block_tokens)
{
    uint32_t tokens = block_tokens == 0 ? KVPLANE_BLOCK_TOKENS_DEFAULT : block_tokens;
    size_t group = tokens < GROUP_TOKENS ? GROUP_TOKENS / tokens : 1;
    if (block >= group) {
        return block / group * group;
    }
    size_t leader = block;
    while ((leader & (leader - 1)) != 0) {
        leader &= leader - 1;
    }
    return leader;
}
