/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define SGES_MAX     32
#define SEGMENTS_MAX 16
#define CM_REQ_DATA  56u /* what private data is padded to on its way */
#define CM_REP_DATA  196u
#define CM_REJ_DATA  148u

/* ---- objects ---- */

enum kind { CONTEXT = 1, CHANNEL, ID, PD, MR, COMP, CQ, SRQ, QP };

/* Destroyed ones are kept until the end, so that whoever uses one is told. */
struct object {
    struct kvb_list link; /* all */
    enum kind kind;
    enum fake_side side;
    bool dead;
    uint32_t uses; /* by others */
};

struct context {
    struct ibv_context base;
    struct object object;
    struct ibv_device device;
    struct kvb_list events; /* struct async */
};
struct async {
    struct kvb_list link;
    struct ibv_async_event event;
};

struct channel {
    struct rdma_event_channel base;
    struct object object;
    struct kvb_list events; /* struct cm_event */
};

enum id_state {
    IDLE,
    BOUND,
    RESOLVED,
    ROUTED,
    LISTENING,
    CONNECTING, /* asked, or accepted: the other end's word is awaited */
    REQUESTED,  /* asked for */
    CONNECTED,
    OVER,
};
struct id {
    struct rdma_cm_id base;
    struct object object;
    enum id_state state;
    struct id *peer;                   /* the other end; NULL: none, or it is gone */
    uint32_t unacked;                  /* events got */
    uint64_t give_up_ns;               /* connecting; 0: not */
    struct rdma_conn_param own, other; /* what each end said */
    bool said, told;                   /* own, other are known */
};

struct cm_event {
    struct rdma_cm_event base;
    struct kvb_list link;
    struct id *to;
    struct id *from;
    uint64_t due_ns;
    uint8_t data[256];
};

struct pd {
    struct ibv_pd base;
    struct object object;
};

struct segment {
    uint64_t at, len;
    uint8_t *pages; /* the physical ones */
    bool own;       /* a mapping of ours */
    bool device;    /* of memory that the CPU does not reach there */
    uint64_t inode, offset;
};
struct mr {
    struct ibv_mr base;
    struct object object;
    int access;
    uint32_t lkey, rkey; /* the device's own memory of them */
    uint32_t nsegments;
    struct segment segments[SEGMENTS_MAX];
};

struct comp {
    struct ibv_comp_channel base;
    struct object object;
    struct kvb_list events; /* struct cq_event */
};
struct cq_event {
    struct kvb_list link;
    struct cq *cq;
};

struct entry { /* of a completion queue */
    struct kvb_list link;
    struct ibv_wc wc;
    struct work *work; /* NULL: its queue is gone */
    bool solicited;
};
struct cq {
    struct ibv_cq base;
    struct object object;
    struct kvb_list entries, held;
    uint32_t n;
    bool armed, solicited_only;
    uint32_t unacked, signalled;
};

/* A posted request. It holds its memory and its place until its completion, or a later one of the
 * same queue, was polled. */
struct work {
    struct kvb_list link; /* of `waiting`, then `ended` */
    struct qp *qp;        /* that it was posted on, or received for; NULL: none yet */
    uint64_t wr_id;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    uint32_t imm;
    uint32_t n;
    struct ibv_sge sges[SGES_MAX];
    uint64_t total, done;
    uint64_t remote;
    uint32_t rkey;
    uint8_t *payload; /* inline, forged, or read early */
    bool begun, backwards, acking;
};
struct queue {
    struct kvb_list waiting, ended;
    uint32_t used, max, sges;
};
struct srq {
    struct ibv_srq base;
    struct object object;
    struct queue queue;
};
struct qp {
    struct ibv_qp base;
    struct object object;
    struct queue sq, rq;
    struct ibv_qp_attr attr; /* as it was moved */
    struct ibv_qp_cap cap;
    uint64_t ready_ns; /* not before */
    uint64_t retry_ns; /* its first request fails then; 0: it is not waiting */
    bool all_signalled;
};

static struct {
    struct fake_verbs base;
    struct kvb_list objects, dead;
    struct kvb_list cm; /* struct cm_event, on the way */
    struct context contexts[FAKE_SIDES];
    struct kvb_event event;
    struct kvb_timer timer;
    uint64_t random;
    uint32_t numbers;
    uint16_t ports;
    struct fake_io *ios;
    bool removed[FAKE_SIDES];
    bool frozen[FAKE_SIDES]; /* removed, and nothing is flushed */
    const char *fail_name, *failed_name;
    uint64_t fail_after;
    int fail_errno;
    struct {
        bool set;
        enum ibv_wc_opcode kind;
        uint64_t after;
        enum ibv_wc_status status;
    } status[FAKE_SIDES];
    fake_verbs_tap_fn tap;
    void *tap_ctx;
    uint8_t tapped[FAKE_MESSAGE_MAX];
} fake;

#define OBJECT_OF(type, from) kvb_container_of((from), struct type, base)

static void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void misuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fake.base.misuse, sizeof fake.base.misuse, format, args);
    va_end(args);
    fake.base.misuses++;
    if (!fake.base.tolerant) {
        (void)fprintf(stderr, "fake verbs: misuse: %s (seed %lu)\n", fake.base.misuse,
                      fake.base.sim->seed);
        abort();
    }
}

/* Not through malloc: a test may have that fail. */
static void *get(size_t size)
{
    void *p = NULL;
    kvb_assert(posix_memalign(&p, 16, size) == 0);
    memset(p, 0, size);
    return p;
}

static uint64_t below(uint64_t n)
{
    return splitmix_next(&fake.random) % n;
}

static uint64_t now_ns(void)
{
    return kvb_now_ns(fake.base.sim->sched.clock);
}

static uint64_t later_ns(void)
{
    return fake.base.delay_ns == 0 ? now_ns() : now_ns() + below(fake.base.delay_ns + 1);
}

static void object_init(struct object *object, enum kind kind, enum fake_side side)
{
    *object = (struct object){.kind = kind, .side = side};
    kvb_list_push_back(&fake.objects, &object->link);
}

static void object_end(struct object *object)
{
    object->dead = true;
    kvb_list_remove(&object->link);
    kvb_list_push_back(&fake.dead, &object->link);
}

/* True: it is one, and alive. */
static bool alive(const struct object *object, enum kind kind, const char *call)
{
    if (object->kind != kind || object->dead) {
        misuse("%s: what it names was destroyed", call);
        return false;
    }
    return true;
}

static bool removed(const struct object *object)
{
    return fake.removed[object->side];
}

/* Each call that can fail begins with it. destroys: only where it is named. */
static bool fails(const char *call, bool destroys)
{
    fake.base.calls++;
    if (fake.fail_after == UINT64_MAX ||
        (fake.fail_name == NULL ? destroys : strcmp(fake.fail_name, call) != 0) ||
        fake.fail_after-- > 0) {
        return false;
    }
    fake.fail_after = UINT64_MAX;
    fake.failed_name = call;
    errno = fake.fail_errno;
    return true;
}
#define FAILS() fails(__func__ + sizeof "fake_" - 1, false)

static void kick(void)
{
    if (!kvb_event_posted(&fake.event)) {
        kvb_sched_post(&fake.base.sim->sched, &fake.event);
    }
}

/* ---- descriptors ---- */

static void look_again(void)
{
    for (struct fake_io *io = fake.ios; io != NULL; io = io->next) {
        kvb_sched_post(&io->sim->sched, &io->look);
    }
}

static int descriptor(void)
{
    return eventfd(0, EFD_CLOEXEC);
}

/* Ready exactly as long as there is something. */
static void show(int fd, const struct kvb_list *list)
{
    uint64_t value = 1;
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    bool ready = poll(&poller, 1, 0) == 1;
    if (ready == !kvb_list_empty(list)) {
        return;
    }
    if (ready) {
        kvb_assert(read(fd, &value, sizeof value) == sizeof value);
    } else {
        kvb_assert(write(fd, &value, sizeof value) == sizeof value);
        look_again();
    }
}

static bool would_block(int fd, const char *call)
{
    if ((fcntl(fd, F_GETFL) & O_NONBLOCK) == 0) {
        misuse("%s: nothing is there, and the descriptor would block", call);
    }
    errno = EAGAIN;
    return true;
}

static kvb_status_t io_watch(struct kvb_io *base, struct kvb_io_watch *watch, unsigned events)
{
    struct fake_io *io = kvb_container_of(base, struct fake_io, base);
    for (uint32_t i = 0; i < FAKE_IO_MAX; i++) {
        if (io->watches[i] == watch || (watch->impl == NULL && io->watches[i] == NULL)) {
            io->watched += io->watches[i] == NULL;
            io->watches[i] = watch;
            io->events[i] = events;
            watch->impl = io;
            kvb_sched_post(&io->sim->sched, &io->look);
            return KVB_OK;
        }
    }
    return KVB_ERR_LIMIT;
}

static void io_unwatch(struct kvb_io *base, struct kvb_io_watch *watch)
{
    struct fake_io *io = kvb_container_of(base, struct fake_io, base);
    for (uint32_t i = 0; i < FAKE_IO_MAX; i++) {
        if (io->watches[i] == watch) {
            io->watches[i] = NULL;
            io->watched--;
        }
    }
    watch->impl = NULL;
}

static void io_look(struct kvb_event *event)
{
    struct fake_io *io = kvb_container_of(event, struct fake_io, look);
    struct pollfd fds[FAKE_IO_MAX];
    for (uint32_t i = 0; i < FAKE_IO_MAX; i++) {
        const struct kvb_io_watch *watch = io->watches[i];
        fds[i] = (struct pollfd){.fd = watch != NULL && io->events[i] != 0 ? watch->fd : -1};
        fds[i].events = (short)(((io->events[i] & KVB_IO_READ) != 0 ? POLLIN : 0) |
                                ((io->events[i] & KVB_IO_WRITE) != 0 ? POLLOUT : 0));
    }
    if (poll(fds, FAKE_IO_MAX, 0) <= 0) {
        return;
    }
    for (uint32_t i = 0; i < FAKE_IO_MAX; i++) {
        struct kvb_io_watch *watch = io->watches[i];
        if (fds[i].revents != 0 && watch != NULL && watch->fd == fds[i].fd) {
            watch->fn(watch, ((fds[i].revents & ~POLLOUT) != 0 ? KVB_IO_READ : 0u) |
                                 ((fds[i].revents & ~POLLIN) != 0 ? KVB_IO_WRITE : 0u));
        }
    }
    kvb_sched_post(&io->sim->sched, &io->look);
}

void fake_io_init(struct fake_io *io, struct sim_sched *sim)
{
    static const struct kvb_io_ops ops = {.watch = io_watch, .unwatch = io_unwatch};
    *io = (struct fake_io){.base = {.ops = &ops}, .sim = sim, .next = fake.ios};
    kvb_event_init(&io->look, io_look);
    fake.ios = io;
}

void fake_io_cleanup(struct fake_io *io)
{
    kvb_assert(io->watched == 0);
    kvb_sched_unpost(&io->look);
    for (struct fake_io **at = &fake.ios; *at != NULL; at = &(*at)->next) {
        if (*at == io) {
            *at = io->next;
            break;
        }
    }
}

/* ---- devices ---- */

static struct context *context_of(enum fake_side side)
{
    return &fake.contexts[side];
}

static struct ibv_context *context_open(enum fake_side side)
{
    struct context *context = context_of(side);
    if (context->base.async_fd < 0) {
        context->base.async_fd = descriptor();
    }
    return &context->base;
}

static void async_put(enum fake_side side, struct ibv_async_event event)
{
    struct context *context = context_of(side);
    if (context->base.async_fd < 0) {
        return;
    }
    struct async *async = get(sizeof *async);
    async->event = event;
    kvb_list_push_back(&context->events, &async->link);
    show(context->base.async_fd, &context->events);
}

