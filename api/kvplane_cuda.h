/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVPLANE_CUDA_H
#define KVPLANE_CUDA_H

/*
 * libkvplane_cuda: what an inference engine on CUDA links beside libkvplane. It makes GPU memory
 * that can be handed over and can sleep (or hands over what the engine made itself), holds a put
 * back until the GPU has written what it names, and packs small pieces into one slice. One handle
 * stands beside one session (kvplane.h) and is for one GPU.
 *
 * The life of a handle: kvplane_open(); kvplane_cuda_open(); kvplane_cuda_allocate() or
 * kvplane_cuda_adopt*(); then kvplane_cuda_process() in place of kvplane_process(), and from the
 * session's callbacks: kvplane_cuda_hand_over() in `attached`, kvplane_cuda_release() in `release`,
 * kvplane_cuda_restore() in `restore`, kvplane_cuda_state() in `state`. At the end kvplane_close()
 * first, so that nobody names the memory any more, then kvplane_cuda_close().
 *
 * Threads. The library starts none and hands no callback to CUDA's. A handle is used by the thread
 * of its session. The current device of that thread is as before after every call. Nothing blocks
 * unless it says so. Callbacks of puts run in kvplane_cuda_process(), _wait(), _release() and
 * _close() only; they may call everything but process, wait and close.
 *
 * Memory belongs to the GPU's primary context, which is what the CUDA runtime uses. No header of
 * CUDA's is needed here: cudaStream_t is struct CUstream_st *, cudaEvent_t struct CUevent_st *.
 *
 * What fails in CUDA is a result of kvplane.h, and kvplane_cuda_last_error() names the call and
 * CUDA's error: NO_MEMORY (of the GPU or of the host), UNSUPPORTED (this GPU or driver cannot),
 * UNAVAILABLE (no driver, no GPU), else IO. A call that failed has changed nothing or says what it
 * has; it can be repeated. The runtime's own last error is as if nothing had been called, but for
 * errors that CUDA itself keeps: after a lost context no call works any more, nothing is given back
 * but by the end of the process.
 */
#include "kvplane.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUevent_st;
struct CUstream_st;
struct kvplane_cuda;

struct kvplane_cuda_options {
    struct kvplane *kv; /* borrowed; its session has the role of a worker */
    int device;         /* as the CUDA runtime counts */
    size_t held_max;    /* puts held back before KVPLANE_ERR_AGAIN, at most 65536; 0: 1024 */
    /* How the daemon took a region that was handed over (may be NULL). OK: it can be named in puts
     * and gets from now on. Runs as callbacks of the session do. */
    void (*registered)(void *ctx, uint32_t region, int result);
    void *ctx;
};

/* Looks for the driver and the GPU, which makes the GPU's context if there is none. Errors: INVALID
 * (kvplane_cuda_last_error(NULL) says what), NO_MEMORY, IO, UNAVAILABLE, UNSUPPORTED. */
KVPLANE_API int kvplane_cuda_open(const struct kvplane_cuda_options *options,
                                  struct kvplane_cuda **kc_p);

/* After kvplane_close(). Puts that are held complete with KVPLANE_ERR_CANCELED, blocks until the
 * GPU has done what it was given, gives back everything, also the addresses. An error: something
 * could not be given back, the handle is still there: call again. NULL: nothing. */
KVPLANE_API int kvplane_cuda_close(struct kvplane_cuda *kc);

/* What the last call that failed met, for people; "" if none did. Valid until the next call. NULL:
 * why this thread's last kvplane_cuda_open() failed. */
KVPLANE_API const char *kvplane_cuda_last_error(const struct kvplane_cuda *kc);

/* Poll it for reading in place of kvplane_fd(); owned by the handle. While puts are held it is also
 * readable every half millisecond. */
KVPLANE_API int kvplane_cuda_fd(const struct kvplane_cuda *kc);
/* kvplane_process(), with its results, after sending the puts whose work the GPU has done. Worth a
 * call after each step of the engine. */
KVPLANE_API int kvplane_cuda_process(struct kvplane_cuda *kc);
/* Blocks until there is something to do, at most timeout_ms (-1: for ever); as kvplane_wait(). */
KVPLANE_API int kvplane_cuda_wait(struct kvplane_cuda *kc, int timeout_ms);

/* ---- memory ---- */

