/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOME_LINK "kvhome"
#define FAR_LINK  "kvfar"
#define NET_MASK  "255.255.255.0"

/* ---- interfaces ---- */

static bool set_up(int fd, const char *name, bool up)
{
    struct ifreq request = {0};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) {
        return false;
    }
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    return ioctl(fd, SIOCSIFFLAGS, &request) == 0;
}

static bool set_address(int fd, const char *name, const char *address)
{
    const struct {
        unsigned long what;
        const char *text;
    } sets[] = {{SIOCSIFADDR, address}, {SIOCSIFNETMASK, NET_MASK}};

    for (size_t i = 0; i < 2; i++) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        struct ifreq request = {0};
        snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
        inet_pton(AF_INET, sets[i].text, &in.sin_addr);
        memcpy(&request.ifr_addr, &in, sizeof in);
        if (ioctl(fd, sets[i].what, &request) != 0) {
            return false;
        }
    }
    return true;
}

/* One rtnetlink message, grown attribute by attribute (rtnetlink(7)). */
struct message {
    union {
        struct nlmsghdr head;
        unsigned char bytes[512];
    };
};

static void add(struct message *message, unsigned short type, const void *data, size_t len)
{
    struct rtattr *attr =
        (struct rtattr *)(void *)(message->bytes + NLMSG_ALIGN(message->head.nlmsg_len));

    attr->rta_type = type;
    attr->rta_len = (unsigned short)RTA_LENGTH(len);
    if (len > 0) {
        memcpy(RTA_DATA(attr), data, len);
    }
    message->head.nlmsg_len =
        (uint32_t)(NLMSG_ALIGN(message->head.nlmsg_len) + RTA_ALIGN(attr->rta_len));
}

static struct rtattr *begin(struct message *message, unsigned short type)
{
    struct rtattr *attr =
        (struct rtattr *)(void *)(message->bytes + NLMSG_ALIGN(message->head.nlmsg_len));

    add(message, type, NULL, 0);
    return attr;
}

static void end(struct message *message, struct rtattr *attr)
{
    attr->rta_len =
        (unsigned short)(message->bytes + message->head.nlmsg_len - (unsigned char *)attr);
}

/* A pair: one end here, the other one in the namespace `far`. */
static bool make_pair(int far)
{
    struct message message = {
        .head = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg)),
                 .nlmsg_type = RTM_NEWLINK,
                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK}};
    struct rtattr *info, *data, *peer;
    struct nlmsgerr *error;
    unsigned char answer[1024];
    ssize_t n = -1;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0) {
        return false;
    }
    add(&message, IFLA_IFNAME, HOME_LINK, sizeof HOME_LINK);
    info = begin(&message, IFLA_LINKINFO);
    add(&message, IFLA_INFO_KIND, "veth", strlen("veth"));
    data = begin(&message, IFLA_INFO_DATA);
    peer = begin(&message, VETH_INFO_PEER);
    message.head.nlmsg_len += (uint32_t)NLMSG_ALIGN(sizeof(struct ifinfomsg)); /* all zeros */
    add(&message, IFLA_IFNAME, FAR_LINK, sizeof FAR_LINK);
    add(&message, IFLA_NET_NS_FD, &far, sizeof far);
    end(&message, peer);
    end(&message, data);
    end(&message, info);
    if (send(fd, &message, message.head.nlmsg_len, 0) == (ssize_t)message.head.nlmsg_len) {
        n = recv(fd, answer, sizeof answer, 0);
    }
    close(fd);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof *error)) {
        return false;
    }
    error = NLMSG_DATA((struct nlmsghdr *)(void *)answer);
    errno = -error->error;
    return error->error == 0;
}

/* ---- namespaces ---- */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0) {
        close(fd);
    }
    return done;
}

/* Who may not make a network namespace may make one within a user namespace, if the host lets
 * people do that. Ids stay what they are. */
static bool unshare_as_user(void)
{
    char uids[64], gids[64];

    snprintf(uids, sizeof uids, "%u %u 1", (unsigned)getuid(), (unsigned)getuid());
    snprintf(gids, sizeof gids, "%u %u 1", (unsigned)getgid(), (unsigned)getgid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && write_file("/proc/self/uid_map", uids) &&
           write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/gid_map", gids);
}

/* The namespace this process is in now, with its loopback up. */
static int enter_new(bool as_user)
{
    int socket_fd, ns = -1;

    if (unshare(CLONE_NEWNET) != 0 && (!as_user || errno != EPERM || !unshare_as_user())) {
        return -1;
    }
    socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd >= 0 && set_up(socket_fd, "lo", true)) {
        ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    }
    if (socket_fd >= 0) {
        close(socket_fd);
    }
    return ns;
}

/* In the home namespace, with the far one there. */
static bool link_them(struct kve_net *net)
{
    int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool done = socket_fd >= 0 && make_pair(net->far) &&
                set_address(socket_fd, HOME_LINK, KVE_NET_HOME_ADDRESS) &&
                set_up(socket_fd, HOME_LINK, true) &&
                set_address(net->far_socket, FAR_LINK, KVE_NET_FAR_ADDRESS) &&
                set_up(net->far_socket, FAR_LINK, true);

    if (socket_fd >= 0) {
        close(socket_fd);
    }
    return done;
}

kvb_status_t kve_net_create(struct kve_net *net, char *why, size_t cap)
{
    const char *what = "a network namespace (needs CAP_NET_ADMIN, or user namespaces)";
    kvb_status_t status;

    *net = (struct kve_net){.home = -1, .far = -1, .far_socket = -1};
    net->home = enter_new(true);
    if (net->home < 0) {
        goto err;
    }
    net->far = enter_new(false);
    if (net->far < 0) {
        goto err;
    }
    net->far_socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (setns(net->home, CLONE_NEWNET) != 0 || net->far_socket < 0) {
        goto err;
    }
    what = "a pair of veth interfaces";
    if (!link_them(net)) {
        goto err;
    }
    net->made = true;
    return KVB_OK;

err:
    status = errno == EPERM ? KVB_ERR_REFUSED : KVB_ERR_IO;
    snprintf(why, cap, "cannot make %s: %s", what, strerror(errno));
    if (net->home >= 0 && setns(net->home, CLONE_NEWNET) != 0) {
        snprintf(why, cap, "cannot go back to the network namespace: %s", strerror(errno));
    }
    kve_net_destroy(net);
    return status;
}

void kve_net_destroy(struct kve_net *net)
{
    const int fds[] = {net->home, net->far, net->far_socket};

    for (size_t i = 0; i < 3; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    *net = (struct kve_net){.home = -1, .far = -1, .far_socket = -1};
}

kvb_status_t kve_net_cut(const struct kve_net *net, bool cut)
{
    return net->made && set_up(net->far_socket, FAR_LINK, !cut) ? KVB_OK : KVB_ERR_IO;
}