static struct ibv_context **fake_rdma_get_devices(int *n_p)
{
    if (FAILS()) {
        return NULL;
    }
    struct ibv_context **list = get((FAKE_SIDES + 1) * sizeof(void *));
    int n = 0;
    for (int side = 0; side < FAKE_SIDES; side++) {
        if (!fake.base.devices[side].absent && !fake.removed[side]) {
            list[n++] = context_open((enum fake_side)side);
        }
    }
    fake.base.open.lists++;
    if (n_p != NULL) {
        *n_p = n;
    }
    return list;
}

static void fake_rdma_free_devices(struct ibv_context **list)
{
    fake.base.open.lists--;
    free(list);
}

static int fake_ibv_query_device(struct ibv_context *base, struct ibv_device_attr *attr_p)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return errno;
    }
    if (removed(&context->object)) {
        return EIO;
    }
    *attr_p = fake.base.devices[context->object.side].attr;
    return 0;
}

static int fake_ibv_query_port(struct ibv_context *base, uint8_t port, struct ibv_port_attr *attr_p)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return errno;
    }
    if (removed(&context->object)) {
        return EIO;
    }
    if (port != 1) {
        return EINVAL;
    }
    *attr_p = fake.base.devices[context->object.side].port;
    return 0;
}

static int fake_ibv_query_gid_ex(struct ibv_context *base, uint32_t port, uint32_t index,
                                 struct ibv_gid_entry *entry_p, uint32_t flags)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return errno;
    }
    const struct fake_device *device = &fake.base.devices[context->object.side];
    static const union ibv_gid none = {.raw = {0}};
    if (port != 1 || flags != 0 || index >= FAKE_GIDS) {
        return EINVAL;
    }
    if (memcmp(&device->gids[index], &none, sizeof none) == 0) {
        return ENODATA;
    }
    *entry_p = (struct ibv_gid_entry){.gid = device->gids[index],
                                      .gid_index = index,
                                      .port_num = port,
                                      .gid_type = device->gid_types[index],
                                      .ndev_ifindex = 1};
    return 0;
}

static int fake_ibv_fork_init(void)
{
    if (FAILS()) {
        return errno;
    }
    fake.base.fork_inits++;
    fake.base.fork_status = IBV_FORK_ENABLED;
    return 0;
}

static enum ibv_fork_status fake_ibv_is_fork_initialized(void)
{
    return fake.base.fork_status;
}

static int fake_ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *event_p)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return -1;
    }
    struct kvb_list *link = kvb_list_pop(&context->events);
    if (link == NULL) {
        return would_block(base->async_fd, "ibv_get_async_event") ? -1 : 0;
    }
    struct async *async = kvb_container_of(link, struct async, link);
    *event_p = async->event;
    free(async);
    show(base->async_fd, &context->events);
    fake.base.open.async_events++;
    return 0;
}

static void fake_ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
    if (fake.base.open.async_events == 0) {
        misuse("ibv_ack_async_event: none was got");
        return;
    }
    fake.base.open.async_events--;
}

/* ---- protection domains and registrations ---- */

static struct ibv_pd *fake_ibv_alloc_pd(struct ibv_context *base)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return NULL;
    }
    if (removed(&context->object)) {
        errno = EIO;
        return NULL;
    }
    struct pd *pd = get(sizeof *pd);
    pd->base.context = base;
    object_init(&pd->object, PD, context->object.side);
    fake.base.open.pds++;
    return &pd->base;
}

static bool busy(struct object *object, const char *call)
{
    if (object->uses == 0) {
        return false;
    }
    misuse("%s: it is still used", call);
    return true;
}

static int fake_ibv_dealloc_pd(struct ibv_pd *base)
{
    struct pd *pd = OBJECT_OF(pd, base);
    if (fails("ibv_dealloc_pd", true)) {
        return errno;
    }
    if (!alive(&pd->object, PD, "ibv_dealloc_pd") || busy(&pd->object, "ibv_dealloc_pd")) {
        return EBUSY;
    }
    object_end(&pd->object);
    fake.base.open.pds--;
    return 0;
}

struct vma {
    uint64_t from, to, offset, inode;
    bool read, write, shared;
};

/* The mapping that holds the address. */
static bool vma_find(uint64_t at, struct vma *vma_p)
{
    FILE *file = fopen("/proc/self/maps", "re");
    kvb_assert(file != NULL);
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        struct vma vma;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s %lx %*s %lu", &vma.from, &vma.to, mode, &vma.offset,
                   &vma.inode) != 5) {
            continue;
        }
        vma.read = mode[0] == 'r';
        vma.write = mode[1] == 'w';
        vma.shared = mode[3] == 's';
        found = vma.from <= at && at < vma.to;
        *vma_p = vma;
    }
    (void)fclose(file);
    return found;
}

static void mr_release(struct mr *mr)
{
    for (uint32_t i = 0; i < mr->nsegments; i++) {
        if (mr->segments[i].own) {
            kvb_assert(munmap(mr->segments[i].pages, mr->segments[i].len) == 0);
        }
    }
    mr->nsegments = 0;
}

/* Holds the pages behind the range as a driver does. 0 or an error. */
static int mr_pin(struct mr *mr, uint64_t at, uint64_t len, bool write)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end = (at + len + page - 1) / page * page;
    at = at / page * page;
    while (at < end) {
        struct vma vma;
        if (!vma_find(at, &vma) || !vma.read || (write && !vma.write)) {
            return EFAULT;
        }
        kvb_assert(mr->nsegments < SEGMENTS_MAX);
        struct segment *segment = &mr->segments[mr->nsegments];
        *segment = (struct segment){.at = at,
                                    .len = (vma.to < end ? vma.to : end) - at,
                                    .inode = vma.inode,
                                    .offset = vma.offset + (at - vma.from)};
        void *here = (void *)(uintptr_t)at; // NOLINT(performance-no-int-to-ptr)
        segment->pages = here;
        if (vma.shared) {
            /* A length of 0: the same pages a second time. */
            segment->pages = mremap(here, 0, segment->len, MREMAP_MAYMOVE);
            if (segment->pages == MAP_FAILED) {
                return errno;
            }
            segment->own = true;
        }
        mr->nsegments++;
        at += segment->len;
    }
    return 0;
}

/* Is what was registered still what lies there? */
static bool mr_stale(const struct mr *mr)
{
    for (uint32_t i = 0; i < mr->nsegments; i++) {
        const struct segment *segment = &mr->segments[i];
        struct vma vma;
        if (segment->own && !segment->device &&
            (!vma_find(segment->at, &vma) || vma.inode != segment->inode ||
             vma.offset + (segment->at - vma.from) != segment->offset)) {
            return true;
        }
    }
    return false;
}

/* The pages of a dma-buf, which the registration holds from now on. 0 or an error. */
static int mr_attach(struct mr *mr, uint64_t at, uint64_t len, int fd, uint64_t offset)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t before = at % page;
    if (offset % page != before) {
        return EINVAL;
    }
    len = (before + len + page - 1) / page * page;
    void *pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - before));
    if (pages == MAP_FAILED) {
        return errno;
    }
    mr->segments[mr->nsegments++] = (struct segment){
        .at = at - before, .len = len, .pages = pages, .own = true, .device = true};
    return 0;
}

/* fd: -1, or of a dma-buf. */
static struct ibv_mr *mr_make(struct ibv_pd *base, uint64_t at, size_t len, int access, int fd,
                              uint64_t offset)
{
    struct pd *pd = OBJECT_OF(pd, base);
    const struct fake_device *device = &fake.base.devices[pd->object.side];
    bool remote_write = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
    errno = removed(&pd->object)                                                  ? EIO
            : fd >= 0 && device->no_dma_buf                                       ? EOPNOTSUPP
            : len == 0 || at + len < at || len > device->attr.max_mr_size         ? EINVAL
            : remote_write && (access & IBV_ACCESS_LOCAL_WRITE) == 0              ? EINVAL
            : (access & IBV_ACCESS_ON_DEMAND) != 0                                ? EOPNOTSUPP
            : fake_verbs_mrs(pd->object.side, 0) >= (uint32_t)device->attr.max_mr ? ENOMEM
            : fake.base.pinned + len > device->memlock                            ? ENOMEM
                                                                                  : 0;
    if (errno != 0) {
        return NULL;
    }
    struct mr *mr = get(sizeof *mr);
    int error = fd >= 0 ? mr_attach(mr, at, len, fd, offset)
                        : mr_pin(mr, at, len, (access & IBV_ACCESS_LOCAL_WRITE) != 0);
    if (error != 0) {
        mr_release(mr);
        free(mr);
        errno = error;
        return NULL;
    }
    if (fake.base.fork_status == IBV_FORK_ENABLED) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t from = at / page * page;
        void *here = (void *)(uintptr_t)from; // NOLINT(performance-no-int-to-ptr)
        kvb_assert(madvise(here, (at + len + page - 1) / page * page - from, MADV_DONTFORK) == 0);
    }
    mr->access = access;
    fake.numbers += 1 + (uint32_t)below(16);
    mr->base = (struct ibv_mr){.context = base->context,
                               .pd = base,
                               .addr = (void *)(uintptr_t)at, // NOLINT(performance-no-int-to-ptr)
                               .length = len,
                               .lkey = fake.numbers << 1,
                               .rkey = fake.numbers << 1 | 1};
    mr->lkey = mr->base.lkey;
    mr->rkey = mr->base.rkey;
    object_init(&mr->object, MR, pd->object.side);
    pd->object.uses++;
    fake.base.open.mrs++;
    fake.base.pinned += len;
    return &mr->base;
}

static struct ibv_mr *fake_ibv_reg_mr(struct ibv_pd *base, void *addr, size_t len, int access)
{
    struct pd *pd = OBJECT_OF(pd, base);
    if (FAILS() || !alive(&pd->object, PD, "ibv_reg_mr")) {
        return NULL;
    }
    return mr_make(base, (uintptr_t)addr, len, access, -1, 0);
}

static struct ibv_mr *fake_ibv_reg_dmabuf_mr(struct ibv_pd *base, uint64_t offset, size_t len,
                                             uint64_t iova, int fd, int access)
{
    struct pd *pd = OBJECT_OF(pd, base);
    if (FAILS() || !alive(&pd->object, PD, "ibv_reg_dmabuf_mr")) {
        return NULL;
    }
    kvb_assert(fd >= 0);
    return mr_make(base, iova, len, access, fd, offset);
}

static bool queue_names(const struct queue *queue, uint32_t lkey)
{
    const struct kvb_list *lists[] = {&queue->waiting, &queue->ended};
    for (int i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            const struct work *work = kvb_container_of(link, struct work, link);
            for (uint32_t s = 0; s < work->n && (work->flags & IBV_SEND_INLINE) == 0; s++) {
                if (work->sges[s].lkey == lkey) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* Does a request name it whose completion nobody has seen? */
static bool mr_posted(const struct mr *mr)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->side != mr->object.side) {
            continue;
        }
        if (object->kind == QP) {
            const struct qp *qp = kvb_container_of(object, struct qp, object);
            if (queue_names(&qp->sq, mr->lkey) || queue_names(&qp->rq, mr->lkey)) {
                return true;
            }
        } else if (object->kind == SRQ) {
            const struct srq *srq = kvb_container_of(object, struct srq, object);
            if (queue_names(&srq->queue, mr->lkey)) {
                return true;
            }
        }
    }
    return false;
}

static int fake_ibv_dereg_mr(struct ibv_mr *base)
{
    struct mr *mr = OBJECT_OF(mr, base);
    if (fails("ibv_dereg_mr", true)) {
        return errno;
    }
    if (!alive(&mr->object, MR, "ibv_dereg_mr")) {
        return EINVAL;
    }
    if (mr_posted(mr)) {
        misuse("ibv_dereg_mr: under a posted request");
    }
    if (!fake.base.stale_allowed && mr_stale(mr)) {
        misuse("ibv_dereg_mr: its memory was unmapped before");
    }
    mr_release(mr);
    object_end(&mr->object);
    OBJECT_OF(pd, mr->base.pd)->object.uses--;
    fake.base.open.mrs--;
    fake.base.pinned -= mr->base.length;
    mr->base.lkey = mr->base.rkey = 0xdeaddead;
    return 0;
}

