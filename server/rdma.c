/* SPDX-License-Identifier: Apache-2.0 */
#include "rdma.h"

#include "metrics.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

/* ---- the device ---- */

static uint32_t number(const char *text) /* checked at start; "auto": 0 */
{
    uint64_t value = 0;
    (void)kvp_parse_count(text, &value);
    return (uint32_t)value;
}

/* Nothing of it is needed; under `rdma` everything is. */
static kvb_status_t do_without(const struct kvp_rdma *rdma, const char *what, kvb_status_t status,
                               const char *reason)
{
    if (rdma->only) {
        KVB_LOG(ERROR, what, KVB_STR("reason", reason), KVB_STATUS(status));
        return status;
    }
    if (status == KVB_ERR_UNSUPPORTED) { /* as most machines are */
        KVB_LOG(INFO, what, KVB_STR("reason", reason), KVB_STR("transport", "tcp"));
    } else {
        KVB_LOG(WARN, what, KVB_STR("reason", reason), KVB_STATUS(status),
                KVB_STR("transport", "tcp"));
    }
    return KVB_OK;
}

static void tell_device(const struct kvp_rdma *rdma)
{
    struct kvt_rdma_info info;
    kvt_rdma_device_info(rdma->device, &info);
    KVB_LOG(INFO, "rdma is used", KVB_STR("device", info.device), KVB_U64("port", info.port),
            KVB_STR("link", info.link), KVB_STR("address", info.address),
            KVB_U64("gid_index", info.gid_index), KVB_U64("mtu", info.mtu),
            KVB_U64("depth", info.depth), KVB_U64("sge", info.sge),
            KVB_U64("inline_bytes", info.inline_bytes), KVB_U64("rd_atomic", info.rd_atomic),
            KVB_STR("else", rdma->only ? "nothing" : "tcp"));
}

kvb_status_t kvp_rdma_open(const struct kvp_cluster_config *config, struct kvb_sched *sched,
                           struct kvb_io *io, struct kvp_rdma *rdma_p)
{
    struct kvp_rdma rdma = {.only = strcmp(config->transport, "rdma") == 0};
    char reason[KVT_RDMA_REASON_MAX];
    if (rdma.only || strcmp(config->transport, "auto") == 0) {
        const struct kvt_rdma_config wanted = {
            .device = config->rdma_device,
            .port = (uint32_t)config->rdma_port,
            .gid_set = strcmp(config->rdma_gid_index, "auto") != 0,
            .gid_index = number(config->rdma_gid_index),
            .mtu = number(config->rdma_mtu),
            .depth = (uint32_t)config->rdma_depth,
            .sge = (uint32_t)config->rdma_sge,
            .inline_bytes = (uint32_t)config->rdma_inline,
            .window = (uint32_t)config->rdma_window,
            .rd_atomic = (uint32_t)config->rdma_reads,
            .ack_timeout_ms = (uint32_t)config->rdma_timeout,
            .retries = (uint32_t)config->rdma_retries,
            .rnr_retries = (uint32_t)config->rdma_rnr_retries,
        };
        rdma.config = wanted;
        kvb_status_t status = kvt_rdma_device_open(&wanted, sched, io, &rdma.device, reason);
        if (status == KVB_OK) {
            tell_device(&rdma);
        } else {
            status = do_without(&rdma, "there is no rdma here", status, reason);
        }
        if (status != KVB_OK) {
            return status;
        }
    }
    *rdma_p = rdma;
    return KVB_OK;
}

void kvp_rdma_close(struct kvp_rdma *rdma)
{
    kvt_rdma_share_unregister(rdma->share);
    kvt_rdma_device_close(rdma->device);
    *rdma = (struct kvp_rdma){.device = NULL};
}

/* ---- the own share ---- */

