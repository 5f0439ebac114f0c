/* SPDX-License-Identifier: Apache-2.0 */
#include "misbehave.h"

#include <stdlib.h>
#include <string.h>

static const char *const call_names[KVE_CALL_COUNT] = {
#define X(name) #name,
    KVE_CALLS(X)
#undef X
};

static const struct {
    const char *suffix;
    enum kve_how how;
} hows[] = {{"-late", KVE_LATE}, {"-never", KVE_NEVER}, {"-refuse", KVE_REFUSE}};

static bool parse_one(const char *text, size_t len, struct kve_misbehave *misbehave)
{
    const char *colon = memchr(text, ':', len);
    size_t word = colon == NULL ? len : (size_t)(colon - text);
    unsigned long number = 0;

    if (colon != NULL) {
        char *end;
        number = strtoul(colon + 1, &end, 10);
        if (end != text + len || end == colon + 1 || number == 0 || number > UINT32_MAX) {
            return false;
        }
    }
    for (size_t call = 0; call < KVE_CALL_COUNT; call++) {
        size_t name = strlen(call_names[call]);
        for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++) {
            if (word != name + strlen(hows[i].suffix) ||
                strncmp(text, call_names[call], name) != 0 ||
                strncmp(text + name, hows[i].suffix, word - name) != 0) {
                continue;
            }
            if (hows[i].how == KVE_LATE && number == 0) {
                return false;
            }
            misbehave->calls[call].how = hows[i].how;
            misbehave->calls[call].late_ms = hows[i].how == KVE_LATE ? (uint32_t)number : 0;
            misbehave->calls[call].left =
                hows[i].how == KVE_LATE || number == 0 ? UINT64_MAX : number;
            return true;
        }
    }
    return false;
}

bool kve_misbehave_parse(const char *text, struct kve_misbehave *misbehave_p)
{
    struct kve_misbehave misbehave = *misbehave_p;

    for (;;) {
        size_t len = strcspn(text, ",");
        if (!parse_one(text, len, &misbehave)) {
            return false;
        }
        if (text[len] == '\0') {
            break;
        }
        text += len + 1;
    }
    *misbehave_p = misbehave;
    return true;
}

enum kve_how kve_misbehave_next(struct kve_misbehave *misbehave, enum kve_call call)
{
    if (misbehave->calls[call].how == KVE_HONEST || misbehave->calls[call].left == 0) {
        return KVE_HONEST;
    }
    misbehave->calls[call].left--;
    return misbehave->calls[call].how;
}
