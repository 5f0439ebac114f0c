/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvplane top`: what there is and what runs, drawn anew each second on the terminal's other
 * screen. However it ends, the terminal is as it was: by q or a signal through the loop; by an
 * assertion or a fault in the handler of that signal, which only writes and sets the terminal.
 */
#include "cli_frame.h"
#include "cli_run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define ENTER "\x1b[?1049h\x1b[?25l"
#define LEAVE "\x1b[?25h\x1b[?1049l"
enum { ANSWER_MS = 5000 };

static volatile sig_atomic_t ended_by; /* a signal; 0: none yet */
static volatile sig_atomic_t stopped;
static volatile sig_atomic_t entered;
static bool has_keys; /* stdin is a terminal, whose settings these were: */
static struct termios before;
static bool quit;

/* ---- the terminal ---- */

static void write_all(const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(STDOUT_FILENO, text, len);
        if (n < 0 && errno != EINTR) {
            quit = true; /* it is gone */
            return;
        }
        text += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
}

static void enter(void)
{
    struct termios keys = before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* Ctrl-C and Ctrl-Z stay signals */
    entered = 1;
    if (has_keys) {
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
    }
    write_all(ENTER, sizeof ENTER - 1);
}

/* Also in handlers. */
static void leave(void)
{
    if (entered != 0) {
        entered = 0;
        ssize_t n = write(STDOUT_FILENO, LEAVE, sizeof LEAVE - 1);
        (void)n; /* nothing can be done */
        if (has_keys) {
            (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
        }
    }
}

static void on_end(int signum)
{
    ended_by = signum;
}

static void on_stop(int signum)
{
    (void)signum;
    stopped = 1;
}

static void on_change(int signum)
{
    (void)signum; /* it ends the wait */
}

static void on_fault(int signum)
{
    leave();
    (void)raise(signum); /* as ever: SA_RESETHAND */
}

static void handle_signals(void)
{
    static const struct {
        int signum;
        void (*handler)(int signum);
        int flags;
    } handlers[] = {
        {SIGINT, on_end, 0},
        {SIGTERM, on_end, 0},
        {SIGHUP, on_end, 0},
        {SIGQUIT, on_end, 0},
        {SIGTSTP, on_stop, 0},
        {SIGWINCH, on_change, 0},
        {SIGCONT, on_change, 0},
        {SIGPIPE, SIG_IGN, 0},
        {SIGABRT, on_fault, SA_RESETHAND},
        {SIGSEGV, on_fault, SA_RESETHAND},
        {SIGBUS, on_fault, SA_RESETHAND},
        {SIGFPE, on_fault, SA_RESETHAND},
        {SIGILL, on_fault, SA_RESETHAND},
    };
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        struct sigaction action = {.sa_handler = handlers[i].handler,
                                   .sa_flags = handlers[i].flags};
        (void)sigaction(handlers[i].signum, &action, NULL);
    }
}

static void read_keys(void)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    quit = quit || n == 0 || (n > 0 && memchr(keys, 'q', (size_t)n) != NULL) ||
           (n < 0 && errno != EINTR && errno != EAGAIN);
}

/* Also while a call is under way. */
static bool is_over(void)
{
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    if (has_keys && poll(&keys, 1, 0) > 0) {
        read_keys();
    }
    return quit || ended_by != 0 || stopped != 0;
}

/* ---- what is drawn ---- */

static json_t *collect(struct kvp_cli *cli, int *rc_p)
{
    json_t *all = kvp_call_collect(&cli->call, rc_p);
    json_t *operations =
        all == NULL ? NULL
                    : kvp_call_fetch_all(&cli->call, "/v1/kvplane/operations", "operations", rc_p);
    if (operations == NULL) {
        json_decref(all);
        return NULL;
    }
    (void)json_object_set(all, "operations", json_object_get(operations, "operations"));
    json_decref(operations);
    long code = 0;
    *rc_p = kvp_call_send(&cli->call, false, "/metrics", &code);
    if (*rc_p == KVP_CLI_DONE && code == 200 && cli->call.answer != NULL) {
        (void)json_object_set_new(all, "queues", kvp_frame_queues(cli->call.answer));
    } else if (*rc_p != KVP_CLI_DONE) {
        json_decref(all);
        return NULL;
    }
    return all;
}

/* all: NULL: none was answered yet. */
static void draw(const struct kvp_cli *cli, struct kvp_frame *frame, const json_t *all, bool away)
{
    struct winsize size = {0};
    char *text = NULL;
    char *screen = NULL;
    size_t len = 0;
    char now[32] = "";
    time_t seconds = time(NULL);
    struct tm tm;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    }
    FILE *out = open_memstream(&text, &len);
    if (out == NULL) {
        return;
    }
    if (localtime_r(&seconds, &tm) != NULL) {
        (void)strftime(now, sizeof now, "%T", &tm);
    }
    (void)fprintf(out, "kvplane top  %s  %s  q quits\n", kvp_call_where(&cli->call), now);
    if (away) {
        (void)fprintf(out, "%sNOT ANSWERED: %s%s\n", frame->bold ? "\x1b[1;31m" : "",
                      cli->call.trouble, frame->bold ? "\x1b[0m" : "");
    }
    kvp_frame_write(frame, all, size.ws_col, out);
    (void)fclose(out);
    out = open_memstream(&screen, &len);
    if (out != NULL) {
        (void)fprintf(out, "\x1b[H");
        (void)kvp_frame_clip(text, size.ws_row, size.ws_col, out);
        (void)fprintf(out, "\x1b[J");
        (void)fclose(out);
        write_all(screen, len);
    }
    free(screen);
    free(text);
}

/* Until it is time, a key was read, or a signal came. */
static void wait_for(double seconds)
{
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    sigset_t blocked;
    sigset_t open;
    (void)sigfillset(&blocked);
    (void)sigprocmask(SIG_BLOCK, &blocked, &open); /* between the look and the wait none is lost */
    if (ended_by == 0 && stopped == 0 && !quit &&
        ppoll(&keys, has_keys ? 1 : 0, &time, &open) > 0) {
        read_keys();
    }
    (void)sigprocmask(SIG_SETMASK, &open, NULL);
}

static int live(struct kvp_cli *cli, double interval_s, json_t *all)
{
    struct kvp_frame frame = {.bold = getenv("NO_COLOR") == NULL};
    int rc = KVP_CLI_DONE;
    has_keys = tcgetattr(STDIN_FILENO, &before) == 0;
    cli->call.watched = has_keys ? STDIN_FILENO : -1;
    handle_signals();
    enter();
    while (!quit && ended_by == 0) {
        draw(cli, &frame, all, rc != KVP_CLI_DONE);
        wait_for(interval_s);
        if (stopped != 0) {
            leave();
            (void)raise(SIGSTOP); /* until it is continued */
            stopped = 0;
            enter();
        }
        json_t *next = quit || ended_by != 0 ? NULL : collect(cli, &rc);
        if (next != NULL) {
            json_decref(all);
            all = next;
        }
    }
    json_decref(all);
    leave();
    if (ended_by != 0) {
        (void)signal((int)ended_by, SIG_DFL);
        (void)raise((int)ended_by);
    }
    return KVP_CLI_DONE;
}

int kvp_cli_top(struct kvp_cli *cli)
{
    char *end = NULL;
    double interval_s = cli->interval != NULL ? strtod(cli->interval, &end) : 1;
    int rc;
    if (cli->interval != NULL &&
        (end == cli->interval || *end != '\0' || !(interval_s >= 0.1 && interval_s <= 3600))) {
        return kvp_cli_bad_usage(cli, "--interval", "must be seconds, 0.1 to 3600");
    }
    bool is_live = kvp_cli_on_terminal(cli);
    (void)curl_easy_setopt(cli->call.curl, CURLOPT_TIMEOUT_MS, (long)ANSWER_MS);
    json_t *all = collect(cli, &rc);
    if (all == NULL) {
        return rc;
    }
    if (is_live) {
        cli->call.quiet = true;
        cli->call.ends = is_over;
        return live(cli, interval_s, all);
    }
    if (cli->json) {
        (void)json_dumpf(all, stdout, JSON_COMPACT);
        (void)printf("\n");
    } else {
        struct kvp_frame frame = {0};
        kvp_frame_write(&frame, all, KVP_PROGRESS_MAX, stdout);
    }
    json_decref(all);
    return KVP_CLI_DONE;
}
