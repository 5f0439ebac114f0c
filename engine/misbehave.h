/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MISBEHAVE_H
#define ENGINE_MISBEHAVE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What tests make a reference engine do wrong: `--misbehave=CALL-HOW[:N][,…]`.
 *
 *   CALL-late:MS     does it, answers MS milliseconds later
 *   CALL-never[:N]   does it, never answers (the first N times; without N always)
 *   CALL-refuse[:N]  does nothing, answers a failure (likewise)
 */
#define KVE_CALLS(X) X(pause) X(resume) X(reset_local) X(release) X(restore) X(fingerprint) X(relay)
enum kve_call {
#define X(name) KVE_CALL_##name,
    KVE_CALLS(X)
#undef X
        KVE_CALL_COUNT
};

enum kve_how { KVE_HONEST, KVE_LATE, KVE_NEVER, KVE_REFUSE };

struct kve_misbehave {
    struct {
        enum kve_how how;
        uint64_t left; /* times; LATE: always */
        uint32_t late_ms;
    } calls[KVE_CALL_COUNT];
};

/* False: text is not of that form; *misbehave_p is unchanged. */
bool kve_misbehave_parse(const char *text, struct kve_misbehave *misbehave_p);
/* How the next call of this kind is to be answered; counts it. */
enum kve_how kve_misbehave_next(struct kve_misbehave *misbehave, enum kve_call call);

#endif
