/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which device, port and address: the config's, or the first that can do what is needed. Whatever
 * does not fit is said with its reason, and what the config asks for is tried on a queue pair
 * before anybody relies on it.
 */
#include "device.h"

#include "cause.h"

#include "base/assert.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_DEPTH  256u
#define DEFAULT_SGE    16u
#define DEFAULT_INLINE 128u
#define DEFAULT_WINDOW 64u
#define SGE_MAX        32u
#define DEPTH_MIN      16u
#define DEPTH_MAX      (16u << 10)
#define INLINE_MAX     1024u
#define WINDOW_MIN     4u
#define WINDOW_MAX     1024u
#define RD_ATOMIC_MAX  128u

__attribute__((format(printf, 2, 3))) static void say(char reason[KVT_RDMA_REASON_MAX],
                                                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(reason, KVT_RDMA_REASON_MAX, format, args);
    va_end(args);
}

/* ---- small things that others ask too ---- */

kvb_status_t rdev_status(int error)
{
    switch (error) {
    case ENOMEM:
    case ENOBUFS:
        return KVB_ERR_NO_MEMORY;
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EAGAIN:
        return KVB_ERR_LIMIT;
    default:
        return KVB_ERR_IO;
    }
}

static const struct {
    uint32_t bytes;
    enum ibv_mtu mtu;
} mtus[] = {{256, IBV_MTU_256},
            {512, IBV_MTU_512},
            {1024, IBV_MTU_1024},
            {2048, IBV_MTU_2048},
            {4096, IBV_MTU_4096}};

enum ibv_mtu rdev_mtu(uint32_t bytes)
{
    for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++) {
        if (mtus[i].bytes == bytes) {
            return mtus[i].mtu;
        }
    }
    return (enum ibv_mtu)0;
}

uint32_t rdev_mtu_bytes(enum ibv_mtu mtu)
{
    for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++) {
        if (mtus[i].mtu == mtu) {
            return mtus[i].bytes;
        }
    }
    return 0;
}

kvb_status_t rdev_address_parse(const char *text, struct sockaddr_storage *address_p)
{
    char host[128];
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5 || colon[1] == '\0' || atoi(colon + 1) > UINT16_MAX) {
        return KVB_ERR_INVALID;
    }
    size_t len = (size_t)(colon - text);
    bool bracketed = text[0] == '[' && colon[-1] == ']';
    if (bracketed) {
        text++;
        len -= 2;
    } else if (memchr(text, ':', len) != NULL) {
        return KVB_ERR_INVALID;
    }
    if (len == 0 || len >= sizeof host) {
        return KVB_ERR_INVALID;
    }
    memcpy(host, text, len);
    host[len] = '\0';
    const struct addrinfo hints = {.ai_family = bracketed ? AF_INET6 : AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found;
    char *end;
    if (strtoul(colon + 1, &end, 10) > UINT16_MAX || *end != '\0' || /* it would be cut to fit */
        getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        return KVB_ERR_INVALID;
    }
    memset(address_p, 0, sizeof *address_p);
    memcpy(address_p, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return KVB_OK;
}

void rdev_address_text(const struct sockaddr *address, char *out, size_t cap)
{
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    out[0] = '\0';
    if (address->sa_family == AF_INET) {
        memcpy(&at.v4, address, sizeof at.v4);
        (void)inet_ntop(AF_INET, &at.v4.sin_addr, out, (socklen_t)cap);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&at.v6, address, sizeof at.v6);
        (void)inet_ntop(AF_INET6, &at.v6.sin6_addr, out, (socklen_t)cap);
    }
}

void rdev_count(struct kvt_rdma_device *device, enum kvt_rdma_cause cause)
{
    (void)atomic_fetch_add_explicit(&device->counts[cause], 1, memory_order_relaxed);
}

uint64_t kvt_rdma_device_count(const struct kvt_rdma_device *device, enum kvt_rdma_cause cause)
{
    return atomic_load_explicit(&device->counts[cause], memory_order_relaxed);
}

