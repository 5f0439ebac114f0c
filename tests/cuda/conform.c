/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvplane takes a CUDA driver to do, as statements about whichever driver is found: the fake
 * (--fake: always run) and a real GPU's (exits 77, said aloud, where there is none). It keeps the
 * fake honest. Less than a minute on a device. Memory is told by cuMemGetInfo, which other
 * processes move: hence the sizes, and the tolerance, on a real one.
 */
#include "rig.h"

#include "engine.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define SKIPPED 77

static struct cuda_engine engine;
static struct cuda_rig rig;
static size_t unit; /* of memory: what the statements about holding are made with */
static size_t tolerance;
static unsigned failed;
static unsigned said;

static bool says(bool holds, const char *statement)
{
    said++;
    failed += !holds;
    (void)printf("%s %u - %s\n", holds ? "ok" : "not ok", said, statement);
    (void)fflush(stdout);
    return holds;
}

static void skips(const char *statement, const char *why)
{
    said++;
    (void)printf("ok %u - %s # SKIP %s\n", said, statement, why);
}

static size_t free_bytes(void)
{
    size_t n = 0;
    size_t total = 0;
    (void)engine.cu.mem_info(&n, &total);
    return n;
}

/* Within what others may move; what a process gave back is there a little later on some drivers. */
static bool free_is(size_t want)
{
    for (int i = 0; i < 200; i++) {
        size_t n = free_bytes();
        if ((n > want ? n - want : want - n) <= tolerance) {
            return true;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

static bool is(CUdevice_attribute attribute)
{
    int value = 0;
    return engine.cu.device_attribute(&value, attribute, engine.device) == CUDA_SUCCESS &&
           value != 0;
}

static size_t granularity(void)
{
    size_t n = 0;
    CUmemAllocationProp prop = engine_prop(&engine, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    (void)engine.cu.mem_granularity(&n, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return n;
}

/* ---- the rules of the calls ---- */

static void without_context(void)
{
    CUcontext none = NULL;
    (void)engine.cu.context_set(none);
    struct cuda_memory memory = {0};
    says(engine_allocate(&engine, &memory, granularity(),
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS,
         "virtual memory calls need no current context");
    uint8_t byte = 0;
    says(engine_fill(&engine, &memory, 0, &byte, 1) == CUDA_ERROR_INVALID_CONTEXT, "copies do");
    engine_free(&engine, &memory);
    (void)engine.cu.context_set(engine.context);
}

static void rules(void)
{
    const struct kvt_cu *cu = &engine.cu;
    size_t g = granularity();
    says(is(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
         "the device has virtual memory management");
    says(is(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
         "memory can be exported as descriptors");
    says(g >= 4096 && (g & (g - 1)) == 0, "the granularity is a power of two");

    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = engine_prop(&engine, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    says(cu->mem_create(&handle, g / 2, &prop, 0) != CUDA_SUCCESS,
         "a size that is no multiple of the granularity is refused");

    struct cuda_memory memory = {0};
    says(engine_allocate(&engine, &memory, 2 * g, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
             CUDA_SUCCESS,
         "memory is created, mapped and made accessible");
    CUmemAllocationProp said_to_be = {0};
    says(cu->mem_properties(&said_to_be, memory.handle) == CUDA_SUCCESS &&
             said_to_be.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
             said_to_be.location.id == engine.device,
         "a handle says which device its memory is on");
    CUdeviceptr elsewhere = 0;
    (void)cu->mem_reserve(&elsewhere, 2 * g, 0, 0, 0);
    says(cu->mem_map(elsewhere, g, g, memory.handle, 0) != CUDA_SUCCESS,
         "mapping from an offset is refused");
    (void)cu->mem_free(elsewhere, 2 * g);
    says(cu->mem_map(memory.at, 2 * g, 0, memory.handle, 0) != CUDA_SUCCESS,
         "mapping onto a mapping is refused");
    says(cu->mem_unmap(memory.at, g) != CUDA_SUCCESS, "unmapping a part is refused");
    uint8_t in[64];
    uint8_t out[64] = {0};
    memset(in, 0x5a, sizeof in);
    says(engine_fill(&engine, &memory, g, in, sizeof in) == CUDA_SUCCESS &&
             engine_read(&engine, &memory, g, out, sizeof out) == CUDA_SUCCESS &&
             memcmp(in, out, sizeof in) == 0,
         "what is written is read, and the refusals changed nothing");
    engine_free(&engine, &memory);

    struct cuda_memory secret = {0};
    (void)engine_allocate(&engine, &secret, g, CU_MEM_HANDLE_TYPE_NONE);
    says(engine_export(&engine, &secret) < 0,
         "memory that was not created for export cannot be exported");
    engine_free(&engine, &secret);

    int fds[2];
    kvb_assert(pipe(fds) == 0);
    says(cu->mem_import(&handle, (void *)(intptr_t)fds[0],
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS,
         "a descriptor of something else is refused");
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* ---- what keeps memory ---- */

static void send_fd(int to, int fd)
{
    char byte = 0;
    struct iovec iov = {&byte, 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    kvb_assert(sendmsg(to, &msg, 0) == 1);
}

/* Each way to hold memory: take it, and give it back. */
struct hold {
    int fd;
    int sockets[2];
    pid_t child;
    CUmemGenericAllocationHandle handle;
    struct cuda_memory memory;
};

static bool hold_fd(struct hold *hold, const struct cuda_memory *memory)
{
    hold->fd = engine_export(&engine, memory);
    return hold->fd >= 0;
}

static void drop_fd(struct hold *hold)
{
    (void)close(hold->fd);
}

static bool hold_unread(struct hold *hold, const struct cuda_memory *memory)
{
    int fd = engine_export(&engine, memory);
    kvb_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, hold->sockets) == 0);
    send_fd(hold->sockets[0], fd);
    (void)close(fd);
    return fd >= 0;
}

static void drop_unread(struct hold *hold)
{
    (void)close(hold->sockets[0]);
    (void)close(hold->sockets[1]);
}

static bool hold_child(struct hold *hold, const struct cuda_memory *memory)
{
    int fd = engine_export(&engine, memory);
    hold->child = fork(); /* it touches nothing of the driver */
    if (hold->child == 0) {
        for (;;) {
            (void)pause();
        }
    }
    (void)close(fd);
    return fd >= 0 && hold->child > 0;
}

static void drop_child(struct hold *hold)
{
    (void)kill(hold->child, SIGKILL);
    (void)waitpid(hold->child, NULL, 0);
}

static bool hold_handle(struct hold *hold, const struct cuda_memory *memory)
{
    int fd = engine_export(&engine, memory);
    CUresult result = engine.cu.mem_import(&hold->handle, (void *)(intptr_t)fd,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    (void)close(fd);
    return result == CUDA_SUCCESS;
}

static void drop_handle(struct hold *hold)
{
    (void)engine.cu.mem_release(hold->handle);
}

static bool hold_mapping(struct hold *hold, const struct cuda_memory *memory)
{
    hold->memory = (struct cuda_memory){.len = memory->len};
    CUmemAllocationProp prop = {0};
    bool ok = hold_handle(hold, memory) &&
              engine.cu.mem_properties(&prop, hold->handle) == CUDA_SUCCESS &&
              prop.location.id == engine.device && /* an import's handle says so, too */
              engine_map(&engine, &hold->memory, hold->handle) == CUDA_SUCCESS;
    drop_handle(hold);
    return ok;
}

static void drop_mapping(struct hold *hold)
{
    engine_free(&engine, &hold->memory);
}

static bool hold_dma_buf(struct hold *hold, const struct cuda_memory *memory)
{
    return engine.cu.mem_range_handle != NULL &&
           engine.cu.mem_range_handle(&hold->fd, memory->at, memory->len,
                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) == CUDA_SUCCESS;
}

static const struct {
    const char *kept, *gone;
    bool (*take)(struct hold *hold, const struct cuda_memory *memory);
    void (*drop)(struct hold *hold);
} holds[] = {
    {"an exported descriptor keeps memory", "closing it frees", hold_fd, drop_fd},
    {"a descriptor unread in a socket keeps memory", "closing the socket frees", hold_unread,
     drop_unread},
    {"a forked child keeps memory", "its end frees", hold_child, drop_child},
    {"an imported handle keeps memory", "releasing it frees", hold_handle, drop_handle},
    {"an imported mapping keeps memory, its handle released", "unmapping it frees", hold_mapping,
     drop_mapping},
    {"a dma-buf keeps memory", "closing it frees", hold_dma_buf, drop_fd},
};

static void holding(void)
{
    size_t before = free_bytes();
    for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++) {
        struct cuda_memory memory = {0};
        struct hold hold = {.fd = -1};
        if (holds[i].take == hold_dma_buf && !is(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) {
            skips(holds[i].kept, "the device has no dma-bufs");
            continue;
        }
        if (engine_allocate(&engine, &memory, unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
                CUDA_SUCCESS ||
            !free_is(before - unit) || !holds[i].take(&hold, &memory)) {
            says(false, holds[i].kept);
            engine_free(&engine, &memory);
            continue;
        }
        engine_release(&engine, &memory);
        says(free_is(before - unit), holds[i].kept);
        holds[i].drop(&hold);
        says(free_is(before), holds[i].gone);
        engine_free(&engine, &memory);
    }
    struct cuda_memory memory = {0};
    (void)engine_allocate(&engine, &memory, unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    engine_release(&engine, &memory);
    says(free_is(before), "an address that is only reserved keeps nothing");
    engine_free(&engine, &memory);
}

static void remapping(void)
{
    struct cuda_memory memory = {0};
    struct hold old = {0};
    uint8_t a[64], b[64], seen[64] = {0};
    memset(a, 'A', sizeof a);
    memset(b, 'B', sizeof b);
    (void)engine_allocate(&engine, &memory, granularity(),
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr at = memory.at;
    (void)engine_fill(&engine, &memory, 0, a, sizeof a);
    bool ok = hold_mapping(&old, &memory);
    engine_release(&engine, &memory); /* sleep, wake */
    ok = ok && engine_allocate(&engine, &memory, granularity(),
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS;
    (void)engine_fill(&engine, &memory, 0, b, sizeof b);
    says(ok && memory.at == at, "new memory is mapped at the old address");
    says(engine_read(&engine, &old.memory, 0, seen, sizeof seen) == CUDA_SUCCESS &&
             memcmp(seen, a, sizeof a) == 0,
         "an old import goes on seeing the old memory, without any error");
    drop_mapping(&old);
    engine_free(&engine, &memory);
}

static void fabric(void)
{
    static const char statement[] = "a fabric handle is imported, and keeps nothing by itself";
    struct cuda_memory memory = {0};
    size_t before = free_bytes();
    if (!is(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) ||
        engine_allocate(&engine, &memory, unit, CU_MEM_HANDLE_TYPE_FABRIC) != CUDA_SUCCESS) {
        engine_free(&engine, &memory);
        skips(statement, "no fabric (or no IMEX channel)");
        return;
    }
    uint8_t blob[KVT_CU_FABRIC_LEN] = {0};
    CUmemGenericAllocationHandle handle = 0;
    bool ok =
        engine.cu.mem_export(blob, memory.handle, CU_MEM_HANDLE_TYPE_FABRIC, 0) == CUDA_SUCCESS &&
        engine.cu.mem_import(&handle, blob, CU_MEM_HANDLE_TYPE_FABRIC) == CUDA_SUCCESS &&
        engine.cu.mem_release(handle) == CUDA_SUCCESS;
    engine_free(&engine, &memory);
    says(ok && free_is(before), statement);
}

/* ---- copies ---- */

#define PIECES 16u

static bool round_trip(bool batched, int abi)
{
    const struct kvt_cu *cu = &engine.cu;
    static uint8_t out[PIECES][4096] __attribute__((aligned(4096)));
    static uint8_t in[PIECES][4096] __attribute__((aligned(4096)));
    struct cuda_memory memory = {0};
    CUstream stream = NULL;
    CUdeviceptr device[PIECES], from[PIECES], to[PIECES];
    size_t sizes[PIECES];
    CUmemcpyAttributes any = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY};
    CUmemcpyAttributes ordered = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t zero = 0;
    size_t failed_at = 0;

    bool ok = engine_allocate(&engine, &memory, granularity(),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS &&
              cu->stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
              cu->host_register(out, sizeof out, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS &&
              cu->host_register(in, sizeof in, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    for (unsigned i = 0; i < PIECES; i++) {
        memset(out[i], 0x40 + (int)i, sizeof out[i]);
        device[i] = memory.at + (CUdeviceptr)(PIECES - 1 - i) * 8192;
        from[i] = (CUdeviceptr)(uintptr_t)out[i];
        to[i] = (CUdeviceptr)(uintptr_t)in[i];
        sizes[i] = sizeof out[i];
    }
    memset(in, 0, sizeof in);
    for (unsigned i = 0; i < PIECES && ok && !batched; i++) {
        ok = cu->copy_in_async(device[i], out[i], sizes[i], stream) == CUDA_SUCCESS &&
             cu->copy_out_async(in[i], device[i], sizes[i], stream) == CUDA_SUCCESS;
    }
    if (ok && batched && abi == 12) {
        ok = cu->copy_batch_v12(device, from, sizes, PIECES, &any, &zero, 1, &failed_at, stream) ==
                 CUDA_SUCCESS &&
             cu->copy_batch_v12(to, device, sizes, PIECES, &ordered, &zero, 1, &failed_at,
                                stream) == CUDA_SUCCESS;
    } else if (ok && batched) {
        ok = cu->copy_batch_v13(device, from, sizes, PIECES, &any, &zero, 1, stream) ==
                 CUDA_SUCCESS &&
             cu->copy_batch_v13(to, device, sizes, PIECES, &ordered, &zero, 1, stream) ==
                 CUDA_SUCCESS;
    }
    ok = ok && cu->stream_sync(stream) == CUDA_SUCCESS && memcmp(in, out, sizeof in) == 0;
    (void)cu->host_unregister(out);
    (void)cu->host_unregister(in);
    if (stream != NULL) {
        (void)cu->stream_destroy(stream);
    }
    engine_free(&engine, &memory);
    return ok;
}

static void copies(void)
{
    static const char twelve[] = "and as a batch, as the driver 12.8 has it";
    static const char thirteen[] = "and as a batch, as the driver 13.0 has it";
    says(round_trip(false, 0), "copies on a stream go there and back, in order");
    if (engine.cu.copy_batch_v12 != NULL) {
        says(round_trip(true, 12), twelve);
    } else {
        skips(twelve, "older driver");
    }
    if (engine.cu.copy_batch_v13 != NULL) {
        says(round_trip(true, 13), thirteen);
    } else {
        skips(thirteen, "older driver");
    }
}

int main(int argc, char **argv)
{
    bool fake = argc > 1 && strcmp(argv[1], "--fake") == 0;
    char why[256];
    if (fake && !cuda_rig_init(&rig, 64)) {
        (void)printf("SKIP: nothing can be mounted here (%s)\n", strerror(errno));
        return SKIPPED;
    }
    kvb_status_t status = kvt_cu_open(KVT_CU_LIBRARY, &engine.cu, why);
    if (status != KVB_OK) {
        (void)printf("SKIP: %s\n", why);
        return fake ? 1 : SKIPPED;
    }
    if (engine_open(&engine) != CUDA_SUCCESS) {
        (void)printf("not ok - a context on device 0\n");
        return 1;
    }
    unit = fake ? 4 * granularity() : (size_t)1 << 30;
    tolerance = fake ? 0 : (size_t)64 << 20;
    (void)printf("# driver %d.%d, %d device(s)\n", engine.cu.version / 1000,
                 engine.cu.version % 1000 / 10, engine.cu.ndevices);
    rules();
    without_context();
    holding();
    remapping();
    fabric();
    copies();
    engine_close(&engine);
    if (fake) {
        says(cuda_rig_held(&rig) == 0, "in the end nothing is held, no context either");
        cuda_rig_cleanup(&rig);
    }
    (void)printf("1..%u\n", said);
    return failed == 0 ? 0 : 1;
}
