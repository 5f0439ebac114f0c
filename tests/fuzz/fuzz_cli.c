/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client command and what it is answered. The first line: its arguments, separated by blanks;
 * `ttyCxR` before them: on a terminal of so many columns and rows, where verbs are watched and top
 * is drawn. Each further line: the HTTP status, a blank, the answer (of a stream, a tab is the end
 * of a line); `^` alone: Ctrl-C; `*` before the last one of
 * a list: it comes again and again; after the last one there is no daemon any more. However it
 * lies, what people are shown moves no cursor but by what the commands themselves write, a screen
 * has the size that there is, and every command ends.
 */
#include <curl/curl.h>

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

struct kvp_call;
struct follower;
static CURLcode fuzz_perform(struct kvp_call *call);
static CURLcode fuzz_stream(struct follower *follower);
static CURLcode fuzz_code(long *code_p);
static CURLMcode fuzz_multi(struct kvp_call *call, int *running_p);
static CURLMsg *fuzz_message(void);
static bool fuzz_terminal(void);
static int fuzz_size(struct winsize *size_p);
static ssize_t fuzz_draw(const char *text, size_t len);
static int fuzz_wait(void);
static ssize_t fuzz_keys(char *keys);

#undef curl_easy_perform
#undef curl_easy_getinfo
#define curl_easy_perform(curl)               fuzz_perform(call)
#define curl_easy_getinfo(curl, what, code)   fuzz_code(code)
#define curl_multi_add_handle(multi, curl)    CURLM_OK
#define curl_multi_remove_handle(multi, curl) CURLM_OK
#define curl_multi_perform(multi, running)    fuzz_multi(call, running)
#define curl_multi_info_read(multi, left)     fuzz_message()
#define curl_multi_poll(multi, fds, n, ms, p) ((void)(fds), CURLM_OK)
#define isatty(fd)                            fuzz_terminal()
#define ioctl(fd, what, size)                 fuzz_size(size)
#define tcgetattr(fd, at)                     ((void)(at), 0)
#define tcsetattr(fd, how, at)                ((void)(at), 0)
#define write(fd, text, len)                  fuzz_draw(text, len)
#define read(fd, keys, len)                   fuzz_keys(keys)
#define poll(fds, n, ms)                      ((void)(fds), 0)
#define ppoll(fds, n, time, mask)             ((void)(fds), (void)(time), fuzz_wait())
#define sigprocmask(how, set, old)            ((void)(set), (void)(old), 0)
#define sigaction(signum, action, old)        ((void)(action), 0)
#define signal(signum, handler)               ((void)(signum))
#define raise(signum)                         ((void)(signum), 0)
#define sleep(seconds)                        ((void)(seconds), 0u)
/* Instead of the library's. */
#include "cli_call.c"
#include "cli_top.c"
#include "cli_watch.c"
#undef curl_easy_perform
#define curl_easy_perform(curl) fuzz_stream(follower)
#include "cli_events.c"
#undef write
#undef read
#undef signal
#include "fuzz.h"

enum { ARGS_MAX = 16, ANSWERS_MAX = 64, ENDLESS = 50000 };

static struct {
    struct fuzz_lines answers;
    long code;
    uint32_t n;
    struct winsize terminal; /* no columns: there is none */
    CURLMsg message;
    bool message_read;
    bool list; /* a command that reads whole lists, and nothing that takes its time */
} daemon_;

/* ---- the daemon ---- */

/* The next line; NULL: there is none, or enough. */
static char *next_line(void)
{
    struct fuzz_lines again = daemon_.answers;
    daemon_.n++;
    if (daemon_.list && again.left > 1 && again.at[0] == '*') {
        kvb_assert(daemon_.n < ENDLESS); /* every command ends */
        again.at++;
        again.left--;
        return fuzz_line(&again);
    }
    return daemon_.n <= ANSWERS_MAX ? fuzz_line(&daemon_.answers) : NULL;
}

/* The next answer, to be freed; NULL: there is no daemon any more. */
static char *next_answer(const char **answer_p)
{
    char *line = next_line();
    if (line != NULL && strcmp(line, "^") == 0) {
        free(line);
        interrupted = 1;
        ended_by = SIGINT;
        line = next_line();
    }
    if (line != NULL) {
        char *answer = line;
        daemon_.code = strtol(line, &answer, 10);
        *answer_p = answer + (*answer == ' ');
    }
    return line;
}

static CURLcode fuzz_perform(struct kvp_call *call)
{
    const char *answer = NULL;
    char *line = next_answer(&answer);
    if (line == NULL) {
        return CURLE_COULDNT_CONNECT;
    }
    size_t len = strlen(answer), half = len / 2;
    char *text = (char *)(uintptr_t)answer;
    bool took = take_answer(text, 1, half, call) == half &&
                take_answer(text + half, 1, len - half, call) == len - half;
    free(line);
    return took ? CURLE_OK : CURLE_WRITE_ERROR;
}

static CURLcode fuzz_stream(struct follower *follower)
{
    const char *answer = NULL;
    char *line = next_answer(&answer);
    if (line == NULL) {
        daemon_.code = 404; /* else it would be asked for ever */
        return CURLE_COULDNT_CONNECT;
    }
    char *text = (char *)(uintptr_t)answer;
    size_t len = strlen(text), half = len / 2;
    for (char *at = text; (at = strchr(at, '\t')) != NULL; at++) {
        *at = '\n';
    }
    kvb_assert(on_bytes(text, 1, half, follower) == half);
    kvb_assert(on_bytes(text + half, 1, len - half, follower) == len - half);
    free(line);
    return CURLE_OK;
}