/* The registration behind a key of a side's domain; NULL: none. */
static struct mr *mr_find(enum fake_side side, const struct ibv_pd *pd, uint32_t key)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == MR && object->side == side) {
            struct mr *mr = kvb_container_of(object, struct mr, object);
            if (mr->base.pd == pd && (mr->lkey == key || mr->rkey == key)) {
                return mr;
            }
        }
    }
    return NULL;
}

static bool mr_covers(const struct mr *mr, uint64_t at, uint64_t len)
{
    uint64_t base = (uintptr_t)mr->base.addr;
    return len == 0 || (at >= base && len <= mr->base.length && at - base <= mr->base.length - len);
}

/* Where the byte lies physically, and how many follow it there. */
static uint8_t *mr_at(const struct mr *mr, uint64_t at, uint64_t *len_p)
{
    for (uint32_t i = 0; i < mr->nsegments; i++) {
        const struct segment *segment = &mr->segments[i];
        if (at >= segment->at && at - segment->at < segment->len) {
            *len_p = segment->len - (at - segment->at);
            return segment->pages + (at - segment->at);
        }
    }
    kvb_assert(false);
    return NULL;
}

uint32_t fake_verbs_mrs(enum fake_side side, int access)
{
    uint32_t n = 0;
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == MR && object->side == side) {
            const struct mr *mr = kvb_container_of(object, struct mr, object);
            n += access == 0 || (mr->access & access) != 0;
        }
    }
    return n;
}

uint32_t fake_verbs_qps(enum fake_side side, unsigned access)
{
    uint32_t n = 0;
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == QP && object->side == side) {
            const struct qp *qp = kvb_container_of(object, struct qp, object);
            n += (qp->attr.qp_access_flags & access) != 0;
        }
    }
    return n;
}

/* ---- completion queues ---- */

static struct ibv_comp_channel *fake_ibv_create_comp_channel(struct ibv_context *base)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return NULL;
    }
    struct comp *comp = get(sizeof *comp);
    comp->base = (struct ibv_comp_channel){.context = base, .fd = descriptor()};
    kvb_list_init(&comp->events);
    object_init(&comp->object, COMP, context->object.side);
    fake.base.open.comp_channels++;
    return &comp->base;
}

static int fake_ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    struct comp *comp = OBJECT_OF(comp, base);
    if (fails("ibv_destroy_comp_channel", true)) {
        return errno;
    }
    if (!alive(&comp->object, COMP, "ibv_destroy_comp_channel") ||
        busy(&comp->object, "ibv_destroy_comp_channel")) {
        return EBUSY;
    }
    (void)close(base->fd);
    object_end(&comp->object);
    fake.base.open.comp_channels--;
    return 0;
}

static struct ibv_cq *fake_ibv_create_cq(struct ibv_context *base, int cqe, void *cq_context,
                                         struct ibv_comp_channel *channel, int vector)
{
    struct context *context = OBJECT_OF(context, base);
    if (FAILS()) {
        return NULL;
    }
    errno = removed(&context->object) ? EIO
            : cqe < 1 || cqe > fake.base.devices[context->object.side].attr.max_cqe || vector < 0 ||
                    vector >= base->num_comp_vectors
                ? EINVAL
                : 0;
    if (errno != 0) {
        return NULL;
    }
    struct cq *cq = get(sizeof *cq);
    cq->base =
        (struct ibv_cq){.context = base, .channel = channel, .cq_context = cq_context, .cqe = cqe};
    kvb_list_init(&cq->entries);
    kvb_list_init(&cq->held);
    object_init(&cq->object, CQ, context->object.side);
    if (channel != NULL) {
        OBJECT_OF(comp, channel)->object.uses++;
    }
    fake.base.open.cqs++;
    return &cq->base;
}

static void entries_free(struct kvb_list *entries)
{
    for (struct kvb_list *link; (link = kvb_list_pop(entries)) != NULL;) {
        free(kvb_container_of(link, struct entry, link));
    }
}

static int fake_ibv_destroy_cq(struct ibv_cq *base)
{
    struct cq *cq = OBJECT_OF(cq, base);
    if (fails("ibv_destroy_cq", true)) {
        return errno;
    }
    if (!alive(&cq->object, CQ, "ibv_destroy_cq") || busy(&cq->object, "ibv_destroy_cq")) {
        return EBUSY;
    }
    if (cq->unacked > 0) {
        misuse("ibv_destroy_cq: would wait for ever for %u events that were not acknowledged",
               cq->unacked);
        return EBUSY;
    }
    entries_free(&cq->entries);
    entries_free(&cq->held);
    if (base->channel != NULL) {
        struct comp *comp = OBJECT_OF(comp, base->channel);
        comp->object.uses--;
        kvb_list_each(&comp->events, link)
        {
            struct cq_event *event = kvb_container_of(link, struct cq_event, link);
            if (event->cq == cq) {
                kvb_list_remove(link);
                free(event);
            }
        }
        show(comp->base.fd, &comp->events);
    }
    object_end(&cq->object);
    fake.base.open.cqs--;
    return 0;
}

static int fake_ibv_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
    struct cq *cq = OBJECT_OF(cq, base);
    if (FAILS()) {
        return errno;
    }
    if (!alive(&cq->object, CQ, "ibv_req_notify_cq")) {
        return EINVAL;
    }
    cq->armed = true;
    cq->solicited_only = solicited_only != 0;
    return 0;
}

static int fake_ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq_p,
                                 void **context_p)
{
    struct comp *comp = OBJECT_OF(comp, base);
    if (FAILS() || !alive(&comp->object, COMP, "ibv_get_cq_event")) {
        return -1;
    }
    struct kvb_list *link = kvb_list_pop(&comp->events);
    if (link == NULL) {
        return would_block(base->fd, "ibv_get_cq_event") ? -1 : 0;
    }
    struct cq_event *event = kvb_container_of(link, struct cq_event, link);
    *cq_p = &event->cq->base;
    *context_p = event->cq->base.cq_context;
    event->cq->unacked++;
    fake.base.open.cq_events++;
    free(event);
    show(base->fd, &comp->events);
    return 0;
}

static void fake_ibv_ack_cq_events(struct ibv_cq *base, unsigned n)
{
    struct cq *cq = OBJECT_OF(cq, base);
    if (!alive(&cq->object, CQ, "ibv_ack_cq_events")) {
        return;
    }
    if (n > cq->unacked) {
        misuse("ibv_ack_cq_events: more than were got");
        return;
    }
    cq->unacked -= n;
    fake.base.open.cq_events -= n;
}

static void cq_show(struct cq *cq, struct entry *entry)
{
    kvb_list_push_back(&cq->entries, &entry->link);
    if (!cq->armed || (cq->solicited_only && !entry->solicited)) {
        return;
    }
    cq->armed = false;
    if (cq->base.channel != NULL) {
        struct comp *comp = OBJECT_OF(comp, cq->base.channel);
        struct cq_event *event = get(sizeof *event);
        event->cq = cq;
        kvb_list_push_back(&comp->events, &event->link);
        show(comp->base.fd, &comp->events);
    }
}

static void cq_put(struct cq *cq, struct ibv_wc wc, struct work *work, bool solicited)
{
    if (cq->n == (uint32_t)cq->base.cqe) {
        misuse("a completion queue of %d overruns", cq->base.cqe);
        return;
    }
    struct entry *entry = get(sizeof *entry);
    *entry = (struct entry){.wc = wc, .work = work, .solicited = solicited};
    if (wc.status != IBV_WC_SUCCESS) { /* only wr_id, status and qp_num hold anything then */
        entry->wc.opcode = (enum ibv_wc_opcode)0x5a;
        entry->wc.byte_len = 0x5a5a5a5a;
        entry->wc.wc_flags = 0x5a;
        entry->wc.vendor_err = 7;
    }
    cq->n++;
    if (fake.base.devices[cq->object.side].mute) {
        kvb_list_push_back(&cq->held, &entry->link);
    } else {
        cq_show(cq, entry);
    }
}

static void work_free(struct work *work)
{
    kvb_list_remove(&work->link);
    free(work->payload);
    free(work);
}

/* Its completion was seen: it gives its memory and its place back; a sent one those before it, too.
 */
static void retire(struct work *work, bool received)
{
    struct qp *qp = work->qp;
    if (received) {
        struct queue *queue = qp->base.srq != NULL ? &OBJECT_OF(srq, qp->base.srq)->queue : &qp->rq;
        queue->used--;
        work_free(work);
        return;
    }
    for (bool last = false; !last;) {
        struct work *first = kvb_container_of(qp->sq.ended.next, struct work, link);
        last = first == work;
        qp->sq.used--;
        work_free(first);
    }
}

static int fake_ibv_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
    struct cq *cq = OBJECT_OF(cq, base);
    if (FAILS()) {
        return -errno;
    }
    if (!alive(&cq->object, CQ, "ibv_poll_cq")) {
        return -EINVAL;
    }
    int got = 0;
    for (struct kvb_list *link; got < n && (link = kvb_list_pop(&cq->entries)) != NULL; got++) {
        struct entry *entry = kvb_container_of(link, struct entry, link);
        wc[got] = entry->wc;
        cq->n--;
        if (entry->work != NULL) {
            /* opcode of a receive is RECV in its work, too; garbage in its entry on an error */
            retire(entry->work, entry->work->opcode == (enum ibv_wr_opcode)IBV_WC_RECV);
        }
        free(entry);
    }
    return got;
}

/* ---- queues of requests ---- */

static void queue_init(struct queue *queue, uint32_t max, uint32_t sges)
{
    *queue = (struct queue){.max = max, .sges = sges};
    kvb_list_init(&queue->waiting);
    kvb_list_init(&queue->ended);
}

static void queue_drop(struct queue *queue)
{
    struct kvb_list *lists[] = {&queue->waiting, &queue->ended};
    for (int i = 0; i < 2; i++) {
        while (!kvb_list_empty(lists[i])) {
            work_free(kvb_container_of(lists[i]->next, struct work, link));
        }
    }
    queue->used = 0;
}

static struct work *work_add(struct queue *queue, const struct ibv_sge *sges, int n, uint64_t wr_id)
{
    struct work *work = get(sizeof *work);
    work->wr_id = wr_id;
    work->n = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        work->sges[i] = sges[i];
        work->total += sges[i].length;
    }
    kvb_list_push_back(&queue->waiting, &work->link);
    queue->used++;
    return work;
}

/* 0: it may be posted. */
static int queue_check(const struct queue *queue, const struct object *object,
                       const struct ibv_pd *pd, const struct ibv_sge *sges, int n, bool memory,
                       const char *call)
{
    if (queue->used >= queue->max) {
        misuse("%s: the queue of %u overruns", call, queue->max);
        return ENOMEM;
    }
    if (n < 0 || (uint32_t)n > queue->sges) {
        misuse("%s: %d pieces, %u at most", call, n, queue->sges);
        return EINVAL;
    }
    for (int i = 0; i < n && memory; i++) {
        const struct mr *mr = mr_find(object->side, pd, sges[i].lkey);
        if (mr == NULL || mr->lkey != sges[i].lkey) {
            misuse("%s: lkey %x is nobody's", call, sges[i].lkey);
        }
    }
    return 0;
}