void rdev_die(struct kvt_rdma_device *device, const char *why)
{
    if (!atomic_exchange(&device->dead, true)) {
        KVB_LOG(ERROR, "rdma: the device is lost until this process starts anew",
                KVB_STR("device", device->info.device), KVB_STR("reason", why));
    }
}

bool kvt_rdma_device_dead(const struct kvt_rdma_device *device)
{
    return atomic_load(&device->dead);
}

bool kvt_rdma_device_port_up(const struct kvt_rdma_device *device)
{
    return atomic_load(&device->port_up);
}

void kvt_rdma_device_info(const struct kvt_rdma_device *device, struct kvt_rdma_info *info_p)
{
    *info_p = device->info;
}

/* ---- events of the device ---- */

static void on_device_event(struct kvt_rdma_device *device, const struct ibv_async_event *event)
{
    const struct rcause *row = rcause_of_device(event->event_type);
    if (event->event_type == IBV_EVENT_PORT_ACTIVE || event->event_type == IBV_EVENT_PORT_ERR) {
        if (event->element.port_num != (int)device->info.port) {
            return;
        }
        bool up = event->event_type == IBV_EVENT_PORT_ACTIVE;
        atomic_store(&device->port_up, up);
        if (up) {
            KVB_LOG(INFO, "rdma: the port is up again", KVB_STR("device", device->info.device),
                    KVB_U64("port", device->info.port));
        } else {
            KVB_LOG(WARN, "rdma: the port is down: lanes over it end when their peers are silent",
                    KVB_STR("device", device->info.device), KVB_U64("port", device->info.port));
        }
    }
    if (row == NULL) {
        return;
    }
    rdev_count(device, row->cause);
    if (row->reaction == RCAUSE_DEAD) {
        rdev_die(device, kvt_rdma_cause_text(row->cause));
    }
}

static int take_events(struct rwatch *watch)
{
    struct kvt_rdma_device *device = kvb_container_of(watch, struct kvt_rdma_device, async);
    struct ibv_async_event event;
    errno = 0;
    while (device->verbs->ibv_get_async_event(device->context, &event) == 0) {
        on_device_event(device, &event);
        device->verbs->ibv_ack_async_event(&event);
        errno = 0;
    }
    return errno;
}

/* ---- choosing ---- */

static bool link_local(const union ibv_gid *gid)
{
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static bool v4_mapped(const union ibv_gid *gid)
{
    return all_zero(gid->raw, 10) && gid->raw[10] == 0xff && gid->raw[11] == 0xff;
}

/* NULL, or why others could not reach this port by it. */
static const char *gid_refused(const struct ibv_gid_entry *entry)
{
    const uint8_t *raw = entry->gid.raw;
    if (all_zero(raw, 16) || all_zero(raw + 8, 8)) {
        return "is empty";
    }
    if (entry->gid_type != IBV_GID_TYPE_ROCE_V2) {
        return "is not of RoCE v2";
    }
    if (entry->ndev_ifindex == 0) {
        return "belongs to no network interface of this host";
    }
    if (link_local(&entry->gid) || (v4_mapped(&entry->gid) && raw[12] == 169 && raw[13] == 254)) {
        return "is link-local";
    }
    if (v4_mapped(&entry->gid) && raw[12] == 127) {
        return "is a loopback address";
    }
    return NULL;
}

static void gid_source(const union ibv_gid *gid, struct sockaddr_storage *source)
{
    memset(source, 0, sizeof *source);
    if (v4_mapped(gid)) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        memcpy(&in.sin_addr, gid->raw + 12, 4);
        memcpy(source, &in, sizeof in);
    } else {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
        memcpy(&in6.sin6_addr, gid->raw, 16);
        memcpy(source, &in6, sizeof in6);
    }
}

/* The port's address: the config's entry, or the first one of IPv4 that others can reach, or else
 * of IPv6. */
