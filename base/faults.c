/* SPDX-License-Identifier: Apache-2.0 */
#include "base/faults.h"

#include <string.h>

static const struct {
    const char *text;
    const char *what;
} faults[] = {
#define X(name, text, what) {text, what},
    KVB_FAULT_LIST(X)
#undef X
};

size_t kvb_fault_count(void)
{
    return sizeof faults / sizeof faults[0];
}

const char *kvb_fault_text(size_t i, const char **what_p)
{
    *what_p = faults[i].what;
    return faults[i].text;
}

#ifdef KVB_FAULTS

static enum kvb_fault_name chosen = KVB_FAULT_NONE;
static bool running;
static bool first_only;

kvb_status_t kvb_fault_choose(const char *text)
{
    if (strcmp(text, "none") == 0) {
        running = true;
        return KVB_OK;
    }
    for (size_t i = 0; i < kvb_fault_count(); i++) {
        size_t len = strlen(faults[i].text);
        if (strncmp(text, faults[i].text, len) != 0) {
            continue;
        }
        if (text[len] == '\0' || strcmp(text + len, ":first") == 0) {
            chosen = (enum kvb_fault_name)(i + 1);
            first_only = text[len] != '\0';
            running = true;
            return KVB_OK;
        }
    }
    return KVB_ERR_INVALID;
}

bool kvb_fault_run(void)
{
    return running;
}

bool kvb_fault(enum kvb_fault_name name)
{
    return chosen == name && name != KVB_FAULT_NONE;
}

bool kvb_fault_all(enum kvb_fault_name name)
{
    return kvb_fault(name) && !first_only;
}

uint64_t kvb_fault_hold_ns(const struct kvb_random *random)
{
    struct {
        uint32_t kind;
        uint32_t span;
    } draw;
    if (!running) {
        return 0;
    }
    random->fill(random->ctx, &draw, sizeof draw);
    if (draw.kind % 128 == 0) {
        return 1 + draw.span % (250 * KVB_NS_PER_MS);
    }
    return draw.kind % 16 == 1 ? 1 + draw.span % (5 * KVB_NS_PER_MS) : 0;
}

#endif
