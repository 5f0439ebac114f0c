/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime.h"

#include "driver.h"
#include "fake.h"
#include "pieces.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum runtime_call {
#define X(name, arguments) RUNTIME_##name,
    RUNTIME_CALLS(X)
#undef X
};

struct mark { /* one recording of an event: what waits for it waits for that one */
    unsigned references;
    bool fired;
};
struct CUevent_st {
    struct mark *mark; /* the latest; NULL: none */
};
enum kind { COPY, RECORD, WAIT, KERNEL };
struct work {
    struct work *next;
    enum kind kind;
    void *to;
    const void *from;
    size_t len;
    enum cudaMemcpyKind direction;
    struct mark *mark;
    struct pieces pieces;
    dim3 grid, block;
};
struct CUstream_st {
    struct CUstream_st *next_stream;
    pthread_t thread;
    struct work *first, *last;
    bool begun, busy, paused, ends;
};
struct CUlib_st {
    int unused;
};
struct CUkern_st {
    int unused;
};

struct fake_runtime fake_runtime;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct kvt_cu cu;
static struct fake_cuda_control *control;
static CUcontext contexts[FAKE_CUDA_DEVICES];
static struct CUstream_st *streams;
static cudaError_t sticky;
static struct CUkern_st the_kernel;
static _Thread_local cudaError_t last_error;
static _Thread_local int current;

/* ---- the start, and the fuse ---- */

static void start(void)
{
    char why[256];
    char path[300];
    kvb_status_t status = kvt_cu_open(KVT_CU_LIBRARY, &cu, why);
    if (status != KVB_OK) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s/" FAKE_CUDA_CONTROL, getenv("FAKE_CUDA_DIR"));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    kvb_assert(fd >= 0);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    kvb_assert(control != MAP_FAILED);
}

/* As the driver's own. */
static bool burns(enum runtime_call call)
{
    int spared = atomic_load(&control->spared);
    unsigned only = atomic_load(&control->only);
    int victim = atomic_load(&control->victim);
    bool counts = spared != (int)getpid() && (victim == 0 || victim == (int)getpid());
    if (!counts || (only != 0 && only != FAKE_CUDA_CALLS + (unsigned)call + 1)) {
        return false;
    }
    unsigned left = atomic_load(&control->fuse);
    while (left > 0 && !atomic_compare_exchange_weak(&control->fuse, &left, left - 1)) {
    }
    if (left == 1) {
        atomic_store(&control->fired_call, FAKE_CUDA_CALLS + (unsigned)call);
        (void)atomic_fetch_add(&control->fired, 1);
    }
    return left == 1;
}

static cudaError_t use(int device)
{
    if (contexts[device] == NULL && cu.context_retain(&contexts[device], device) != CUDA_SUCCESS) {
        return cudaErrorMemoryAllocation;
    }
    return (cudaError_t)cu.context_set(contexts[device]);
}

static cudaError_t enter(enum runtime_call call)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, start);
    if (control == NULL) {
        return cudaErrorInsufficientDriver;
    }
    if (sticky == cudaSuccess && burns(call)) {
        return (cudaError_t)atomic_load(&control->code);
    }
    return sticky;
}

