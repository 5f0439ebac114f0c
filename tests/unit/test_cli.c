/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_grid.h"
#include "cli_sse.h"
#include "commands.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

struct heard {
    unsigned n;
    char data[8][64];
};

static void on_event(void *ctx, const char *data)
{
    struct heard *heard = ctx;
    cr_assert_lt(heard->n, 8);
    (void)snprintf(heard->data[heard->n++], sizeof heard->data[0], "%s", data);
}

static const char stream[] = ": \n\nid: 7\nevent: sleep\ndata: {\"a\":1}\n\n"
                             "id:8\r\ndata:two\r\n\r\n: beat\n\n";

Test(cli, events_are_the_same_however_their_bytes_are_split)
{
    for (size_t cut = 0; cut + 1 < sizeof stream; cut++) {
        static struct kvp_sse sse;
        struct heard heard = {0};
        memset(&sse, 0, sizeof sse);
        kvp_sse_feed(&sse, stream, cut, on_event, &heard);
        kvp_sse_feed(&sse, stream + cut, sizeof stream - 1 - cut, on_event, &heard);
        cr_assert_eq(heard.n, 2, "cut at %zu: %u", cut, heard.n);
        cr_assert_str_eq(heard.data[0], "{\"a\":1}");
        cr_assert_str_eq(heard.data[1], "two");
        cr_assert_str_eq(sse.id, "8");
    }
}

Test(cli, a_stream_that_breaks_goes_on_where_it_was)
{
    static struct kvp_sse sse;
    struct heard heard = {0};
    kvp_sse_feed(&sse, "id: 3\ndata: a\n\nid: 4\ndata: half", 31, on_event, &heard);
    cr_assert_str_eq(sse.id, "3", "the fourth is not whole");
    kvp_sse_restart(&sse);
    kvp_sse_feed(&sse, "id: 5\ndata: b\n\n", 15, on_event, &heard);
    cr_assert_eq(heard.n, 2);
    cr_assert_str_eq(heard.data[1], "b", "nothing of the half one");
}

Test(cli, a_line_that_is_too_long_is_left_out_whole)
{
    static struct kvp_sse sse;
    struct heard heard = {0};
    char *line = malloc(KVP_SSE_LINE_MAX * 2);
    memset(line, 'x', KVP_SSE_LINE_MAX * 2);
    memcpy(line, "data: ", 6);
    line[KVP_SSE_LINE_MAX * 2 - 2] = line[KVP_SSE_LINE_MAX * 2 - 1] = '\n';
    kvp_sse_feed(&sse, line, KVP_SSE_LINE_MAX * 2, on_event, &heard);
    cr_assert_eq(heard.n, 0);
    kvp_sse_feed(&sse, "data: y\n\n", 9, on_event, &heard);
    cr_assert_eq(heard.n, 1);
    free(line);
}

Test(cli, what_others_say_moves_no_cursor)
{
    char text[] = "a\x1b[2Jb\nc\xc2\x9b"
                  "d \xe2\x80\xa6";
    kvp_cell_clean(text);
    cr_assert_str_eq(text, "a?[2Jb?c??d \xe2\x80\xa6");
}

/* ---- one table ---- */

static void tell_two(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    cr_assert_str_eq(command, "go");
    tell(ctx, &(struct kvp_option){"mode", "HOW", "abort wait", "how: it's [said]", NULL});
    tell(ctx, &(struct kvp_option){"all", NULL, NULL, "all of it", "default no; or yes"});
}

static const struct kvp_command list[] = {
    {"go", NULL, "[ID]", NULL, "goes on", "More.", tell_two},
    {"stop", NULL, NULL, NULL, "stops", NULL, NULL},
    {"inner", NULL, NULL, NULL, NULL, NULL, NULL},
};
static const struct kvp_commands commands = {list, 3, "1.2.3"};

Test(cli, help_is_short_and_of_a_command_whole)
{
    char text[2048] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    kvp_help_commands(&commands, out);
    (void)fclose(out);
    cr_assert_not_null(strstr(text, "  stop       stops\n"), "%s", text);
    cr_assert_null(strstr(text, "inner"));
    cr_assert_null(strstr(text, "--mode"));
    out = fmemopen(text, sizeof text, "w");
    kvp_help_command(kvp_command_find(&commands, "go"), out);
    (void)fclose(out);
    cr_assert_not_null(strstr(text, "usage: kvplane go [ID] [OPTIONS]\n\ngoes on\n\nMore.\n"));
    cr_assert_not_null(strstr(text, "  --mode HOW  "));
    cr_assert_not_null(strstr(text, "  --all \n      all of it.\n      default no; or yes\n"));
    cr_assert_null(kvp_command_find(&commands, "goes"));
}