static struct ibv_srq *fake_ibv_create_srq(struct ibv_pd *base, struct ibv_srq_init_attr *attr)
{
    struct pd *pd = OBJECT_OF(pd, base);
    if (FAILS() || !alive(&pd->object, PD, "ibv_create_srq")) {
        return NULL;
    }
    const struct ibv_device_attr *device = &fake.base.devices[pd->object.side].attr;
    if (attr->attr.max_wr == 0 || attr->attr.max_wr > (uint32_t)device->max_srq_wr ||
        attr->attr.max_sge > (uint32_t)device->max_srq_sge || removed(&pd->object)) {
        errno = EINVAL;
        return NULL;
    }
    struct srq *srq = get(sizeof *srq);
    srq->base =
        (struct ibv_srq){.context = base->context, .srq_context = attr->srq_context, .pd = base};
    queue_init(&srq->queue, attr->attr.max_wr, attr->attr.max_sge);
    object_init(&srq->object, SRQ, pd->object.side);
    pd->object.uses++;
    fake.base.open.srqs++;
    return &srq->base;
}

static int fake_ibv_destroy_srq(struct ibv_srq *base)
{
    struct srq *srq = OBJECT_OF(srq, base);
    if (fails("ibv_destroy_srq", true)) {
        return errno;
    }
    if (!alive(&srq->object, SRQ, "ibv_destroy_srq") || busy(&srq->object, "ibv_destroy_srq")) {
        return EBUSY;
    }
    queue_drop(&srq->queue);
    object_end(&srq->object);
    OBJECT_OF(pd, base->pd)->object.uses--;
    fake.base.open.srqs--;
    return 0;
}

static int post_recvs(struct queue *queue, const struct object *object, const struct ibv_pd *pd,
                      struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p,
                      const char *call)
{
    for (; wr != NULL; wr = wr->next) {
        int error = removed(object)
                        ? EIO
                        : queue_check(queue, object, pd, wr->sg_list, wr->num_sge, true, call);
        if (error != 0) {
            *bad_p = wr;
            return error;
        }
        struct work *work = work_add(queue, wr->sg_list, wr->num_sge, wr->wr_id);
        work->opcode = (enum ibv_wr_opcode)IBV_WC_RECV;
        work->qp = qp;
    }
    kick();
    return 0;
}

static int fake_ibv_post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr,
                                  struct ibv_recv_wr **bad_p)
{
    struct srq *srq = OBJECT_OF(srq, base);
    if (FAILS()) {
        *bad_p = wr;
        return errno;
    }
    if (!alive(&srq->object, SRQ, "ibv_post_srq_recv")) {
        *bad_p = wr;
        return EINVAL;
    }
    return post_recvs(&srq->queue, &srq->object, base->pd, NULL, wr, bad_p, "ibv_post_srq_recv");
}

/* ---- queue pairs ---- */

static struct ibv_qp *fake_ibv_create_qp(struct ibv_pd *base, struct ibv_qp_init_attr *attr)
{
    struct pd *pd = OBJECT_OF(pd, base);
    if (FAILS() || !alive(&pd->object, PD, "ibv_create_qp")) {
        return NULL;
    }
    const struct fake_device *device = &fake.base.devices[pd->object.side];
    uint32_t qps = 0;
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        qps += object->kind == QP && object->side == pd->object.side;
    }
    const struct ibv_qp_cap *cap = &attr->cap;
    errno = removed(&pd->object)                   ? EIO
            : qps >= (uint32_t)device->attr.max_qp ? ENOMEM
            : attr->qp_type != IBV_QPT_RC || attr->send_cq == NULL || attr->recv_cq == NULL ||
                    cap->max_send_wr > (uint32_t)device->attr.max_qp_wr ||
                    cap->max_recv_wr > (uint32_t)device->attr.max_qp_wr ||
                    cap->max_send_sge > (uint32_t)device->attr.max_sge ||
                    cap->max_recv_sge > (uint32_t)device->attr.max_sge ||
                    cap->max_inline_data > device->max_inline
                ? EINVAL
                : 0;
    if (errno != 0) {
        return NULL;
    }
    struct qp *qp = get(sizeof *qp);
    fake.numbers += 1 + (uint32_t)below(16);
    qp->base = (struct ibv_qp){.context = base->context,
                               .qp_context = attr->qp_context,
                               .pd = base,
                               .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq,
                               .srq = attr->srq,
                               .qp_num = fake.numbers,
                               .state = IBV_QPS_RESET,
                               .qp_type = IBV_QPT_RC};
    qp->cap = *cap;
    qp->all_signalled = attr->sq_sig_all != 0;
    queue_init(&qp->sq, cap->max_send_wr, cap->max_send_sge);
    queue_init(&qp->rq, attr->srq != NULL ? 0 : cap->max_recv_wr, cap->max_recv_sge);
    object_init(&qp->object, QP, pd->object.side);
    pd->object.uses++;
    OBJECT_OF(cq, attr->send_cq)->object.uses++;
    OBJECT_OF(cq, attr->recv_cq)->object.uses++;
    if (attr->srq != NULL) {
        OBJECT_OF(srq, attr->srq)->object.uses++;
    }
    fake.base.open.qps++;
    return &qp->base;
}

/* What its entries name is gone; half of all devices take them away, too. */
static void cq_forget(struct cq *cq, const struct qp *qp, bool take)
{
    struct kvb_list *lists[] = {&cq->entries, &cq->held};
    for (int i = 0; i < 2; i++) {
        kvb_list_each(lists[i], link)
        {
            struct entry *entry = kvb_container_of(link, struct entry, link);
            if (entry->wc.qp_num != qp->base.qp_num) {
                continue;
            }
            if (entry->work != NULL && qp->base.srq != NULL &&
                entry->work->opcode == (enum ibv_wr_opcode)IBV_WC_RECV) {
                retire(entry->work, true);
            }
            entry->work = NULL;
            if (take && lists[i] == &cq->entries) {
                kvb_list_remove(link);
                free(entry);
                cq->n--;
            }
        }
    }
}

static void qp_drop(struct qp *qp)
{
    bool take = below(2) == 0;
    cq_forget(OBJECT_OF(cq, qp->base.send_cq), qp, take);
    if (qp->base.recv_cq != qp->base.send_cq) {
        cq_forget(OBJECT_OF(cq, qp->base.recv_cq), qp, take);
    }
    queue_drop(&qp->sq);
    queue_drop(&qp->rq);
    qp->retry_ns = 0;
}

/* What has not been got of its events is gone. */
static void async_forget(const struct qp *qp)
{
    struct context *context = context_of(qp->object.side);
    kvb_list_each(&context->events, link)
    {
        struct async *async = kvb_container_of(link, struct async, link);
        if (async->event.element.qp == &qp->base) {
            kvb_list_remove(link);
            free(async);
        }
    }
    if (context->base.async_fd >= 0) {
        show(context->base.async_fd, &context->events);
    }
}

static void qp_free(struct qp *qp)
{
    qp_drop(qp);
    async_forget(qp);
    OBJECT_OF(pd, qp->base.pd)->object.uses--;
    OBJECT_OF(cq, qp->base.send_cq)->object.uses--;
    OBJECT_OF(cq, qp->base.recv_cq)->object.uses--;
    if (qp->base.srq != NULL) {
        OBJECT_OF(srq, qp->base.srq)->object.uses--;
    }
    object_end(&qp->object);
    qp->base.qp_num = 0xdeaddead;
    fake.base.open.qps--;
    kick();
}

/* Everything posted is flushed, one after the other. */
static void qp_error(struct qp *qp)
{
    if (qp->base.state == IBV_QPS_RESET) {
        return;
    }
    if (qp->base.state != IBV_QPS_ERR && qp->base.srq != NULL) {
        async_put(qp->object.side,
                  (struct ibv_async_event){.element = {.qp = &qp->base},
                                           .event_type = IBV_EVENT_QP_LAST_WQE_REACHED});
    }
    qp->base.state = IBV_QPS_ERR;
    qp->retry_ns = 0;
    kick();
}

/* What each step of a queue pair's life must say. */
static bool qp_move(struct qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    static const struct {
        enum ibv_qp_state from, to;
        int need;
    } steps[] = {
        {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
        {IBV_QPS_INIT, IBV_QPS_RTR,
         IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
             IBV_QP_MIN_RNR_TIMER},
        {IBV_QPS_RTR, IBV_QPS_RTS,
         IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
             IBV_QP_MAX_QP_RD_ATOMIC},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i].to != attr->qp_state) {
            continue;
        }
        if (steps[i].from != qp->base.state || (mask & steps[i].need) != steps[i].need) {
            return false;
        }
        struct ibv_qp_attr *own = &qp->attr;
        if (attr->qp_state == IBV_QPS_INIT) {
            own->qp_access_flags = attr->qp_access_flags;
        } else if (attr->qp_state == IBV_QPS_RTR) {
            own->path_mtu = attr->path_mtu;
            own->dest_qp_num = attr->dest_qp_num;
            own->max_dest_rd_atomic = attr->max_dest_rd_atomic;
            own->qp_access_flags =
                (mask & IBV_QP_ACCESS_FLAGS) != 0 ? attr->qp_access_flags : own->qp_access_flags;
        } else {
            own->rnr_retry = attr->rnr_retry;
            own->retry_cnt = attr->retry_cnt;
            own->timeout = attr->timeout;
            own->max_rd_atomic = attr->max_rd_atomic;
        }
        qp->base.state = attr->qp_state;
        return true;
    }
    return false;
}

static int fake_ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct qp *qp = OBJECT_OF(qp, base);
    if (FAILS()) {
        return errno;
    }
    if (!alive(&qp->object, QP, "ibv_modify_qp")) {
        return EINVAL;
    }
    const struct fake_device *device = &fake.base.devices[qp->object.side];
    if ((mask & IBV_QP_STATE) == 0) {
        misuse("ibv_modify_qp: to no state");
        return EINVAL;
    }
    if ((mask & IBV_QP_PATH_MTU) != 0 && attr->path_mtu > device->port.active_mtu) {
        return EINVAL;
    }
    if (attr->qp_state == IBV_QPS_ERR) {
        qp_error(qp);
    } else if (attr->qp_state == IBV_QPS_RESET) {
        qp_drop(qp);
        base->state = IBV_QPS_RESET;
    } else if (removed(&qp->object)) {
        return EIO;
    } else if (!qp_move(qp, attr, mask)) {
        misuse("ibv_modify_qp: from %d to %d with 0x%x", (int)base->state, (int)attr->qp_state,
               (unsigned)mask);
        return EINVAL;
    }
    kick();
    return 0;
}

static int fake_ibv_destroy_qp(struct ibv_qp *base)
{
    struct qp *qp = OBJECT_OF(qp, base);
    if (fails("ibv_destroy_qp", true)) {
        return errno;
    }
    if (!alive(&qp->object, QP, "ibv_destroy_qp")) {
        return EINVAL;
    }
    qp_free(qp);
    return 0;
}

static int post_send(struct qp *qp, const struct ibv_send_wr *wr)
{
    bool in_line = (wr->send_flags & IBV_SEND_INLINE) != 0;
    if (removed(&qp->object)) {
        return EIO;
    }
    if (qp->base.state != IBV_QPS_RTS && qp->base.state != IBV_QPS_ERR) {
        misuse("ibv_post_send: in state %d", (int)qp->base.state);
        return EINVAL;
    }
    if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM &&
        wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ) {
        misuse("ibv_post_send: opcode %d", (int)wr->opcode);
        return EINVAL;
    }
    int error = queue_check(&qp->sq, &qp->object, qp->base.pd, wr->sg_list, wr->num_sge, !in_line,
                            "ibv_post_send");
    if (error != 0) {
        return error;
    }
    struct work *work = work_add(&qp->sq, wr->sg_list, wr->num_sge, wr->wr_id);
    work->qp = qp;
    work->opcode = wr->opcode;
    work->flags = wr->send_flags;
    work->imm = wr->imm_data;
    if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE) {
        work->remote = wr->wr.rdma.remote_addr;
        work->rkey = wr->wr.rdma.rkey;
    }
    if (in_line) {
        if (work->total > qp->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ) {
            misuse("ibv_post_send: %lu bytes inline, %u at most", work->total,
                   qp->cap.max_inline_data);
        }
        work->payload = get(work->total + 1);
        for (uint64_t i = 0, at = 0; i < work->n; at += work->sges[i].length, i++) {
            memcpy(work->payload + at,
                   (const void *)(uintptr_t)work->sges[i].addr, // NOLINT
                   work->sges[i].length);
        }
    }
    return 0;
}