static kvb_status_t choose_gid(struct kvt_rdma_device *device, char *reason)
{
    struct kvt_rdma_info *info = &device->info;
    const struct kvt_verbs *verbs = device->verbs;
    uint32_t n = device->port.gid_tbl_len > 0 ? (uint32_t)device->port.gid_tbl_len : 0;
    struct ibv_gid_entry entry, found = {0};
    bool some = false;

    if (device->config.gid_set) {
        uint32_t index = device->config.gid_index;
        if (index >= n) {
            say(reason, "gid index %u: port %u of %s has entries 0 to %u", index, info->port,
                info->device, n > 0 ? n - 1 : 0);
            return KVB_ERR_INVALID;
        }
        memset(&entry, 0, sizeof entry);
        int error = verbs->ibv_query_gid_ex(device->context, info->port, index, &entry, 0);
        const char *refused = error != 0 ? "is empty" : gid_refused(&entry);
        if (refused != NULL) {
            say(reason, "gid index %u: that entry of port %u of %s %s", index, info->port,
                info->device, refused);
            return KVB_ERR_INVALID;
        }
        found = entry;
        some = true;
    }
    for (uint32_t i = 0; i < n && !(some && v4_mapped(&found.gid)) && !device->config.gid_set;
         i++) {
        memset(&entry, 0, sizeof entry);
        if (verbs->ibv_query_gid_ex(device->context, info->port, i, &entry, 0) == 0 &&
            gid_refused(&entry) == NULL && (!some || v4_mapped(&entry.gid))) {
            found = entry;
            found.gid_index = i;
            some = true;
        }
    }
    if (!some) {
        say(reason,
            "%s port %u: none of its addresses is one of RoCE v2 that others could reach (see "
            "/sys/class/infiniband/%s/ports/%u/gids; give its network interface an IP address)",
            info->device, info->port, info->device, info->port);
        return KVB_ERR_UNSUPPORTED;
    }
    info->gid_index = device->config.gid_set ? device->config.gid_index : found.gid_index;
    gid_source(&found.gid, &device->source);
    rdev_address_text((const struct sockaddr *)&device->source, info->address,
                      sizeof info->address);
    return KVB_OK;
}

static kvb_status_t choose_port(struct kvt_rdma_device *device, char *reason)
{
    struct kvt_rdma_info *info = &device->info;
    const struct kvt_rdma_config *config = &device->config;
    uint32_t n = device->attr.phys_port_cnt;
    if (config->port > n) {
        say(reason, "port %u: %s has ports 1 to %u", config->port, info->device, n);
        return KVB_ERR_INVALID;
    }
    uint32_t first = config->port != 0 ? config->port : 1;
    uint32_t last = config->port != 0 ? config->port : n;
    for (uint32_t port = first; port <= last; port++) {
        memset(&device->port, 0, sizeof device->port);
        if (device->verbs->ibv_query_port(device->context, (uint8_t)port, &device->port) == 0 &&
            device->port.state == IBV_PORT_ACTIVE) {
            info->port = port;
            bool ethernet = device->port.link_layer == IBV_LINK_LAYER_ETHERNET;
            (void)snprintf(info->link, sizeof info->link, "%s",
                           ethernet ? "roce v2" : "infiniband");
            if (ethernet) {
                return choose_gid(device, reason);
            }
            if (config->gid_set) {
                say(reason, "gid index %u: port %u of %s is InfiniBand, which goes by IPoIB",
                    config->gid_index, port, info->device);
                return KVB_ERR_INVALID;
            }
            return KVB_OK;
        }
    }
    if (config->port != 0) {
        say(reason, "%s: port %u is not active", info->device, config->port);
    } else {
        say(reason, "%s: no port is active", info->device);
    }
    return KVB_ERR_UNSUPPORTED;
}

/* A number of the config: within what is allowed and what the device can, or, if it is 0,
 * `otherwise`, as far as the device can. */
