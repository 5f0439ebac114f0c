/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs. On a terminal one is begun (`Prefer: respond-async`) and its operation watched to its
 * end, so that there is something to see and it has an id; Ctrl-C ends the watching, not the
 * operation. Elsewhere it is one call, whose answer is printed.
 */
#include "cli.h"
#include "cli_grid.h"
#include "cli_progress.h"
#include "cli_run.h"

#include "base/utf8.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define ERASE  "\r\x1b[K"
#define POLL_S 0.25

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signum)
{
    (void)signum;
    interrupted = 1;
}

/* on: Ctrl-C is noted; off: it ends the program, as ever. */
static void catch_interrupts(bool on)
{
    struct sigaction action = {.sa_handler = on ? on_interrupt : SIG_DFL};
    (void)sigaction(SIGINT, &action, NULL);
}

bool kvp_cli_on_terminal(const struct kvp_cli *cli)
{
    const char *term = getenv("TERM");
    return !cli->json && isatty(STDOUT_FILENO) && (term == NULL || strcmp(term, "dumb") != 0);
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static size_t columns(void)
{
    struct winsize size = {0};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
}

/* Says that it goes on, and ends as Ctrl-C ends programs. */
static int leave_running(const struct kvp_cli *cli, const char *id)
{
    const char *url = getenv("KVPLANE_URL");
    bool told = strcmp(kvp_call_where(&cli->call), url != NULL ? url : KVP_CLI_URL) == 0;
    const char *option = cli->call.socket != NULL ? " --unix-socket " : " --url ";
    (void)fprintf(stderr,
                  "kvplane: operation %s goes on: kvplane ops %s --wait 60%s%s waits for its end, "
                  "--cancel instead cancels it\n",
                  id, id, told ? "" : option, told ? "" : kvp_call_where(&cli->call));
    catch_interrupts(false);
    (void)raise(SIGINT);
    return KVP_CLI_UNFINISHED;
}

json_t *kvp_cli_watch(struct kvp_cli *cli, const char *id, double seconds, int *rc_p)
{
    struct kvp_progress progress = {0};
    char line[KVP_PROGRESS_MAX];
    char path[128];
    double end_s = now_s() + seconds;
    double left_s = 0;
    json_t *operation = NULL;
    bool running = true;

    catch_interrupts(true);
    while (running && interrupted == 0 && (operation == NULL || left_s > 0)) {
        left_s = end_s - now_s();
        json_decref(operation);
        (void)snprintf(path, sizeof path, "/v1/kvplane/operations/%s?timeout=%.3f", id,
                       operation == NULL ? 0
                       : left_s > POLL_S ? POLL_S
                       : left_s > 0      ? left_s
                                         : 0);
        operation = kvp_call_fetch(&cli->call, path, rc_p);
        const char *status = json_string_value(json_object_get(operation, "status"));
        running = status != NULL && strcmp(status, "running") == 0;
        if (running) {
            kvp_progress_line(&progress, operation, columns(), line);
            (void)printf(ERASE "%s", line);
            (void)fflush(stdout);
        }
    }
    (void)printf(ERASE);
    (void)fflush(stdout);
    if (running && interrupted != 0) {
        *rc_p = leave_running(cli, id);
    }
    catch_interrupts(false);
    return operation;
}

/* Of an operation of all instances: what became of each. */
static void tell_members(const json_t *members)
{
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)members, name, member)
    {
        char text[KVP_CELL_MAX * 8];
        const char *error =
            json_string_value(json_object_get(json_object_get(member, "error"), "message"));
        const char *status = json_string_value(json_object_get(member, "status"));
        const char *message = json_string_value(json_object_get(member, "message"));
        const json_t *undone = json_object_get(member, "undone");
        const char *why_not = json_string_value(json_object_get(member, "undo_failed"));
        (void)snprintf(text, sizeof text, "%s: %s%s%s%s", name,
                       error != NULL     ? error
                       : status != NULL  ? status
                       : message != NULL ? message
                                         : "done",
                       undone == NULL         ? ""
                       : json_is_true(undone) ? ", taken back"
                                              : ", NOT taken back",
                       why_not != NULL ? ": " : "", why_not != NULL ? why_not : "");
        kvb_utf8_clean(text);
        (void)printf("  %s\n", text);
    }
}

/* How one ended, in a line. */
static int tell_end(const json_t *operation)
{
    char message[1024];
    const char *status = json_string_value(json_object_get(operation, "status"));
    const char *name = json_string_value(json_object_get(operation, "operation"));
    const char *instance = json_string_value(json_object_get(operation, "instance"));
    const char *result = json_string_value(json_object_get(operation, "result"));
    const char *said = json_string_value(json_object_get(operation, "message"));
    json_int_t id = json_integer_value(json_object_get(operation, "id"));
    double took_s = json_number_value(json_object_get(operation, "elapsed_ms")) / 1e3;
    bool succeeded = status != NULL && strcmp(status, "succeeded") == 0;

    const char *side = json_string_value(json_object_get(operation, "side"));
    const char *at = json_string_value(json_object_get(operation, "at"));
    (void)snprintf(message, sizeof message, "%s%s%s%s%s%s%s%s",
                   succeeded || result == NULL ? "" : result, side != NULL ? " (" : "",
                   side != NULL ? side : "", at != NULL ? " " : "", at != NULL ? at : "",
                   side != NULL ? ")" : "", said != NULL ? ": " : "", said != NULL ? said : "");
    kvb_utf8_clean(message);
    char which[256];
    (void)snprintf(which, sizeof which, "%s of %s", name != NULL ? name : "operation",
                   instance != NULL ? instance : "-");
    kvb_utf8_clean(which);
    if (succeeded) {
        (void)printf("%s: done in %.1f s (operation %" JSON_INTEGER_FORMAT ")%s\n", which, took_s,
                     id, message);
        tell_members(json_object_get(operation, "instances"));
        return KVP_CLI_DONE;
    }
    (void)fprintf(stderr,
                  "kvplane: %s: failed after %.1f s (operation %" JSON_INTEGER_FORMAT "): %s\n",
                  which, took_s, id, message);
    tell_members(json_object_get(operation, "instances"));
    return KVP_CLI_REFUSED;
}

int kvp_cli_verb(struct kvp_cli *cli, const char *path)
{
    char whole[KVP_CLI_QUERY_MAX + 64];
    char id[32];
    long code = 0;
    bool watched = kvp_cli_on_terminal(cli);

    (void)snprintf(whole, sizeof whole, "%s%s", path, cli->query);
    if (watched) {
        cli->call.header = "Prefer: respond-async";
        catch_interrupts(true); /* there is an id soon */
    }
    int rc = kvp_call_send(&cli->call, true, whole, &code);
    if (rc != KVP_CLI_DONE || !watched || code != 202) {
        return rc == KVP_CLI_DONE ? kvp_cli_show(cli, code) : rc;
    }
    json_t *started = json_loads(cli->call.answer != NULL ? cli->call.answer : "", 0, NULL);
    (void)snprintf(id, sizeof id, "%" JSON_INTEGER_FORMAT,
                   json_integer_value(json_object_get(started, "operation_id")));
    json_decref(started);
    json_t *operation = kvp_cli_watch(cli, id, 1e9, &rc);
    if (operation != NULL && rc == KVP_CLI_DONE) {
        rc = tell_end(operation);
    }
    json_decref(operation);
    return rc;
}