static CURLcode fuzz_code(long *code_p)
{
    *code_p = daemon_.code;
    return CURLE_OK;
}

static CURLMcode fuzz_multi(struct kvp_call *call, int *running_p)
{
    daemon_.message = (CURLMsg){.msg = CURLMSG_DONE};
    daemon_.message.data.result = fuzz_perform(call);
    daemon_.message_read = false;
    *running_p = 0;
    return CURLM_OK;
}

static CURLMsg *fuzz_message(void)
{
    bool read_before = daemon_.message_read;
    daemon_.message_read = true;
    return read_before ? NULL : &daemon_.message;
}

/* ---- the terminal ---- */

static bool fuzz_terminal(void)
{
    return daemon_.terminal.ws_col > 0;
}

static int fuzz_size(struct winsize *size_p)
{
    *size_p = daemon_.terminal;
    return fuzz_terminal() ? 0 : -1;
}

/* What top draws fits the screen. */
static void judge_screen(const char *text, size_t len)
{
    size_t rows = 1, column = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\x1b') {
            while (i + 1 < len && strchr("HJKmhl", text[i]) == NULL) {
                i++;
            }
        } else if (text[i] == '\n') {
            rows++;
            column = 0;
        } else if (text[i] != '\r') {
            column += ((unsigned char)text[i] & 0xc0) != 0x80;
        }
        kvb_assert(rows <= daemon_.terminal.ws_row && column <= daemon_.terminal.ws_col);
    }
}

static ssize_t fuzz_draw(const char *text, size_t len)
{
    if (len > 3 && strncmp(text, "\x1b[H", 3) == 0) {
        judge_screen(text, len);
    }
    return (ssize_t)fwrite(text, 1, len, stdout);
}

/* Nobody types. */
static ssize_t fuzz_keys(char *keys)
{
    keys[0] = '\0';
    errno = EAGAIN;
    return -1;
}

/* Until the next look; whoever has seen all leaves. */
static int fuzz_wait(void)
{
    quit = daemon_.answers.left == 0 || daemon_.n >= ANSWERS_MAX;
    return 0;
}

/* Takes out what the commands themselves write to a terminal. */
static size_t without_own(char *text, size_t len)
{
    static const char *const own[] = {"\r\x1b[K", "\x1b[K\r\n", "\x1b[K",  "\x1b[H", "\x1b[J",
                                      "\x1b[1m",  "\x1b[1;31m", "\x1b[0m", ENTER,    LEAVE};
    size_t out = 0;
    for (size_t i = 0; i < len;) {
        size_t skip = 0;
        for (size_t k = 0; k < sizeof own / sizeof own[0] && skip == 0; k++) {
            skip = strncmp(text + i, own[k], strlen(own[k])) == 0 ? strlen(own[k]) : 0;
        }
        if (skip == 0) {
            text[out++] = text[i++];
        }
        i += skip;
    }
    text[out] = '\0';
    return out;
}

/* ---- the command ---- */

static bool is_command(const char *name)
{
    static const char *const names[] = {"status",  "ops",   "events", "regions", "queues",
                                        "objects", "top",   "pause",  "resume",  "sleep",
                                        "wake",    "reset", "release"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static int run(int argc, char **argv, bool *raw_p)
{
    int rc = 0;
    for (int i = 1; i < argc; i++) {
        *raw_p = *raw_p || strncmp(argv[i], "--json", 6) == 0;
    }
    rc = kvp_cli_main(argc, argv);
    kvb_assert(rc >= KVP_CLI_DONE && rc <= KVP_CLI_UNFINISHED);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[ARGS_MAX + 1] = {0}, *shown = NULL, *told = NULL, *rest = NULL;
    size_t shown_len, told_len;
    FILE *out = stdout, *err = stderr;
    int argc = 0;
    bool raw = false;

    (void)unsetenv("TERM");
    (void)setenv("TZ", "UTC", 1);
    memset(&daemon_, 0, sizeof daemon_);
    interrupted = ended_by = stopped = entered = 0;
    quit = false;
    daemon_.answers = (struct fuzz_lines){(const char *)data, size};
    char *line = fuzz_line(&daemon_.answers);
    if (line == NULL) {
        return 0;
    }
    for (char *arg = strtok_r(line, " ", &rest); arg != NULL && argc < ARGS_MAX;
         arg = strtok_r(NULL, " ", &rest)) {
        if (argc == 0 && strncmp(arg, "tty", 3) == 0) {
            daemon_.terminal.ws_col = (unsigned short)strtoul(arg + 3, &arg, 10);
            daemon_.terminal.ws_row = (unsigned short)strtoul(arg + (*arg == 'x'), NULL, 10);
            daemon_.terminal.ws_row = daemon_.terminal.ws_row > 0 ? daemon_.terminal.ws_row : 1;
            continue;
        }
        argv[argc++] = arg;
    }
    daemon_.list = argc > 0 && strcmp(argv[0], "status") == 0;
    if (argc > 0 && is_command(argv[0])) {
        stdout = open_memstream(&shown, &shown_len);
        stderr = open_memstream(&told, &told_len);
        int rc = run(argc, argv, &raw);
        (void)fclose(stdout);
        (void)fclose(stderr);
        stdout = out;
        stderr = err;
        kvb_assert(raw || rc == KVP_CLI_DONE || shown_len + told_len > 0 ||
                   rc == KVP_CLI_UNFINISHED);
        if (!raw) {
            shown_len = without_own(shown, shown_len);
            fuzz_shown(shown, shown_len);
        }
        fuzz_shown(told, told_len);
        free(shown);
        free(told);
    }
    free(line);
    return 0;
}