static kvb_status_t choose_number(const struct kvt_rdma_device *device, const char *name,
                                  uint32_t given, uint32_t otherwise, uint32_t least, uint32_t most,
                                  uint32_t *value_p, char *reason)
{
    if (given != 0 && (given < least || given > most)) {
        say(reason, "%s %u: on %s it may be %u to %u", name, given, device->info.device, least,
            most);
        return KVB_ERR_INVALID;
    }
    *value_p = given != 0 ? given : otherwise < most ? otherwise : most;
    return KVB_OK;
}

static uint32_t at_most(int device, uint32_t limit)
{
    return device < 1 ? 1 : (uint32_t)device < limit ? (uint32_t)device : limit;
}

static kvb_status_t choose_numbers(struct kvt_rdma_device *device, char *reason)
{
    const struct kvt_rdma_config *config = &device->config;
    const struct ibv_device_attr *attr = &device->attr;
    struct kvt_rdma_info *info = &device->info;
    uint32_t active = rdev_mtu_bytes(device->port.active_mtu);
    uint32_t reads = at_most(attr->max_qp_init_rd_atom, at_most(attr->max_qp_rd_atom, 255));
    if (config->mtu != 0 && (rdev_mtu(config->mtu) == 0 || config->mtu > active)) {
        say(reason, "mtu %u: it is one of 256, 512, 1024, 2048, 4096, and at most the port's (%u)",
            config->mtu, active);
        return KVB_ERR_INVALID;
    }
    info->mtu = config->mtu != 0 ? config->mtu : active;
    const struct {
        const char *name;
        uint32_t given, otherwise, least, most;
        uint32_t *value_p;
    } numbers[] = {
        {"depth", config->depth, DEFAULT_DEPTH, DEPTH_MIN,
         at_most(attr->max_qp_wr, at_most(attr->max_cqe, DEPTH_MAX)), &info->depth},
        {"sge", config->sge, DEFAULT_SGE, 1, at_most(attr->max_sge, SGE_MAX), &info->sge},
        {"window", config->window, DEFAULT_WINDOW, WINDOW_MIN,
         at_most(attr->max_srq_wr, at_most(attr->max_cqe, WINDOW_MAX)), &info->window},
        {"rd_atomic", config->rd_atomic, reads, 1, reads < RD_ATOMIC_MAX ? reads : RD_ATOMIC_MAX,
         &info->rd_atomic},
        {"inline", config->inline_bytes, DEFAULT_INLINE, 1, INLINE_MAX, &info->inline_bytes},
        {"retries", config->retries, 7, 1, 7, &device->config.retries},
        {"rnr_retries", config->rnr_retries, 6, 1, 7, &device->config.rnr_retries},
        {"ack_timeout_ms", config->ack_timeout_ms, 67, 1, 60000, &device->config.ack_timeout_ms},
        {"resolve_ms", config->resolve_ms, 1000, 1, 60000, &device->config.resolve_ms},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        kvb_status_t status =
            choose_number(device, numbers[i].name, numbers[i].given, numbers[i].otherwise,
                          numbers[i].least, numbers[i].most, numbers[i].value_p, reason);
        if (status != KVB_OK) {
            return status;
        }
    }
    if (info->depth < DEPTH_MIN || info->window < WINDOW_MIN || active == 0) {
        say(reason, "%s: its queues are too small (%u work requests, %u receives)", info->device,
            info->depth, info->window);
        return KVB_ERR_UNSUPPORTED;
    }
    device->sge_read = at_most(attr->max_sge_rd > 0 ? attr->max_sge_rd : attr->max_sge, info->sge);
    return KVB_OK;
}

/* ---- trying ---- */

