/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CONTROL_H
#define ENGINE_CONTROL_H

#include "engine.h"

/*
 * The rehearsal's own way to an engine, beside the product: JSON lines over a stream descriptor.
 *
 *   {"cmd":"run","id":N,"first":I,"count":N | "indexes":[…],"use_cache":true,"stall":false}
 *       …later {"id":N,"event":"stalled"} when all that is left waits for the next resume (stall),
 *       and {"id":N,"event":"done","counts":{…},"unfinished":[indexes that a pause aborted]}
 *   {"cmd":"generate","id":N,"prompts":[[token,…],…],"max_tokens":N,"use_cache":true,"stall":false}
 *       the same, of a model; with stall a request waits when it has half of its tokens. "done" has
 *       "outputs" too, one for each prompt, null of the unfinished:
 *       {"tokens":[…],         what came after it
 *        "local_blocks":N,     of the full blocks of the prompt: from the engine's prefix cache,
 *        "store_blocks":N,     from the store,
 *        "computed_blocks":N,  and the rest
 *        "blocks":[["…",…],…]} of each full block of KV (the last token that came has none yet): a
 *                              hash of the bytes of each part, in order of the parts
 *   {"cmd":"stats","id":N}            {"id":N,"event":"stats","stats":{…}}
 *   {"cmd":"see","id":N,"weights":[…]}   ids of weights that others hold
 *   {"cmd":"fingerprint","id":N,"on":true}
 *       both {"id":N,"event":"ok"}
 *
 * {"event":"attached"} and {"event":"refused"} come by themselves. What cannot be done is answered
 * {"id":N,"event":"error","text":…}. The end of the stream ends the engine.
 */
struct kve_control;

/* fd is taken. NULL: no memory. */
struct kve_control *kve_control_create(struct kve_engine *engine, int fd);
void kve_control_destroy(struct kve_control *control);
/* Reads and obeys what has come. False: the other side is gone. */
bool kve_control_read(struct kve_control *control);
/* Sends what waits; true: there is more, poll for writing. */
bool kve_control_flush(struct kve_control *control);
/* Says what happened by itself. */
void kve_control_tell(struct kve_control *control);

#endif
