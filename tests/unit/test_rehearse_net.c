/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define ARRIVES_MS 20000 /* only a broken network needs it */
#define NEVER_MS   300

static struct sockaddr_in address_of(const char *host)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7000)};

    cr_assert_eq(inet_pton(AF_INET, host, &address.sin_addr), 1);
    return address;
}

static int far_listener(const struct kve_net *net)
{
    struct sockaddr_in address = address_of(KVE_NET_FAR_ADDRESS);
    int fd;

    cr_assert_eq(setns(net->far, CLONE_NEWNET), 0);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(setns(net->home, CLONE_NEWNET), 0);
    cr_assert_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, 1), 0);
    return fd;
}

static bool readable(int fd, int ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    return poll(&poll_fd, 1, ms) == 1;
}

/* One byte, from end to end. */
static bool arrives(int from, int to, int ms)
{
    char byte = 0;

    cr_assert_eq(send(from, "x", 1, MSG_NOSIGNAL), 1);
    return readable(to, ms) && recv(to, &byte, 1, 0) == 1 && byte == 'x';
}

Test(rehearse_net, a_cut_link_loses_what_is_sent_tells_nobody_and_a_mended_one_delivers_it)
{
    struct sockaddr_in address = address_of(KVE_NET_FAR_ADDRESS);
    struct kve_net net;
    char why[256] = "";
    char byte = 0;
    int listener, near, far;

    if (kve_net_create(&net, why, sizeof why) != KVB_OK) {
        cr_assert_not(net.made);
        printf("SKIP: store-cut: %s\n", why);
        cr_skip_test("no network of its own");
    }
    listener = far_listener(&net);
    near = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(near, (const struct sockaddr *)&address, sizeof address), 0);
    far = accept(listener, NULL, NULL);
    cr_assert(arrives(near, far, ARRIVES_MS));
    cr_assert(arrives(far, near, ARRIVES_MS));

    cr_assert_eq(kve_net_cut(&net, true), KVB_OK);
    cr_assert_not(arrives(near, far, NEVER_MS));
    cr_assert_not(readable(near, 0), "the near side is not told");

    cr_assert_eq(kve_net_cut(&net, false), KVB_OK);
    cr_assert(readable(far, ARRIVES_MS));
    cr_assert_eq(recv(far, &byte, 1, 0), 1);
    cr_assert(arrives(far, near, ARRIVES_MS));
    close(near);
    close(far);
    close(listener);
    kve_net_destroy(&net);
}

Test(rehearse_net, this_process_reaches_itself_and_nobody_else)
{
    struct sockaddr_in outside = address_of("192.0.2.1"); /* RFC 5737: nobody's */
    struct sockaddr_in here = address_of("127.0.0.1");
    struct kve_net net;
    char why[256] = "";
    int fd;

    if (kve_net_create(&net, why, sizeof why) != KVB_OK) {
        printf("SKIP: store-cut: %s\n", why);
        cr_skip_test("no network of its own");
    }
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    cr_assert_neq(connect(fd, (const struct sockaddr *)&outside, sizeof outside), 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&here, sizeof here), 0);
    close(fd);
    kve_net_destroy(&net);
}