/*
 * New memory of the GPU, at an address that stays the same over all sleeps. The region that is
 * handed over is all of it: len rounded up to what the GPU allocates. fabric: make it exportable to
 * other hosts of an NVLink fabric, too, where the GPU really can. Errors beside CUDA's: INVALID
 * (tag, len), EXISTS (the number), LIMIT (256 regions, 8 tags).
 */
struct kvplane_cuda_memory {
    uint32_t region; /* your number, unique in this session */
    const char *tag; /* "kv_cache", "weights", … copied */
    uint64_t len;
    bool fabric;
};
KVPLANE_API int kvplane_cuda_allocate(struct kvplane_cuda *kc,
                                      const struct kvplane_cuda_memory *memory, void **address_p);

/*
 * Memory that the engine made itself by cuMemCreate, exportable as descriptor or fabric handle, and
 * maps and frees itself. The library keeps no reference to it, only takes one while it exports.
 * By address: a range inside one mapping of one allocation; the region is that whole allocation,
 * and begins at *base_p. By handle: len is the allocation's size; the handle stays the engine's and
 * has to stay valid until the region is released or adopted anew. (CUDA has only offsets of 0 in a
 * mapping, so a region is always the whole of an allocation.)
 * Again with the same number: it lies there now, as after a wake. Errors beside CUDA's: INVALID
 * (not such memory; last_error says what is missing), EXISTS (the number is of other memory, or of
 * another tag), LIMIT.
 */
KVPLANE_API int kvplane_cuda_adopt(struct kvplane_cuda *kc, uint32_t region, const char *tag,
                                   void *address, uint64_t len, void **base_p);
KVPLANE_API int kvplane_cuda_adopt_handle(struct kvplane_cuda *kc, uint32_t region, const char *tag,
                                          unsigned long long handle, uint64_t len);

/* The slice for a range of the GPU's memory: what puts and gets name. NOT_FOUND: it is in no
 * region that was allocated, or adopted by address. */
KVPLANE_API int kvplane_cuda_slice(const struct kvplane_cuda *kc, const void *address, uint64_t len,
                                   struct kvplane_slice *slice_p);

/* Hands every region that is resident over to the daemon, under a new generation, which the library
 * counts. Call it from callbacks.attached with KVPLANE_OK. No descriptor stays open in this
 * process. Errors beside CUDA's: those of kvplane_register_region(); some may have been handed over
 * then, and handing over again is right. */
KVPLANE_API int kvplane_cuda_hand_over(struct kvplane_cuda *kc);

/* The daemon has taken every region that is resident, as it was last handed over. */
KVPLANE_API bool kvplane_cuda_ready(const struct kvplane_cuda *kc);

/*
 * What callbacks.release asks, for the regions of these tags (others are no mistake); answer with
 * what this returns.
 * commit = false: copies what offload[i] asks for to pinned memory of the host. All or nothing.
 * commit = true: held puts that name such a region complete with KVPLANE_ERR_GENERATION, so that
 * they cannot send what comes there next; then the memory is unmapped and given back, the address
 * kept. What is asked to be offloaded and was not is kept, too: BAD_STATE. An error leaves what was
 * not given back for the next try; kvplane_cuda_state() tells the truth.
 * Memory that was adopted: nothing is copied, and the engine frees it, after this and before it
 * answers.
 * Blocks until the GPU has done what it was given, and while it copies.
 */
KVPLANE_API int kvplane_cuda_release(struct kvplane_cuda *kc, bool commit, const char *const *tags,
                                     const bool *offload, size_t ntags);

/*
 * What callbacks.restore asks: fresh memory at the same addresses, what was offloaded copied back,
 * all of it handed over anew, also what was resident. Then the host's copies go. Memory that was
 * adopted has to be there again; by handle, or at another address: adopt it again first.
 * An error before the first was handed over: as before the call. After it: everything is resident
 * and the rest is handed over by the next try. Blocks while it copies.
 */
KVPLANE_API int kvplane_cuda_restore(struct kvplane_cuda *kc, const char *const *tags,
                                     size_t ntags);

/* Adds the tags of this handle's regions, for callbacks.state. Their texts live as long as the
 * handle. A tag whose regions are not all alike, or whose memory is neither usable nor given back,
 * is KVPLANE_UNKNOWN. */