static int fake_ibv_post_send(struct ibv_qp *base, struct ibv_send_wr *wr,
                              struct ibv_send_wr **bad_p)
{
    struct qp *qp = OBJECT_OF(qp, base);
    if (FAILS()) {
        *bad_p = wr;
        return errno;
    }
    if (!alive(&qp->object, QP, "ibv_post_send")) {
        *bad_p = wr;
        return EINVAL;
    }
    for (; wr != NULL; wr = wr->next) {
        int error = post_send(qp, wr);
        if (error != 0) {
            *bad_p = wr;
            return error;
        }
    }
    kick();
    return 0;
}

/* ---- running requests ---- */

static enum ibv_wc_opcode wc_opcode(const struct work *work)
{
    return work->opcode == IBV_WR_RDMA_READ    ? IBV_WC_RDMA_READ
           : work->opcode == IBV_WR_RDMA_WRITE ? IBV_WC_RDMA_WRITE
                                               : IBV_WC_SEND;
}

static void sent(struct qp *qp, struct work *work, enum ibv_wc_status status)
{
    kvb_list_remove(&work->link);
    kvb_list_push_back(&qp->sq.ended, &work->link);
    if (status != IBV_WC_SUCCESS || (work->flags & IBV_SEND_SIGNALED) != 0 || qp->all_signalled) {
        struct ibv_wc wc = {.wr_id = work->wr_id,
                            .status = status,
                            .opcode = wc_opcode(work),
                            .byte_len = (uint32_t)work->total,
                            .qp_num = qp->base.qp_num};
        cq_put(OBJECT_OF(cq, qp->base.send_cq), wc, work, status != IBV_WC_SUCCESS);
    }
    qp->retry_ns = 0;
    qp->ready_ns = later_ns();
    if (status != IBV_WC_SUCCESS) {
        qp_error(qp);
    }
}

static struct queue *receives(struct qp *qp)
{
    return qp->base.srq != NULL ? &OBJECT_OF(srq, qp->base.srq)->queue : &qp->rq;
}

static void received(struct qp *qp, struct work *work, enum ibv_wc_status status, uint64_t len,
                     const struct work *from)
{
    struct queue *queue = receives(qp);
    kvb_list_remove(&work->link);
    kvb_list_push_back(&queue->ended, &work->link);
    work->qp = qp;
    struct ibv_wc wc = {.wr_id = work->wr_id,
                        .status = status,
                        .opcode = IBV_WC_RECV,
                        .byte_len = (uint32_t)len,
                        .qp_num = qp->base.qp_num,
                        .src_qp = from != NULL ? from->qp->base.qp_num : 0};
    if (from != NULL && from->opcode == IBV_WR_SEND_WITH_IMM) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = from->imm;
    }
    cq_put(OBJECT_OF(cq, qp->base.recv_cq), wc, work,
           status != IBV_WC_SUCCESS || (from != NULL && (from->flags & IBV_SEND_SOLICITED) != 0));
    if (status != IBV_WC_SUCCESS) {
        qp_error(qp);
    }
}

/* The n-th of a kind is to end so. */
static bool forced(enum fake_side side, enum ibv_wc_opcode kind, enum ibv_wc_status *status_p)
{
    if (!fake.status[side].set || fake.status[side].kind != kind || fake.status[side].after-- > 0) {
        return false;
    }
    fake.status[side].set = false;
    *status_p = fake.status[side].status;
    return true;
}

static struct qp *qp_numbered(uint32_t number)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == QP) {
            struct qp *qp = kvb_container_of(object, struct qp, object);
            if (qp->base.qp_num == number) {
                return qp;
            }
        }
    }
    return NULL;
}

/* The other end, if it takes anything; NULL: nobody acknowledges. */
static struct qp *reach(const struct qp *qp)
{
    const struct fake_device *own = &fake.base.devices[qp->object.side];
    struct qp *peer = qp_numbered(qp->attr.dest_qp_num);
    if (peer == NULL || own->port.state != IBV_PORT_ACTIVE || own->silent) {
        return NULL;
    }
    const struct fake_device *other = &fake.base.devices[peer->object.side];
    bool takes = other->port.state == IBV_PORT_ACTIVE && !other->silent &&
                 !removed(&peer->object) && peer->attr.dest_qp_num == qp->base.qp_num &&
                 peer->attr.path_mtu == qp->attr.path_mtu &&
                 (peer->base.state == IBV_QPS_RTR || peer->base.state == IBV_QPS_RTS);
    return takes ? peer : NULL;
}

/* Does its first request wait for something, and how does it end if that does not come? */
static bool waits(const struct qp *qp, struct qp *peer, const struct work *work,
                  enum ibv_wc_status *status_p, uint64_t *bound_ms_p)
{
    if (peer == NULL) {
        *status_p = IBV_WC_RETRY_EXC_ERR;
        *bound_ms_p = FAKE_ACK_MS;
        return true;
    }
    if (wc_opcode(work) == IBV_WC_SEND && !work->acking &&
        kvb_list_empty(&receives(peer)->waiting)) {
        *status_p = IBV_WC_RNR_RETRY_EXC_ERR;
        *bound_ms_p = qp->attr.rnr_retry == 7 ? UINT64_MAX
                                              : (uint64_t)FAKE_RNR_MS * (qp->attr.rnr_retry + 1u);
        return true;
    }
    return false;
}

/* Pieces of [at, at + len) of the request's own memory, to or from `bytes`. False: a key or an
 * access that is not there. */