static cudaError_t leave(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

#define ENTER(name)                                                                                \
    cudaError_t entered = enter(RUNTIME_##name);                                                   \
    if (entered != cudaSuccess) {                                                                  \
        return leave(entered);                                                                     \
    }

const char *fake_runtime_fired(unsigned call)
{
    static const char *const names[] = {
#define X(need, name, version, member, arguments) #name,
        KVT_CU_CALLS(X) FAKE_CUDA_ENGINE_CALLS(X)
#undef X
#define X(name, arguments) #name,
            RUNTIME_CALLS(X)
#undef X
    };
    return call < sizeof names / sizeof names[0] ? names[call] : "nothing";
}

/* ---- devices and errors ---- */

cudaError_t cudaGetDevice(int *device)
{
    ENTER(cudaGetDevice);
    *device = current;
    return leave(use(current));
}

cudaError_t cudaSetDevice(int device)
{
    ENTER(cudaSetDevice);
    if (device < 0 || device >= cu.ndevices) {
        return leave(cudaErrorInvalidDevice);
    }
    cudaError_t error = use(device);
    current = error == cudaSuccess ? device : current;
    return leave(error);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = sticky;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
#define X(name, value)                                                                             \
    case name:                                                                                     \
        return #name;
        RUNTIME_CONSTANTS(X)
#undef X
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **address,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    typedef CUresult (*get_fn)(const char *, void **, int, cuuint64_t,
                               CUdriverProcAddressQueryResult *);
    ENTER(cudaGetDriverEntryPointByVersion);
    CUdriverProcAddressQueryResult result = 0;
    get_fn get;
    void *library = dlopen(KVT_CU_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    void *symbol_of_get = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    kvb_assert(symbol_of_get != NULL && flags == cudaEnableDefault);
    memcpy(&get, &symbol_of_get, sizeof get);
    CUresult error = get(symbol, address, (int)version, 0, &result);
    (void)dlclose(library);
    *found = (enum cudaDriverEntryPointQueryResult)result;
    return leave(error == CUDA_ERROR_NOT_FOUND ? cudaSuccess : (cudaError_t)error);
}

/* ---- what a stream does ---- */

static cudaError_t copy_now(void *to, const void *from, size_t len, enum cudaMemcpyKind direction)
{
    return (cudaError_t)(direction == cudaMemcpyHostToDevice
                             ? cu.copy_in((CUdeviceptr)(uintptr_t)to, from, len)
                             : cu.copy_out(to, (CUdeviceptr)(uintptr_t)from, len));
}

static uint64_t address_of(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/* Every thread of the grid, on copies of what the pieces name. */
static cudaError_t run_kernel(const struct work *work)
{
    struct pieces pieces = work->pieces;
    uint8_t *staging[PIECES_MAX];
    uint8_t *scattered[PIECES_MAX];
    cudaError_t error = cudaSuccess;
    kvb_assert(work->grid.y <= PIECES_MAX && work->grid.z == 1);
    for (unsigned y = 0; y < work->grid.y; y++) {
        const struct pieces_piece *piece = &work->pieces.piece[y];
        staging[y] = malloc(piece->len);
        scattered[y] = malloc(piece->len);
        kvb_assert(staging[y] != NULL && scattered[y] != NULL);
        const void *staged = (const void *)(uintptr_t)(pieces.staging + piece->offset);
        const void *at = (const void *)(uintptr_t)piece->address;
        error = error != cudaSuccess
                    ? error
                    : copy_now(staging[y], staged, piece->len, cudaMemcpyDeviceToHost);
        error = error != cudaSuccess
                    ? error
                    : copy_now(scattered[y], at, piece->len, cudaMemcpyDeviceToHost);
    }
    for (unsigned y = 0; y < work->grid.y && error == cudaSuccess; y++) {
        const struct pieces_piece *piece = &work->pieces.piece[y];
        struct pieces one = work->pieces;
        one.staging = address_of(staging[y]);
        one.piece[y].offset = 0;
        one.piece[y].address = address_of(scattered[y]);
        uint32_t lanes = work->grid.x * work->block.x;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            pieces_copy(&one, y, lane, lanes);
        }
        void *staged = (void *)(uintptr_t)(pieces.staging + piece->offset);
        void *at = (void *)(uintptr_t)piece->address;
        error = pieces.scatter != 0
                    ? copy_now(at, scattered[y], piece->len, cudaMemcpyHostToDevice)
                    : copy_now(staged, staging[y], piece->len, cudaMemcpyHostToDevice);
    }
    for (unsigned y = 0; y < work->grid.y; y++) {
        free(staging[y]);
        free(scattered[y]);
    }
    fake_runtime.launches++;
    return error;
}

static void drop_mark(struct mark *mark)
{
    if (mark != NULL && --mark->references == 0) {
        free(mark);
    }
}

/* The lock is held, and let go while bytes move. */
static void run_locked(struct work *work)
{
    cudaError_t error = cudaSuccess;
    if (work->kind == WAIT) {
        while (work->mark != NULL && !work->mark->fired && sticky == cudaSuccess) {
            (void)pthread_cond_wait(&changed, &lock);
        }
    } else if (work->kind == RECORD) {
        work->mark->fired = true;
    } else if (sticky == cudaSuccess) {
        (void)pthread_mutex_unlock(&lock);
        error = work->kind == KERNEL ? run_kernel(work)
                                     : copy_now(work->to, work->from, work->len, work->direction);
        (void)pthread_mutex_lock(&lock);
    }
    drop_mark(work->mark);
    sticky = error != cudaSuccess && sticky == cudaSuccess ? cudaErrorIllegalAddress : sticky;
    free(work);
    (void)pthread_cond_broadcast(&changed);
}

static void *run_stream(void *arg)
{
    struct CUstream_st *stream = arg;
    (void)cu.context_set(contexts[0]);
    (void)pthread_mutex_lock(&lock);
    stream->begun = true;
    (void)pthread_cond_broadcast(&changed);
    while (!stream->ends || stream->first != NULL) {
        if (stream->first == NULL || (stream->paused && !stream->ends)) {
            (void)pthread_cond_wait(&changed, &lock);
            continue;
        }
        struct work *work = stream->first;
        stream->first = work->next;
        stream->busy = true;
        run_locked(work);
        stream->busy = false;
        (void)pthread_cond_broadcast(&changed);
    }
    (void)pthread_mutex_unlock(&lock);
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    ENTER(cudaStreamCreateWithFlags);
    kvb_assert(flags == cudaStreamNonBlocking);
    struct CUstream_st *made = calloc(1, sizeof *made);
    kvb_assert(made != NULL);
    (void)pthread_mutex_lock(&lock);
    made->next_stream = streams;
    streams = made;
    fake_runtime.streams++;
    (void)pthread_mutex_unlock(&lock);
    kvb_assert(pthread_create(&made->thread, NULL, run_stream, made) == 0);
    /* Its thread's call of the driver counts here, not in what the test counts next. */
    (void)pthread_mutex_lock(&lock);
    while (!made->begun) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
    *stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER(cudaStreamDestroy);
    (void)pthread_mutex_lock(&lock);
    stream->ends = true;
    (void)pthread_cond_broadcast(&changed);
    struct CUstream_st **at = &streams;
    while (*at != stream) {
        at = &(*at)->next_stream;
    }
    *at = stream->next_stream;
    fake_runtime.streams--;
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_join(stream->thread, NULL);
    free(stream);
    return cudaSuccess;
}

static cudaError_t submit(cudaStream_t stream, const struct work *what)
{
    struct work *work = malloc(sizeof *work);
    kvb_assert(work != NULL);
    *work = *what;
    work->next = NULL;
    (void)pthread_mutex_lock(&lock);
    if (work->mark != NULL) {
        work->mark->references++;
    }
    if (stream->first == NULL) {
        stream->first = work;
    } else {
        stream->last->next = work;
    }
    stream->last = work;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    ENTER(cudaStreamWaitEvent);
    kvb_assert(flags == 0);
    return submit(stream, &(struct work){.kind = WAIT, .mark = event->mark});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ENTER(cudaMemcpyAsync);
    return submit(stream, &(struct work){
                              .kind = COPY, .to = to, .from = from, .len = len, .direction = kind});
}

/* With streams that do not block it, as all are here, a copy waits for nobody. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t len, enum cudaMemcpyKind kind)
{
    ENTER(cudaMemcpy);
    return leave(copy_now(to, from, len, kind));
}

static bool is_idle_locked(const struct CUstream_st *stream)
{
    return (stream->first == NULL && !stream->busy) || stream->paused;
}

void fake_runtime_drain(void)
{
    (void)pthread_mutex_lock(&lock);
    struct CUstream_st *stream = streams;
    while (stream != NULL) {
        if (is_idle_locked(stream)) {
            stream = stream->next_stream;
        } else {
            (void)pthread_cond_wait(&changed, &lock);
            stream = streams;
        }
    }
    (void)pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER(cudaStreamSynchronize);
    fake_runtime_pause(stream, false);
    fake_runtime_drain();
    return leave(sticky);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER(cudaDeviceSynchronize);
    (void)pthread_mutex_lock(&lock);
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next_stream) {
        stream->paused = false;
    }
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    fake_runtime_drain();
    return leave(sticky);
}

cudaError_t cudaDeviceReset(void)
{
    for (int i = 0; i < FAKE_CUDA_DEVICES; i++) {
        if (contexts[i] != NULL) {
            (void)cu.context_release(i);
            contexts[i] = NULL;
        }
    }
    return cudaSuccess;
}

void fake_runtime_pause(cudaStream_t stream, bool paused)
{
    (void)pthread_mutex_lock(&lock);
    stream->paused = paused;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

void fake_runtime_lose(cudaError_t error)
{
    (void)pthread_mutex_lock(&lock);
    sticky = error;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    ENTER(cudaEventCreateWithFlags);
    kvb_assert(flags == cudaEventDisableTiming);
    struct CUevent_st *made = calloc(1, sizeof *made);
    kvb_assert(made != NULL);
    fake_runtime.events++;
    *event = made;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER(cudaEventRecord);
    struct mark *mark = calloc(1, sizeof *mark);
    kvb_assert(mark != NULL);
    (void)pthread_mutex_lock(&lock);
    drop_mark(event->mark);
    event->mark = mark;
    mark->references = 1;
    (void)pthread_mutex_unlock(&lock);
    return submit(stream, &(struct work){.kind = RECORD, .mark = mark});
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ENTER(cudaEventQuery);
    (void)pthread_mutex_lock(&lock);
    bool fired = event->mark == NULL || event->mark->fired;
    cudaError_t error = sticky != cudaSuccess ? sticky : fired ? cudaSuccess : cudaErrorNotReady;
    (void)pthread_mutex_unlock(&lock);
    return leave(error);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ENTER(cudaEventDestroy);
    (void)pthread_mutex_lock(&lock);
    fake_runtime.events--;
    drop_mark(event->mark);
    (void)pthread_mutex_unlock(&lock);
    free(event);
    return cudaSuccess;
}

/* ---- pinned memory ---- */

cudaError_t cudaHostAlloc(void **host, size_t size, unsigned int flags)
{
    ENTER(cudaHostAlloc);
    kvb_assert(flags == cudaHostAllocDefault);
    size_t *made = malloc(sizeof *made * 2 + size);
    kvb_assert(made != NULL);
    *made = size;
    fake_runtime.host_bytes += size;
    *host = made + 2;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *host)
{
    ENTER(cudaFreeHost);
    size_t *made = (size_t *)host - 2;
    fake_runtime.host_bytes -= *made;
    free(made);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    ENTER(cudaMemGetInfo);
    return leave((cudaError_t)cu.mem_info(free_bytes, total_bytes));
}

/* ---- the kernel ---- */

/* Text as of pieces.ptx, or what nvcc packs. */
static bool is_image(const void *code)
{
    static const unsigned char packed[] = {0x50, 0xed, 0x55, 0xba};
    return memcmp(code, packed, sizeof packed) == 0 ||
           strstr(code, ".visible .entry " PIECES_KERNEL "(") != NULL;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit,
                                void **jit_values, unsigned int njit,
                                enum cudaLibraryOption *options, void **values,
                                unsigned int noptions)
{
    ENTER(cudaLibraryLoadData);
    kvb_assert(jit == NULL && jit_values == NULL && njit == 0);
    kvb_assert(options == NULL && values == NULL && noptions == 0);
    if (fake_runtime.no_image != cudaSuccess) {
        return leave(fake_runtime.no_image);
    }
    if (!is_image(code)) {
        return leave(cudaErrorInvalidPtx);
    }
    *library = calloc(1, sizeof **library);
    kvb_assert(*library != NULL);
    fake_runtime.libraries++;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    ENTER(cudaLibraryGetKernel);
    if (library == NULL || strcmp(name, PIECES_KERNEL) != 0) {
        return leave(cudaErrorSymbolNotFound);
    }
    *kernel = &the_kernel;
    return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    ENTER(cudaLibraryUnload);
    fake_runtime.libraries--;
    free(library);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    ENTER(cudaLaunchKernel);
    kvb_assert(function == &the_kernel && shared_bytes == 0);
    struct work work = {.kind = KERNEL, .grid = grid, .block = block};
    memcpy(&work.pieces, arguments[0], sizeof work.pieces);
    return submit(stream, &work);
}