static void join_address(const char *host, unsigned port, char out[KVP_RDMA_ADDRESS_MAX])
{
    bool bare = strchr(host, ':') == NULL;
    (void)snprintf(out, KVP_RDMA_ADDRESS_MAX, bare ? "%s:%u" : "[%s]:%u", host, port);
}

/* Where to listen, and what others are told of it. */
static kvb_status_t choose_address(struct kvp_rdma *rdma, const struct kvp_cluster_config *config,
                                   char reason[KVT_RDMA_REASON_MAX])
{
    struct kvt_rdma_info info;
    char host[KVB_LAYOUT_MAX] = "";
    uint16_t port = 0;
    kvt_rdma_device_info(rdma->device, &info);
    if (config->rdma_listen[0] != '\0') {
        kvb_status_t status = kvp_split_address(config->rdma_listen, host, sizeof host, &port);
        kvb_assert(status == KVB_OK && strlen(host) < KVP_RDMA_ADDRESS_MAX - 8); /* checked */
    } else {
        (void)snprintf(host, sizeof host, "%s", info.address);
    }
    const char *reached = kvp_wildcard_host(host) ? info.address : host;
    if (reached[0] == '\0') {
        (void)snprintf(reason, KVT_RDMA_REASON_MAX,
                       "the device does not say by which address others reach it: give "
                       "--rdma-listen HOST:PORT, HOST the address of its network interface");
        return KVB_ERR_INVALID;
    }
    join_address(host, port, rdma->listen);
    (void)snprintf(rdma->host, sizeof rdma->host, "%.*s", KVP_RDMA_ADDRESS_MAX - 1, reached);
    return KVB_OK;
}

kvb_status_t kvp_rdma_serve(struct kvp_rdma *rdma, const struct kvp_cluster_config *config,
                            const struct kvs_share *share)
{
    char reason[KVT_RDMA_REASON_MAX];
    void *base;
    if (rdma->device == NULL) {
        return KVB_OK;
    }
    kvb_status_t status = KVB_ERR_REFUSED;
    if (config->secret_file[0] == '\0' && !config->insecure) {
        (void)snprintf(reason, sizeof reason,
                       "others than this host reach it by rdma: give --secret-file, or --insecure "
                       "if they may all read and write this share");
    } else {
        status = choose_address(rdma, config, reason);
    }
    if (status == KVB_OK) {
        kvs_share_memory(share, &base, &rdma->share_bytes);
        status =
            kvt_rdma_share_register(rdma->device, base, rdma->share_bytes, &rdma->share, reason);
    }
    if (status != KVB_OK) {
        return do_without(rdma, "the share cannot be served by rdma", status, reason);
    }
    KVB_LOG(INFO, "the share is registered for rdma", KVB_U64("pinned_bytes", rdma->share_bytes));
    return KVB_OK;
}

void kvp_rdma_address(const struct kvp_rdma *rdma, uint16_t port, char out[KVP_RDMA_ADDRESS_MAX])
{
    out[0] = '\0';
    if (port != 0) {
        join_address(rdma->host, port, out);
    }
}

/* ---- figures ---- */

void kvp_rdma_collect(const struct kvp_rdma *rdma, struct kvb_metrics *metrics)
{
    if (rdma->device == NULL) {
        return;
    }
    kvb_series_set(kvb_series0(metrics, KVP_M_RDMA_UP),
                   !kvt_rdma_device_dead(rdma->device) && kvt_rdma_device_port_up(rdma->device));
    kvb_series_set(kvb_series0(metrics, KVP_M_RDMA_SHARE),
                   rdma->share != NULL ? (double)rdma->share_bytes : 0);
    for (enum kvt_rdma_cause cause = 0; cause < KVT_RDMA_CAUSES_N; cause++) {
        const char *values[] = {kvt_rdma_cause_label(cause)};
        kvb_series_set(kvb_series(metrics, KVP_M_RDMA_EVENTS, values),
                       (double)kvt_rdma_device_count(rdma->device, cause));
    }
}