static bool gather(const struct qp *qp, const struct work *work, bool write, uint64_t at,
                   uint64_t len, uint8_t *bytes)
{
    for (uint32_t i = 0; i < work->n && len > 0; i++) {
        const struct ibv_sge *sge = &work->sges[i];
        if (at >= sge->length) {
            at -= sge->length;
            continue;
        }
        uint64_t n = sge->length - at < len ? sge->length - at : len;
        const struct mr *mr = mr_find(qp->object.side, qp->base.pd, sge->lkey);
        if (mr == NULL || mr->lkey != sge->lkey || !mr_covers(mr, sge->addr, sge->length) ||
            (write && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
            return false;
        }
        for (uint64_t left = n, from = sge->addr + at; left > 0;) {
            uint64_t here;
            uint8_t *pages = mr_at(mr, from, &here);
            here = here < left ? here : left;
            memcpy(write ? pages : bytes, write ? bytes : pages, here);
            bytes += here;
            from += here;
            left -= here;
        }
        at = 0;
        len -= n;
    }
    return true;
}

static bool own_memory_right(const struct qp *qp, const struct work *work, bool write)
{
    for (uint32_t i = 0; i < work->n; i++) {
        const struct mr *mr = mr_find(qp->object.side, qp->base.pd, work->sges[i].lkey);
        if (mr == NULL || mr->lkey != work->sges[i].lkey ||
            !mr_covers(mr, work->sges[i].addr, work->sges[i].length) ||
            (write && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
            return false;
        }
    }
    return true;
}

/* Its payload may be read before an earlier READ has placed what it reads, unless it is fenced. */
static void read_ahead(struct qp *qp, struct work *work)
{
    if (work->link.next == &qp->sq.waiting) {
        return;
    }
    struct work *next = kvb_container_of(work->link.next, struct work, link);
    if (next->opcode != IBV_WR_RDMA_READ &&
        (next->flags & (IBV_SEND_FENCE | IBV_SEND_INLINE)) == 0 && next->payload == NULL &&
        next->total <= FAKE_SLICE && own_memory_right(qp, next, false)) {
        next->payload = get(next->total + 1);
        (void)gather(qp, next, false, 0, next->total, next->payload);
    }
}

/* A READ or a WRITE, or a piece of it. Bytes moved. */
static uint64_t run_one_sided(struct qp *qp, struct qp *peer, struct work *work)
{
    bool write = work->opcode == IBV_WR_RDMA_WRITE;
    enum ibv_wc_status status;
    if (!work->begun) {
        const struct mr *mr = mr_find(peer->object.side, peer->base.pd, work->rkey);
        int access = write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
        if (forced(qp->object.side, wc_opcode(work), &status)) {
            sent(qp, work, status);
            return 0;
        }
        if (work->payload == NULL && !own_memory_right(qp, work, !write)) {
            sent(qp, work, IBV_WC_LOC_PROT_ERR);
            return 0;
        }
        if (!write && (qp->attr.max_rd_atomic == 0 || peer->attr.max_dest_rd_atomic == 0)) {
            misuse("a READ on a connection that was made without");
            sent(qp, work, IBV_WC_REM_INV_REQ_ERR);
            return 0;
        }
        if (mr == NULL || mr->rkey != work->rkey ||
            (mr->access & (int)peer->attr.qp_access_flags & access) == 0 ||
            !mr_covers(mr, work->remote, work->total)) {
            sent(qp, work, IBV_WC_REM_ACCESS_ERR);
            async_put(peer->object.side,
                      (struct ibv_async_event){.element = {.qp = &peer->base},
                                               .event_type = IBV_EVENT_QP_ACCESS_ERR});
            qp_error(peer);
            return 0;
        }
        work->begun = true;
        work->backwards = below(2) == 0;
        fake.base.writes += write;
        fake.base.reads += !write;
        if (!write) {
            read_ahead(qp, work);
        }
    }
    uint64_t left = work->total - work->done;
    uint64_t n = left < FAKE_SLICE ? left : FAKE_SLICE;
    uint64_t at = work->backwards ? left - n : work->done;
    uint8_t bytes[FAKE_SLICE];
    const struct mr *mr = mr_find(peer->object.side, peer->base.pd, work->rkey);
    if (n > 0 && (mr == NULL || !own_memory_right(qp, work, !write))) {
        misuse("memory was deregistered under a request that runs");
        sent(qp, work, mr == NULL ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
        return 0;
    }
    if (write && work->payload != NULL) {
        memcpy(bytes, work->payload + at, n);
    } else if (write) {
        (void)gather(qp, work, false, at, n, bytes);
    }
    for (uint64_t k = 0; k < n;) {
        uint64_t here;
        uint8_t *pages = mr_at(mr, work->remote + at + k, &here);
        here = here < n - k ? here : n - k;
        memcpy(write ? pages : bytes + k, write ? bytes + k : pages, here);
        k += here;
    }
    if (!write) {
        (void)gather(qp, work, true, at, n, bytes);
    }
    work->done += n;
    fake.base.bytes += n;
    work->acking = work->done == work->total;
    qp->ready_ns = later_ns();
    return n;
}

static uint64_t run_send(struct qp *qp, struct qp *peer, struct work *work)
{
    enum fake_side side = qp->object.side;
    enum ibv_wc_status status;
    struct work *to = kvb_container_of(receives(peer)->waiting.next, struct work, link);
    if (forced(side, IBV_WC_SEND, &status)) {
        sent(qp, work, status);
        return 0;
    }
    if (forced(peer->object.side, IBV_WC_RECV, &status)) {
        received(peer, to, status, 0, NULL);
        sent(qp, work, IBV_WC_REM_OP_ERR);
        return 0;
    }
    if (work->payload == NULL && !own_memory_right(qp, work, false)) {
        sent(qp, work, IBV_WC_LOC_PROT_ERR);
        return 0;
    }
    uint64_t total = work->total;
    if (work->payload == NULL) {
        work->payload = get(total + 1);
        (void)gather(qp, work, false, 0, total, work->payload);
    }
    const uint8_t *bytes = work->payload;
    if (fake.tap != NULL && total <= sizeof fake.tapped) {
        uint32_t len = (uint32_t)total;
        memcpy(fake.tapped, bytes, total);
        fake.tap(fake.tap_ctx, side, fake.tapped, &len);
        bytes = fake.tapped;
        total = len;
    }
    if (total > to->total) {
        received(peer, to, IBV_WC_LOC_LEN_ERR, 0, NULL);
        sent(qp, work, IBV_WC_REM_INV_REQ_ERR);
        return 0;
    }
    union {
        const uint8_t *in;
        uint8_t *out;
    } cast = {.in = bytes};
    if (!own_memory_right(peer, to, true) || !gather(peer, to, true, 0, total, cast.out)) {
        received(peer, to, IBV_WC_LOC_PROT_ERR, 0, NULL);
        sent(qp, work, IBV_WC_REM_OP_ERR);
        return 0;
    }
    fake.base.sends++;
    work->acking = true;
    qp->ready_ns = later_ns();
    received(peer, to, IBV_WC_SUCCESS, total, work);
    return total;
}

static struct work *first_of(struct queue *queue)
{
    return kvb_list_empty(&queue->waiting)
               ? NULL
               : kvb_container_of(queue->waiting.next, struct work, link);
}

/* One step of a queue pair; false: it has none now. */
static bool qp_step(struct qp *qp, uint64_t *budget)
{
    if (qp->object.dead) {
        return false;
    }
    struct work *work = first_of(&qp->sq);
    if (qp->base.state == IBV_QPS_ERR) {
        if (fake.frozen[qp->object.side]) {
            return false;
        }
        struct work *receive = qp->base.srq == NULL ? first_of(&qp->rq) : NULL;
        if (work != NULL && (receive == NULL || below(2) == 0)) {
            sent(qp, work, IBV_WC_WR_FLUSH_ERR);
        } else if (receive != NULL) {
            received(qp, receive, IBV_WC_WR_FLUSH_ERR, 0, NULL);
        }
        return work != NULL || receive != NULL;
    }
    if (work == NULL || qp->base.state != IBV_QPS_RTS || now_ns() < qp->ready_ns ||
        removed(&qp->object)) {
        return false;
    }
    enum ibv_wc_status status;
    uint64_t bound_ms;
    struct qp *peer = reach(qp);
    if (waits(qp, peer, work, &status, &bound_ms)) {
        if (qp->retry_ns == 0) {
            fake.base.rnrs += status == IBV_WC_RNR_RETRY_EXC_ERR;
            qp->retry_ns = bound_ms == UINT64_MAX ? KVB_NEVER : now_ns() + bound_ms * KVB_NS_PER_MS;
        }
        if (now_ns() < qp->retry_ns) {
            return false;
        }
        sent(qp, work, status);
        return true;
    }
    qp->retry_ns = 0;
    if (work->acking) {
        sent(qp, work, IBV_WC_SUCCESS);
        return true;
    }
    uint64_t moved =
        wc_opcode(work) == IBV_WC_SEND ? run_send(qp, peer, work) : run_one_sided(qp, peer, work);
    *budget -= moved < *budget ? moved : *budget;
    return true;
}

/* ---- connecting ---- */

static struct rdma_event_channel *fake_rdma_create_event_channel(void)
{
    if (FAILS()) {
        return NULL;
    }
    struct channel *channel = get(sizeof *channel);
    channel->base.fd = descriptor();
    kvb_list_init(&channel->events);
    object_init(&channel->object, CHANNEL, FAKE_ASKER);
    fake.base.open.channels++;
    return &channel->base;
}

static void fake_rdma_destroy_event_channel(struct rdma_event_channel *base)
{
    struct channel *channel = OBJECT_OF(channel, base);
    if (!alive(&channel->object, CHANNEL, "rdma_destroy_event_channel") ||
        busy(&channel->object, "rdma_destroy_event_channel")) {
        return;
    }
    (void)close(base->fd);
    object_end(&channel->object);
    fake.base.open.channels--;
}

static struct id *id_make(struct rdma_event_channel *channel, void *context, enum fake_side side)
{
    struct id *id = get(sizeof *id);
    id->base = (struct rdma_cm_id){
        .channel = channel, .context = context, .ps = RDMA_PS_TCP, .qp_type = IBV_QPT_RC};
    object_init(&id->object, ID, side);
    OBJECT_OF(channel, channel)->object.uses++;
    fake.base.open.ids++;
    return id;
}

static void id_bind(struct id *id, enum fake_side side)
{
    id->object.side = side;
    id->base.verbs = context_open(side);
    id->base.port_num = 1;
}

/* An event on its way to an end of a connection. */
static struct cm_event *cm_send(struct id *to, enum rdma_cm_event_type type, int status)
{
    struct cm_event *event = get(sizeof *event);
    event->base.event = type;
    event->base.status = status;
    event->to = to;
    event->due_ns = later_ns();
    kvb_list_push_back(&fake.cm, &event->link);
    kick();
    return event;
}

static bool side_dead(enum fake_side side)
{
    const struct fake_device *device = &fake.base.devices[side];
    return device->silent || device->absent || fake.removed[side] ||
           device->port.state != IBV_PORT_ACTIVE;
}

/* One that the other end sends: lost if either host is off. */
static struct cm_event *cm_tell(struct id *from, enum rdma_cm_event_type type, int status)
{
    if (from->peer == NULL || side_dead(from->object.side) || side_dead(from->peer->object.side)) {
        return NULL;
    }
    struct cm_event *event = cm_send(from->peer, type, status);
    event->from = from;
    return event;
}

static void cm_data(struct cm_event *event, const struct rdma_conn_param *param, uint32_t padded)
{
    if (event == NULL) {
        return;
    }
    if (param != NULL && param->private_data != NULL) {
        memcpy(event->data, param->private_data, param->private_data_len);
    }
    event->base.param.conn =
        (struct rdma_conn_param){.private_data = event->data, .private_data_len = (uint8_t)padded};
    if (param != NULL) { /* the other end's words */
        event->base.param.conn.responder_resources = param->initiator_depth;
        event->base.param.conn.initiator_depth = param->responder_resources;
        event->base.param.conn.rnr_retry_count = param->rnr_retry_count;
        event->base.param.conn.retry_count = param->retry_count;
        event->base.param.conn.qp_num = param->qp_num;
        event->base.param.conn.srq = param->srq;
    }
}

/* Nothing comes to it or is known to come from it any more. */
static void cm_drop(struct kvb_list *list, const struct id *id)
{
    kvb_list_each(list, link)
    {
        struct cm_event *event = kvb_container_of(link, struct cm_event, link);
        if (event->from == id) {
            event->from = NULL;
        }
        if (event->to == id) {
            kvb_list_remove(link);
            if (event->base.event == RDMA_CM_EVENT_CONNECT_REQUEST && event->from != NULL) {
                cm_data(cm_send(event->from, RDMA_CM_EVENT_REJECTED, 28), NULL, CM_REJ_DATA);
            }
            free(event);
        }
    }
}

static void cm_drop_all(const struct id *id)
{
    cm_drop(&fake.cm, id);
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == CHANNEL) {
            struct channel *channel = kvb_container_of(object, struct channel, object);
            cm_drop(&channel->events, id);
            show(channel->base.fd, &channel->events);
        }
    }
}

static int fake_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id_p,
                               void *context, enum rdma_port_space ps)
{
    if (FAILS()) {
        return -1;
    }
    if (channel == NULL || ps != RDMA_PS_TCP ||
        !alive(&OBJECT_OF(channel, channel)->object, CHANNEL, "rdma_create_id")) {
        misuse("rdma_create_id: such a one is not modelled");
        errno = EINVAL;
        return -1;
    }
    *id_p = &id_make(channel, context, FAKE_ASKER)->base;
    return 0;
}

static int fake_rdma_destroy_id(struct rdma_cm_id *base)
{
    struct id *id = OBJECT_OF(id, base);
    if (fails("rdma_destroy_id", true)) {
        return -1;
    }
    if (!alive(&id->object, ID, "rdma_destroy_id")) {
        return -1;
    }
    if (id->unacked > 0) {
        misuse("rdma_destroy_id: would wait for ever for an event that was not acknowledged");
        return -1;
    }
    if (id->state == CONNECTED) {
        (void)cm_tell(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    } else if (id->state == REQUESTED || (id->state == CONNECTING && id->peer != NULL)) {
        cm_data(cm_tell(id, RDMA_CM_EVENT_REJECTED, 28), NULL, CM_REJ_DATA);
    }
    if (id->peer != NULL) {
        id->peer->peer = NULL;
    }
    cm_drop_all(id);
    OBJECT_OF(channel, base->channel)->object.uses--;
    object_end(&id->object);
    fake.base.open.ids--;
    return 0;
}

static int fake_rdma_migrate_id(struct rdma_cm_id *base, struct rdma_event_channel *to)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_migrate_id")) {
        return -1;
    }
    if (id->unacked > 0 || to == NULL) {
        misuse("rdma_migrate_id: would wait for ever");
        errno = EINVAL;
        return -1;
    }
    struct channel *old = OBJECT_OF(channel, base->channel);
    struct channel *new = OBJECT_OF(channel, to);
    kvb_list_each(&old->events, link)
    {
        if (kvb_container_of(link, struct cm_event, link)->to == id) {
            kvb_list_remove(link);
            kvb_list_push_back(&new->events, link);
        }
    }
    show(old->base.fd, &old->events);
    show(new->base.fd, &new->events);
    old->object.uses--;
    new->object.uses++;
    base->channel = to;
    return 0;
}

/* The device that has the address; FAKE_SIDES: none. */
static enum fake_side side_at(const struct sockaddr *address)
{
    static const char *texts[FAKE_SIDES] = {FAKE_ASKER_ADDRESS, FAKE_NODE_ADDRESS};
    const struct sockaddr_in *in = (const void *)address;
    for (int side = 0; side < FAKE_SIDES; side++) {
        if (address->sa_family == AF_INET && in->sin_addr.s_addr == inet_addr(texts[side]) &&
            !fake.base.devices[side].absent && !fake.removed[side]) {
            return (enum fake_side)side;
        }
    }
    return FAKE_SIDES;
}

static bool any_address(const struct sockaddr *address)
{
    const struct sockaddr_in *in = (const void *)address;
    return address == NULL || address->sa_family == AF_INET6 ||
           in->sin_addr.s_addr == htonl(INADDR_ANY);
}

static void address_set(struct sockaddr_in *to, enum fake_side side, uint16_t port)
{
    *to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    to->sin_addr.s_addr = inet_addr(side == FAKE_ASKER ? FAKE_ASKER_ADDRESS : FAKE_NODE_ADDRESS);
}

static int fake_rdma_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from,
                                  struct sockaddr *to, int timeout_ms)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_resolve_addr")) {
        return -1;
    }
    (void)timeout_ms;
    if (id->state != IDLE && id->state != BOUND) {
        misuse("rdma_resolve_addr: not now");
        errno = EINVAL;
        return -1;
    }
    enum fake_side own = any_address(from) ? FAKE_ASKER : side_at(from);
    if (own == FAKE_SIDES || fake.base.devices[own].absent || fake.removed[own]) {
        errno = ENODEV;
        return -1;
    }
    id->object.side = own;
    memcpy(&base->route.addr.dst_sin, to, sizeof base->route.addr.dst_sin);
    address_set(&base->route.addr.src_sin, own, ++fake.ports);
    bool known = side_at(to) != FAKE_SIDES;
    (void)cm_send(id, known ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR,
                  known ? 0 : -ENETUNREACH);
    return 0;
}

