/* SPDX-License-Identifier: Apache-2.0 */
#include "http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

int http_connect(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return fd;
}

bool http_send(int fd, const void *data, size_t len)
{
    const char *at = data;

    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

bool http_send_text(int fd, const char *text)
{
    return http_send(fd, text, strlen(text));
}

/* One byte or more; 0: closed or nothing came in time. */
static size_t receive_some(int fd, char *out, size_t cap)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, HTTP_WAIT_MS) != 1) {
        return 0;
    }
    ssize_t n = recv(fd, out, cap, 0);
    return n > 0 ? (size_t)n : 0;
}

struct http_answer http_receive(int fd, bool no_body)
{
    struct http_answer answer = {0};
    size_t n = 0;

    while (n + 1 < sizeof answer.head) { /* byte by byte: what follows belongs to the next one */
        if (receive_some(fd, answer.head + n, 1) == 0) {
            return answer;
        }
        n++;
        if (n >= 4 && memcmp(answer.head + n - 4, "\r\n\r\n", 4) == 0) {
            break;
        }
    }
    const char *length = http_header(&answer, "Content-Length");
    size_t want = length != NULL && !no_body ? strtoul(length, NULL, 10) : 0;
    answer.body = calloc(1, want + 1);
    while (answer.len < want) {
        size_t got = receive_some(fd, answer.body + answer.len, want - answer.len);
        if (got == 0) {
            return answer; /* cut short: status stays 0 */
        }
        answer.len += got;
    }
    sscanf(answer.head, "HTTP/1.%*d %d", &answer.status);
    return answer;
}

void http_answer_free(struct http_answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

const char *http_header(const struct http_answer *answer, const char *name)
{
    static _Thread_local char value[1024];
    size_t len = strlen(name);

    for (const char *line = answer->head; line != NULL; line = strstr(line, "\r\n")) {
        line += line[0] == '\r' ? 2 : 0;
        if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
            line += len + 1;
            line += strspn(line, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line, "\r"), line);
            return value;
        }
    }
    return NULL;
}

bool http_closed(int fd)
{
    char byte;
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, HTTP_WAIT_MS) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

struct http_answer http_ask(uint16_t port, const char *method, const char *target,
                            const char *headers, const char *body)
{
    struct http_answer answer = {0};
    int fd = http_connect(port);
    char *text = NULL;

    if (fd < 0) {
        return answer;
    }
    int len = body != NULL
                  ? asprintf(&text, "%s %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s",
                             method, target, headers != NULL ? headers : "", strlen(body), body)
                  : asprintf(&text, "%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n", method, target,
                             headers != NULL ? headers : "");
    if (len >= 0) {
        http_send(fd, text, (size_t)len);
        answer = http_receive(fd, strcmp(method, "HEAD") == 0);
        free(text);
    }
    close(fd);
    return answer;
}