/* Makes and unmakes what a lane is made of. 0, or an errno. */
static int try_queues(const struct kvt_rdma_device *device, uint32_t inline_bytes)
{
    const struct kvt_verbs *verbs = device->verbs;
    const struct kvt_rdma_info *info = &device->info;
    struct ibv_srq *srq = NULL;
    struct ibv_qp *qp = NULL;
    int error = 0;
    errno = 0;
    struct ibv_cq *cq = verbs->ibv_create_cq(device->context, (int)info->depth, NULL, NULL, 0);
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = info->window, .max_sge = 1}};
    if (cq != NULL) {
        srq = verbs->ibv_create_srq(device->pd, &srq_attr);
    }
    struct ibv_qp_init_attr qp_attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .cap = {.max_send_wr = info->depth,
                .max_send_sge = info->sge,
                .max_inline_data = inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    if (srq != NULL) {
        qp = verbs->ibv_create_qp(device->pd, &qp_attr);
    }
    if (qp == NULL) {
        error = errno != 0 ? errno : EIO;
    } else {
        (void)verbs->ibv_destroy_qp(qp);
    }
    if (srq != NULL) {
        (void)verbs->ibv_destroy_srq(srq);
    }
    if (cq != NULL) {
        (void)verbs->ibv_destroy_cq(cq);
    }
    return error;
}

/* How much a device takes inline it does not say: the most that works is found by trying. */
static kvb_status_t try_it(struct kvt_rdma_device *device, char *reason)
{
    struct kvt_rdma_info *info = &device->info;
    int error = try_queues(device, info->inline_bytes);
    while (error != 0 && device->config.inline_bytes == 0 && info->inline_bytes > 0) {
        info->inline_bytes = info->inline_bytes > 32 ? info->inline_bytes / 2 : 0;
        error = try_queues(device, info->inline_bytes);
    }
    if (error == 0) {
        return KVB_OK;
    }
    char text[128];
    say(reason, "%s cannot make a queue pair with depth %u, sge %u, inline %u, window %u: %s%s",
        info->device, info->depth, info->sge, info->inline_bytes, info->window,
        strerror_r(error, text, sizeof text),
        error == ENOMEM ? " (locked memory: ulimit -l, LimitMEMLOCK=; or queue pairs in use)" : "");
    return error == EINVAL ? KVB_ERR_INVALID : rdev_status(error);
}

/* One device, all of it. Nothing of it is left on a failure. */
static kvb_status_t open_context(struct kvt_rdma_device *device, struct ibv_context *context,
                                 char *reason)
{
    struct kvt_rdma_info *info = &device->info;
    const struct kvt_verbs *verbs = device->verbs;
    device->context = context;
    (void)snprintf(info->device, sizeof info->device, "%s", context->device->name);
    if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
        say(reason,
            "%s is an iWARP device: its reads need remote access to the engine's memory, which "
            "no peer ever gets; use tcp",
            info->device);
        return KVB_ERR_UNSUPPORTED;
    }
    if (context->device->transport_type != IBV_TRANSPORT_IB) {
        say(reason, "%s has no reliable connected queue pairs", info->device);
        return KVB_ERR_UNSUPPORTED;
    }
    int error = verbs->ibv_query_device(context, &device->attr);
    if (error != 0) {
        say(reason, "%s cannot be asked what it can (error %d)", info->device, error);
        return rdev_status(error);
    }
    if (device->attr.max_srq < 1) {
        say(reason, "%s has no shared receive queues", info->device);
        return KVB_ERR_UNSUPPORTED;
    }
    kvb_status_t status = choose_port(device, reason);
    if (status == KVB_OK) {
        status = choose_numbers(device, reason);
    }
    if (status != KVB_OK) {
        return status;
    }
    device->pd = verbs->ibv_alloc_pd(context);
    if (device->pd == NULL) {
        error = errno;
        say(reason, "%s: no protection domain (of %d): error %d", info->device, device->attr.max_pd,
            error);
        return rdev_status(error);
    }
    status = try_it(device, reason);
    if (status != KVB_OK) {
        (void)verbs->ibv_dealloc_pd(device->pd);
        device->pd = NULL;
    }
    return status;
}