static int fake_rdma_resolve_route(struct rdma_cm_id *base, int timeout_ms)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_resolve_route")) {
        return -1;
    }
    (void)timeout_ms;
    if (id->state != RESOLVED) {
        misuse("rdma_resolve_route: not now");
        errno = EINVAL;
        return -1;
    }
    (void)cm_send(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    return 0;
}

static int fake_rdma_bind_addr(struct rdma_cm_id *base, struct sockaddr *at)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_bind_addr")) {
        return -1;
    }
    uint16_t port = ntohs(((struct sockaddr_in *)(void *)at)->sin_port);
    if (!any_address(at)) {
        enum fake_side side = side_at(at);
        if (side == FAKE_SIDES) {
            errno = EADDRNOTAVAIL;
            return -1;
        }
        id_bind(id, side);
    } else {
        id->object.side = FAKE_NODE;
    }
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == ID && port != 0 && object != &id->object) {
            const struct id *other = kvb_container_of(object, struct id, object);
            if ((other->state == LISTENING || other->state == BOUND) &&
                ntohs(other->base.route.addr.src_sin.sin_port) == port) {
                errno = EADDRINUSE;
                return -1;
            }
        }
    }
    address_set(&base->route.addr.src_sin, id->object.side, port != 0 ? port : ++fake.ports);
    id->state = BOUND;
    return 0;
}

static int fake_rdma_listen(struct rdma_cm_id *base, int backlog)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_listen")) {
        return -1;
    }
    (void)backlog;
    id->state = LISTENING;
    return 0;
}

static __be16 fake_rdma_get_src_port(struct rdma_cm_id *base)
{
    return base->route.addr.src_sin.sin_port;
}

static struct id *listener_at(const struct sockaddr_in *to)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == ID) {
            struct id *id = kvb_container_of(object, struct id, object);
            if (id->state == LISTENING && id->base.route.addr.src_sin.sin_port == to->sin_port) {
                return id;
            }
        }
    }
    return NULL;
}

static bool param_right(const struct id *id, const struct rdma_conn_param *param, uint32_t data_max)
{
    const struct ibv_device_attr *attr = &fake.base.devices[id->object.side].attr;
    return param != NULL && (param->private_data_len <= data_max && param->qp_num != 0 &&
                             param->responder_resources <= attr->max_qp_rd_atom &&
                             param->initiator_depth <= attr->max_qp_init_rd_atom);
}

static int fake_rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_connect")) {
        return -1;
    }
    if (id->state != ROUTED || !param_right(id, param, CM_REQ_DATA)) {
        misuse("rdma_connect: not now, or not so");
        errno = EINVAL;
        return -1;
    }
    id->state = CONNECTING;
    id->own = *param;
    id->said = true;
    id->give_up_ns = now_ns() + FAKE_CM_MS * KVB_NS_PER_MS;
    kick();
    enum fake_side there = side_at(&base->route.addr.dst_addr);
    if (there == FAKE_SIDES || side_dead(there) || side_dead(id->object.side)) {
        return 0; /* and nobody answers */
    }
    struct id *listener = listener_at(&base->route.addr.dst_sin);
    if (listener == NULL) {
        cm_data(cm_send(id, RDMA_CM_EVENT_REJECTED, 8), NULL, CM_REJ_DATA);
        return 0;
    }
    struct cm_event *event = cm_send(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    event->from = id;
    cm_data(event, param, CM_REQ_DATA);
    return 0;
}

static int fake_rdma_init_qp_attr(struct rdma_cm_id *base, struct ibv_qp_attr *attr, int *mask_p)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_init_qp_attr")) {
        return -1;
    }
    if (base->verbs == NULL || (attr->qp_state != IBV_QPS_INIT && !id->told)) {
        misuse("rdma_init_qp_attr: before it is known");
        errno = EINVAL;
        return -1;
    }
    const struct fake_device *device = &fake.base.devices[id->object.side];
    enum ibv_qp_state state = attr->qp_state;
    *attr = (struct ibv_qp_attr){.qp_state = state};
    if (state == IBV_QPS_INIT) {
        attr->port_num = 1;
        attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        *mask_p = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    } else if (state == IBV_QPS_RTR) {
        attr->path_mtu = device->port.active_mtu;
        attr->dest_qp_num = id->other.qp_num;
        attr->max_dest_rd_atomic = id->own.responder_resources;
        *mask_p = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        if (!id->said) { /* before it is accepted: what the other end asked for */
            attr->max_dest_rd_atomic = id->other.responder_resources;
        }
    } else {
        attr->rnr_retry = id->other.rnr_retry_count;
        attr->retry_cnt = id->other.retry_count;
        attr->timeout = 14;
        attr->max_rd_atomic = id->said ? id->own.initiator_depth : id->other.initiator_depth;
        *mask_p = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                  IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return 0;
}

static int fake_rdma_accept(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_accept")) {
        return -1;
    }
    if (id->state != REQUESTED || !param_right(id, param, CM_REP_DATA)) {
        misuse("rdma_accept: not now, or not so");
        errno = EINVAL;
        return -1;
    }
    id->own = *param;
    id->said = true;
    id->state = CONNECTING;
    id->give_up_ns = now_ns() + FAKE_CM_MS * KVB_NS_PER_MS;
    kick();
    cm_data(cm_tell(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0), param, CM_REP_DATA);
    return 0;
}

static int fake_rdma_reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_reject")) {
        return -1;
    }
    if (id->state != REQUESTED || len > CM_REJ_DATA) {
        misuse("rdma_reject: not now, or not so");
        errno = EINVAL;
        return -1;
    }
    struct rdma_conn_param param = {.private_data = data, .private_data_len = len};
    cm_data(cm_tell(id, RDMA_CM_EVENT_REJECTED, 28), &param, CM_REJ_DATA);
    id->state = OVER;
    return 0;
}

static int fake_rdma_disconnect(struct rdma_cm_id *base)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_disconnect")) {
        return -1;
    }
    if (id->state != CONNECTED) {
        errno = EINVAL;
        return -1;
    }
    id->state = OVER;
    (void)cm_tell(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    /* the other end's answer, and later the end of the wait */
    (void)cm_send(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    cm_send(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0)->due_ns = now_ns() + FAKE_CM_MS * KVB_NS_PER_MS;
    return 0;
}

static int fake_rdma_establish(struct rdma_cm_id *base)
{
    struct id *id = OBJECT_OF(id, base);
    if (FAILS() || !alive(&id->object, ID, "rdma_establish")) {
        return -1;
    }
    if (id->state != CONNECTING || !id->told) {
        misuse("rdma_establish: not now");
        errno = EINVAL;
        return -1;
    }
    id->state = CONNECTED;
    id->give_up_ns = 0;
    /* The last word of three may arrive after the first message. */
    struct cm_event *event = cm_tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
    if (event != NULL && below(2) == 0) {
        event->due_ns += KVB_NS_PER_MS;
    }
    kick();
    return 0;
}

static int fake_rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **event_p)
{
    struct channel *channel = OBJECT_OF(channel, base);
    if (FAILS() || !alive(&channel->object, CHANNEL, "rdma_get_cm_event")) {
        return -1;
    }
    struct kvb_list *link = kvb_list_pop(&channel->events);
    if (link == NULL) {
        return would_block(base->fd, "rdma_get_cm_event") ? -1 : 0;
    }
    show(base->fd, &channel->events);
    struct cm_event *event = kvb_container_of(link, struct cm_event, link);
    struct id *id = event->to;
    event->base.id = &id->base;
    switch (event->base.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST: {
        struct id *child = id_make(base, id->base.context, id->object.side);
        id_bind(child, event->from != NULL ? side_at(&event->from->base.route.addr.dst_addr)
                                           : id->object.side);
        child->state = REQUESTED;
        child->peer = event->from;
        child->base.route.addr = id->base.route.addr;
        if (event->from != NULL) {
            event->from->peer = child;
            child->base.route.addr.dst_sin = event->from->base.route.addr.src_sin;
        }
        child->other = event->base.param.conn;
        child->told = true;
        event->base.listen_id = &id->base;
        event->base.id = &child->base;
        break;
    }
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        id->state = RESOLVED;
        id_bind(id, id->object.side);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        id->state = ROUTED;
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        id->state = CONNECTED;
        id->give_up_ns = 0;
        break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
        id->other = event->base.param.conn;
        id->told = true;
        id->give_up_ns = 0;
        break;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        id->state = OVER;
        id->give_up_ns = 0;
        break;
    default:
        break;
    }
    id->unacked++;
    fake.base.open.cm_events++;
    *event_p = &event->base;
    return 0;
}

static int fake_rdma_ack_cm_event(struct rdma_cm_event *base)
{
    struct cm_event *event = OBJECT_OF(cm_event, base);
    if (fails("rdma_ack_cm_event", true)) {
        return -1;
    }
    event->to->unacked--;
    fake.base.open.cm_events--;
    free(event);
    return 0;
}

/* ---- what goes on by itself ---- */

static void cm_arrive(struct cm_event *event)
{
    kvb_list_remove(&event->link);
    struct channel *channel = OBJECT_OF(channel, event->to->base.channel);
    kvb_list_push_back(&channel->events, &event->link);
    show(channel->base.fd, &channel->events);
}

static bool cm_step(void)
{
    kvb_list_each(&fake.cm, link)
    {
        struct cm_event *event = kvb_container_of(link, struct cm_event, link);
        bool first = true; /* those to one end arrive in order */
        for (struct kvb_list *at = fake.cm.next; at != link; at = at->next) {
            first = first && kvb_container_of(at, struct cm_event, link)->to != event->to;
        }
        if (first && event->due_ns <= now_ns()) {
            cm_arrive(event);
            return true;
        }
    }
    return false;
}

/* Asks each queue pair and each message that waits what it waits for. */
static uint64_t next_due_ns(void)
{
    uint64_t due = KVB_NEVER;
    kvb_list_each(&fake.cm, link)
    {
        const struct cm_event *event = kvb_container_of(link, struct cm_event, link);
        due = event->due_ns > now_ns() && event->due_ns < due ? event->due_ns : due;
    }
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == QP) {
            const struct qp *qp = kvb_container_of(object, struct qp, object);
            if (!kvb_list_empty(&qp->sq.waiting) && qp->base.state == IBV_QPS_RTS) {
                uint64_t at = qp->retry_ns != 0 ? qp->retry_ns : qp->ready_ns;
                due = at > now_ns() && at < due ? at : due;
            }
        } else if (object->kind == ID) {
            const struct id *id = kvb_container_of(object, struct id, object);
            due = id->give_up_ns != 0 && id->give_up_ns < due ? id->give_up_ns : due;
        }
    }
    return due;
}

static void give_up(void)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == ID) {
            struct id *id = kvb_container_of(object, struct id, object);
            if (id->give_up_ns != 0 && id->give_up_ns <= now_ns()) {
                id->give_up_ns = 0;
                (void)cm_send(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
            }
        }
    }
}

static uint32_t living_qps(struct qp **out, uint32_t max)
{
    uint32_t n = 0;
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == QP && n < max) {
            out[n++] = kvb_container_of(object, struct qp, object);
        }
    }
    return n;
}

static void on_step(struct kvb_event *event)
{
    (void)event;
    struct qp *qps[512];
    uint64_t budget = FAKE_TURN;
    bool busy_ = false;
    give_up();
    uint32_t n = living_qps(qps, 512);
    for (uint32_t steps = 0, idle = 0; steps < 64 && budget > 0 && idle <= n; steps++) {
        bool some = below(n + 1) == 0 && cm_step();
        uint32_t from = n > 0 ? (uint32_t)below(n) : 0;
        for (uint32_t i = 0; i < n && !some; i++) {
            some = qp_step(qps[(from + i) % n], &budget);
        }
        some = some || cm_step();
        idle = some ? 0 : n + 1;
        busy_ = busy_ || some;
    }
    if (busy_) {
        kick();
    }
    kvb_sched_timer_set(&fake.base.sim->sched, &fake.timer, next_due_ns());
}