KVPLANE_API void kvplane_cuda_state(const struct kvplane_cuda *kc, struct kvplane_state *state);

/* Every reference that the library itself has. Asleep: all 0 but for addresses, copies and events.
 */
struct kvplane_cuda_ledger {
    size_t regions, adopted;  /* adopted: of these */
    size_t mappings, handles; /* of the GPU's memory: each alone keeps it */
    uint64_t mapped_bytes;
    uint64_t address_bytes; /* reserved, which costs no memory */
    uint64_t offload_bytes; /* pinned memory of the host */
    size_t held;            /* puts */
    size_t events;          /* of CUDA, in use or kept for the next put */
};
KVPLANE_API void kvplane_cuda_get_ledger(const struct kvplane_cuda *kc,
                                         struct kvplane_cuda_ledger *ledger_p);

/* ---- puts that wait for the GPU ---- */

/*
 * kvplane_put(), sent when the GPU has done what is before `event`, or in `stream`, at the time of
 * this call; never earlier. The event must have been recorded by then: one that never was counts as
 * done in CUDA. It may be recorded anew or destroyed at once: the library does not look at it
 * again. No stream of the engine waits. Not while a stream is being captured into a graph.
 *
 * done is called exactly once, as kvplane_put()'s; also with KVPLANE_ERR_GENERATION if a region was
 * released meanwhile, DISCONNECTED if there is no daemon when the time has come, CANCELED at close,
 * and what CUDA's error is if the GPU did not do it: then nothing was put. Everything is copied
 * before this returns, but for the memory behind the slices, which belongs to the put until done.
 * A put that is held is unknown to the daemon: answer `pause` when kvplane_cuda_held() is 0, or
 * what is held at a sleep is not stored.
 *
 * Why polling: a put goes out when a query of an event of the library's own says so, and nothing
 * else. A host function in a stream would wake sooner, but runs on a thread of CUDA's, never if the
 * context is lost, and has to be waited for at the end, however long that takes.
 *
 * stream NULL: the legacy default stream. Errors beside CUDA's: INVALID and TOO_LARGE as
 * kvplane_put(), which may find more when it is sent; AGAIN: held_max are held; BAD_STATE: closing.
 */
KVPLANE_API int kvplane_cuda_put_after(struct kvplane_cuda *kc, struct CUevent_st *event,
                                       const struct kvplane_entry *entries, size_t n,
                                       kvplane_batch_fn done, void *arg);
KVPLANE_API int kvplane_cuda_put_after_stream(struct kvplane_cuda *kc, struct CUstream_st *stream,
                                              const struct kvplane_entry *entries, size_t n,
                                              kvplane_batch_fn done, void *arg);
KVPLANE_API size_t kvplane_cuda_held(const struct kvplane_cuda *kc);

/* ---- many small pieces as one slice ---- */

/*
 * A block whose bytes lie in many small pieces moves faster as one slice: gather packs them, in the
 * GPU, into one contiguous staging area (which is in a region of its own, or at the end of one),
 * from which the block is put; scatter spreads what a get brought there. Queued in `stream`: put
 * with kvplane_cuda_put_after_stream(), and do not reuse the staging area before the put is done,
 * nor, after a scatter, before the stream has done it. Packed in the order of a put's slices, the
 * stored bytes are the same, so engines that pack and engines that do not share blocks. The pieces
 * must not overlap each other nor the staging area, in either place.
 *
 * UNSUPPORTED: the kernel does not load on this GPU; use slices. INVALID: a piece is empty or its
 * address 0; TOO_LARGE: it reaches past 4 GiB of the staging area. Of an error of CUDA's between
 * pieces, those before may be done.
 */
struct kvplane_cuda_piece {
    void *address;   /* of the GPU's memory */
    uint64_t offset; /* in the staging area */
    uint64_t len;
};
KVPLANE_API int kvplane_cuda_gather(struct kvplane_cuda *kc, struct CUstream_st *stream,
                                    void *staging, const struct kvplane_cuda_piece *pieces,
                                    size_t n);
KVPLANE_API int kvplane_cuda_scatter(struct kvplane_cuda *kc, struct CUstream_st *stream,
                                     const void *staging, const struct kvplane_cuda_piece *pieces,
                                     size_t n);

#ifdef __cplusplus
}
#endif
#endif