/* The device of that name, or the first that can be used. reason: of the last that could not, or
 * what there is. */
static kvb_status_t choose_device(struct kvt_rdma_device *device, char *reason)
{
    const struct kvt_rdma_config given = device->config;
    bool named = given.device != NULL && given.device[0] != '\0';
    int n = 0;
    errno = 0;
    struct ibv_context **list = device->verbs->rdma_get_devices(&n);
    if (list == NULL || n == 0) {
        int error = errno;
        if (list != NULL) {
            device->verbs->rdma_free_devices(list);
        }
        char text[128];
        say(reason, "there is no RDMA device on this machine (%s)",
            error != 0 ? strerror_r(error, text, sizeof text) : "none in the list");
        return KVB_ERR_UNSUPPORTED;
    }
    char names[128] = "";
    kvb_status_t status = KVB_ERR_INVALID;
    bool tried = false;
    for (int i = 0; i < n && (!tried || (status != KVB_OK && !named)); i++) {
        const char *name = list[i]->device->name;
        size_t at = strlen(names);
        (void)snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "", name);
        if (named && strcmp(name, given.device) != 0) {
            continue;
        }
        tried = true;
        device->config = given;
        device->info = (struct kvt_rdma_info){0};
        status = open_context(device, list[i], reason);
    }
    if (!tried) {
        say(reason, "device %s: there is no such RDMA device here (there is: %s)", given.device,
            names);
    }
    device->verbs->rdma_free_devices(list);
    return status;
}

/* ---- life ---- */

/*
 * A kernel since 5.12 copies pinned pages at fork, so that parent and child cannot come apart;
 * there, nothing is to be done. For an older one the library keeps registered pages out of
 * children, which splits mappings at each registration: only where it must be.
 */
static void make_forks_safe(const struct kvt_rdma_device *device)
{
    if (device->verbs->ibv_is_fork_initialized() == IBV_FORK_DISABLED) {
        int error = device->verbs->ibv_fork_init();
        if (error != 0) {
            KVB_LOG(WARN, "rdma: a child process may disturb registered memory on this kernel",
                    KVB_ERRNO(error));
        }
    }
}

kvb_status_t kvt_rdma_device_open(const struct kvt_rdma_config *config, struct kvb_sched *sched,
                                  struct kvb_io *io, struct kvt_rdma_device **device_p,
                                  char reason[KVT_RDMA_REASON_MAX])
{
    struct kvt_rdma_device *device = calloc(1, sizeof *device);
    reason[0] = '\0';
    if (device == NULL) {
        say(reason, "out of memory");
        return KVB_ERR_NO_MEMORY;
    }
    device->verbs = config->verbs != NULL ? config->verbs : &kvt_verbs_real;
    device->config = *config;
    device->sched = sched;
    device->io = io;
    kvb_list_init(&device->shares);
    atomic_init(&device->dead, false);
    atomic_init(&device->port_up, true);
    make_forks_safe(device);
    kvb_status_t status = choose_device(device, reason);
    if (status != KVB_OK) {
        free(device);
        return status;
    }
    device->config.device = NULL; /* the caller's; info.device is ours */
    status = rwatch_open(&device->async, sched, io, device->context->async_fd, take_events);
    if (status != KVB_OK) {
        say(reason, "%s: its events cannot be watched", device->info.device);
        (void)device->verbs->ibv_dealloc_pd(device->pd);
        free(device);
        return status;
    }
    *device_p = device;
    return KVB_OK;
}

void kvt_rdma_device_close(struct kvt_rdma_device *device)
{
    if (device == NULL) {
        return;
    }
    kvb_assert(kvb_list_empty(&device->shares));
    rwatch_close(&device->async);
    int error = device->verbs->ibv_dealloc_pd(device->pd);
    if (error != 0) {
        KVB_LOG(WARN, "rdma: a protection domain is still in use",
                KVB_STR("device", device->info.device), KVB_ERRNO(error));
    }
    free(device);
}