static void on_timer(struct kvb_timer *timer)
{
    (void)timer;
    kick();
}

/* ---- the test's side of it ---- */

static void device_init(enum fake_side side)
{
    struct context *context = context_of(side);
    memset(context, 0, sizeof *context);
    context->object = (struct object){.kind = CONTEXT, .side = side};
    kvb_list_init(&context->events);
    (void)snprintf(context->device.name, sizeof context->device.name, "fake%d", (int)side);
    context->device.node_type = IBV_NODE_CA;
    context->device.transport_type = IBV_TRANSPORT_IB;
    context->base.device = &context->device;
    context->base.num_comp_vectors = 1;
    context->base.async_fd = -1;
    struct fake_device *device = &fake.base.devices[side];
    *device = (struct fake_device){
        .attr = {.max_mr_size = UINT64_MAX,
                 .page_size_cap = 4096,
                 .max_qp = 1024,
                 .max_qp_wr = 4096,
                 .max_sge = 16,
                 .max_sge_rd = 16,
                 .max_cq = 1024,
                 .max_cqe = 1 << 16,
                 .max_mr = 4096,
                 .max_pd = 64,
                 .max_qp_rd_atom = 16,
                 .max_res_rd_atom = 1024,
                 .max_qp_init_rd_atom = 16,
                 .max_srq = 64,
                 .max_srq_wr = 8192,
                 .max_srq_sge = 4,
                 .phys_port_cnt = 1},
        .port = {.state = IBV_PORT_ACTIVE,
                 .max_mtu = IBV_MTU_4096,
                 .active_mtu = IBV_MTU_1024,
                 .gid_tbl_len = FAKE_GIDS,
                 .max_msg_sz = 1u << 30,
                 .pkey_tbl_len = 1,
                 .link_layer = IBV_LINK_LAYER_ETHERNET},
        .device = &context->device,
        .max_inline = 256,
        .memlock = UINT64_MAX,
    };
    uint32_t address = inet_addr(side == FAKE_ASKER ? FAKE_ASKER_ADDRESS : FAKE_NODE_ADDRESS);
    device->gids[0].raw[0] = 0xfe;
    device->gids[0].raw[1] = 0x80;
    device->gids[1].raw[10] = device->gids[1].raw[11] = 0xff;
    memcpy(device->gids[1].raw + 12, &address, sizeof address);
    device->gid_types[0] = device->gid_types[1] = IBV_GID_TYPE_ROCE_V2;
}

struct fake_verbs *fake_verbs_open(struct sim_sched *sim)
{
    memset(&fake, 0, sizeof fake);
    fake.base.sim = sim;
    fake.random = sim->seed ^ 0x7ac3;
    fake.ports = 20000;
    fake.numbers = 0x100;
    fake.fail_after = UINT64_MAX;
    kvb_list_init(&fake.objects);
    kvb_list_init(&fake.dead);
    kvb_list_init(&fake.cm);
    kvb_event_init(&fake.event, on_step);
    kvb_timer_init(&fake.timer, on_timer);
    for (int side = 0; side < FAKE_SIDES; side++) {
        device_init((enum fake_side)side);
    }
    return &fake.base;
}

const char *fake_verbs_leak(const struct fake_counts *before)
{
    static const struct fake_counts none = {0};
    static char text[128];
    before = before != NULL ? before : &none;
#define X(name)                                                                                    \
    if (fake.base.open.name != before->name) {                                                     \
        (void)snprintf(text, sizeof text, "%u " #name ", %u before", fake.base.open.name,          \
                       before->name);                                                              \
        return text;                                                                               \
    }
    FAKE_OBJECTS(X)
#undef X
    return NULL;
}

void fake_verbs_close(void)
{
    const char *leak = fake_verbs_leak(NULL);
    if (leak != NULL) {
        (void)fprintf(stderr, "fake verbs: left behind: %s\n", leak);
        abort();
    }
    kvb_assert(fake.base.tolerant || fake.base.misuses == 0);
    kvb_assert(fake.ios == NULL && fake.base.pinned == 0);
    kvb_sched_unpost(&fake.event);
    kvb_sched_timer_clear(&fake.base.sim->sched, &fake.timer);
    while (!kvb_list_empty(&fake.cm)) {
        struct kvb_list *link = kvb_list_pop(&fake.cm);
        free(kvb_container_of(link, struct cm_event, link));
    }
    for (int side = 0; side < FAKE_SIDES; side++) {
        struct context *context = context_of((enum fake_side)side);
        for (struct kvb_list *link; (link = kvb_list_pop(&context->events)) != NULL;) {
            free(kvb_container_of(link, struct async, link));
        }
        if (context->base.async_fd >= 0) {
            (void)close(context->base.async_fd);
        }
    }
    for (struct kvb_list *link; (link = kvb_list_pop(&fake.dead)) != NULL;) {
        struct object *object = kvb_container_of(link, struct object, link);
        void *whole[] = {
            [CHANNEL] = kvb_container_of(object, struct channel, object),
            [ID] = kvb_container_of(object, struct id, object),
            [PD] = kvb_container_of(object, struct pd, object),
            [MR] = kvb_container_of(object, struct mr, object),
            [COMP] = kvb_container_of(object, struct comp, object),
            [CQ] = kvb_container_of(object, struct cq, object),
            [SRQ] = kvb_container_of(object, struct srq, object),
            [QP] = kvb_container_of(object, struct qp, object),
        };
        free(whole[object->kind]);
    }
}

void fake_verbs_fail(const char *function, uint64_t nth, int error)
{
    fake.fail_name = function;
    fake.fail_after = nth;
    fake.fail_errno = error;
    fake.failed_name = NULL;
}

bool fake_verbs_failed(const char **what_p)
{
    fake.fail_after = UINT64_MAX;
    if (what_p != NULL) {
        *what_p = fake.failed_name;
    }
    return fake.failed_name != NULL;
}

bool fake_verbs_has_failed(void)
{
    return fake.failed_name != NULL;
}

void fake_verbs_status(enum fake_side side, enum ibv_wc_opcode kind, uint64_t nth,
                       enum ibv_wc_status status)
{
    fake.status[side].set = true;
    fake.status[side].kind = kind;
    fake.status[side].after = nth;
    fake.status[side].status = status;
}

void fake_verbs_tap(fake_verbs_tap_fn fn, void *ctx)
{
    fake.tap = fn;
    fake.tap_ctx = ctx;
}

void fake_verbs_silence(enum fake_side side, bool silent)
{
    fake.base.devices[side].silent = silent;
    kick();
}

void fake_verbs_mute(enum fake_side side, bool mute)
{
    fake.base.devices[side].mute = mute;
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == CQ && object->side == side && !mute) {
            struct cq *cq = kvb_container_of(object, struct cq, object);
            for (struct kvb_list *held; (held = kvb_list_pop(&cq->held)) != NULL;) {
                cq_show(cq, kvb_container_of(held, struct entry, link));
            }
        }
    }
}

void fake_verbs_async_event(enum fake_side side, enum ibv_event_type event)
{
    async_put(side, (struct ibv_async_event){.element = {.port_num = 1}, .event_type = event});
}

void fake_verbs_port(enum fake_side side, bool up)
{
    fake.base.devices[side].port.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    fake_verbs_async_event(side, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    kick();
}

void fake_verbs_cm_event(enum fake_side side, enum rdma_cm_event_type event, int status)
{
    kvb_list_each(&fake.objects, link)
    {
        struct object *object = kvb_container_of(link, struct object, link);
        if (object->kind == ID && object->side == side) {
            struct id *id = kvb_container_of(object, struct id, object);
            if (id->base.verbs != NULL &&
                (id->state != LISTENING || event == RDMA_CM_EVENT_DEVICE_REMOVAL)) {
                (void)cm_send(id, event, status);
            }
        }
    }
}

void fake_verbs_break(enum fake_side side)
{
    struct qp *qps[512];
    uint32_t n = living_qps(qps, 512);
    for (uint32_t i = 0; i < n; i++) {
        if (qps[i]->object.side == side) {
            qp_error(qps[i]);
        }
    }
}

void fake_verbs_remove(enum fake_side side, bool flush)
{
    fake.removed[side] = true;
    fake_verbs_async_event(side, IBV_EVENT_DEVICE_FATAL);
    fake_verbs_cm_event(side, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
    fake.frozen[side] = !flush;
    fake_verbs_break(side);
}

uint32_t fake_verbs_posted(enum fake_side side)
{
    struct qp *qps[512];
    uint32_t n = living_qps(qps, 512), posted = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (qps[i]->object.side == side) {
            kvb_list_each(&qps[i]->sq.waiting, link)
            {
                posted++;
            }
        }
    }
    return posted;
}

const struct kvt_verbs fake_verbs_table = {
    .rdma_get_devices = fake_rdma_get_devices,
    .rdma_free_devices = fake_rdma_free_devices,
    .ibv_query_device = fake_ibv_query_device,
    .ibv_query_port = fake_ibv_query_port,
    .ibv_query_gid_ex = fake_ibv_query_gid_ex,
    .ibv_get_async_event = fake_ibv_get_async_event,
    .ibv_ack_async_event = fake_ibv_ack_async_event,
    .ibv_fork_init = fake_ibv_fork_init,
    .ibv_is_fork_initialized = fake_ibv_is_fork_initialized,
    .ibv_alloc_pd = fake_ibv_alloc_pd,
    .ibv_dealloc_pd = fake_ibv_dealloc_pd,
    .ibv_reg_mr = fake_ibv_reg_mr,
    .ibv_reg_dmabuf_mr = fake_ibv_reg_dmabuf_mr,
    .ibv_dereg_mr = fake_ibv_dereg_mr,
    .ibv_create_comp_channel = fake_ibv_create_comp_channel,
    .ibv_destroy_comp_channel = fake_ibv_destroy_comp_channel,
    .ibv_create_cq = fake_ibv_create_cq,
    .ibv_destroy_cq = fake_ibv_destroy_cq,
    .ibv_req_notify_cq = fake_ibv_req_notify_cq,
    .ibv_get_cq_event = fake_ibv_get_cq_event,
    .ibv_ack_cq_events = fake_ibv_ack_cq_events,
    .ibv_poll_cq = fake_ibv_poll_cq,
    .ibv_create_srq = fake_ibv_create_srq,
    .ibv_destroy_srq = fake_ibv_destroy_srq,
    .ibv_post_srq_recv = fake_ibv_post_srq_recv,
    .ibv_create_qp = fake_ibv_create_qp,
    .ibv_modify_qp = fake_ibv_modify_qp,
    .ibv_destroy_qp = fake_ibv_destroy_qp,
    .ibv_post_send = fake_ibv_post_send,
    .rdma_create_event_channel = fake_rdma_create_event_channel,
    .rdma_destroy_event_channel = fake_rdma_destroy_event_channel,
    .rdma_get_cm_event = fake_rdma_get_cm_event,
    .rdma_ack_cm_event = fake_rdma_ack_cm_event,
    .rdma_create_id = fake_rdma_create_id,
    .rdma_destroy_id = fake_rdma_destroy_id,
    .rdma_migrate_id = fake_rdma_migrate_id,
    .rdma_bind_addr = fake_rdma_bind_addr,
    .rdma_listen = fake_rdma_listen,
    .rdma_get_src_port = fake_rdma_get_src_port,
    .rdma_resolve_addr = fake_rdma_resolve_addr,
    .rdma_resolve_route = fake_rdma_resolve_route,
    .rdma_init_qp_attr = fake_rdma_init_qp_attr,
    .rdma_connect = fake_rdma_connect,
    .rdma_establish = fake_rdma_establish,
    .rdma_accept = fake_rdma_accept,
    .rdma_reject = fake_rdma_reject,
    .rdma_disconnect = fake_rdma_disconnect,
};
