/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_frame.h"
#include "cli_grid.h"
#include "cli_progress.h"
#include "cli_sse.h"
#include "commands.h"

#include "base/utf8.h"

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
    kvb_utf8_clean(text);
    cr_assert_str_eq(text, "a?[2Jb?c??d \xe2\x80\xa6");
}

static void number_of(char *cell, const json_t *row)
{
    kvp_cell_count(cell, json_object_get(row, "n"));
}

Test(cli, a_table_is_as_wide_as_its_cells_and_aligned_as_its_columns_say)
{
    static const struct kvp_column columns[] = {
        {"NAME", "name", kvp_cell_text, false},  {"N", "", number_of, true},
        {"WHO", "of.who", kvp_cell_text, false}, {"TOOK", "ms", kvp_cell_took, true},
        {"LAST", "x.y", kvp_cell_text, false},   {.head = NULL},
    };
    static const char *const titles[] = {NULL, "those"};
    static const char *const want[] = {"NAME      N  WHO     TOOK  LAST\n"
                                       "a        12  me   0.002 s  -\n"
                                       "longer?   3  -    0.000 s  end\n",
                                       "\nthose\n"
                                       "  NAME      N  WHO     TOOK  LAST\n"
                                       "  a        12  me   0.002 s  -\n"
                                       "  longer?   3  -    0.000 s  end\n"};
    json_t *rows = json_loads("[{\"name\":\"a\",\"n\":12,\"of\":{\"who\":\"me\"},\"ms\":2},"
                              "{\"name\":\"longer\\u001b\",\"n\":3,\"x\":{\"y\":\"end\"}}]",
                              0, NULL);
    cr_assert_not_null(rows);
    for (int i = 0; i < 2; i++) {
        char *text;
        size_t len;
        FILE *out = open_memstream(&text, &len);
        kvp_table_print(out, titles[i], false, columns, rows);
        fclose(out);
        cr_expect_str_eq(text, want[i]);
        free(text);
    }
    json_decref(rows);
}

/* ---- progress ---- */

static const char *line_of(struct kvp_progress *progress, const char *json, size_t width)
{
    static char line[KVP_PROGRESS_MAX];
    json_t *operation = json_loads(json, 0, NULL);
    cr_assert_not_null(operation);
    kvp_progress_line(progress, operation, width, line);
    json_decref(operation);
    return line;
}

Test(cli, progress_says_what_is_left_and_for_how_long)
{
    struct kvp_progress progress = {0};
    static const char waits[] = "{\"operation\":\"sleep\",\"instance\":\"a\",\"elapsed_ms\":100}";
    cr_assert_str_eq(line_of(&progress, waits, 200), "sleep a: waits for its turn  0.1 s");
    static const char begins[] =
        "{\"operation\":\"sleep\",\"instance\":\"a\",\"step\":\"drain\",\"elapsed_ms\":1000,"
        "\"deadline_in_ms\":480000,\"drain\":{\"queued\":3,\"running\":1,\"bytes_left\":8388608}}";
    cr_assert_str_eq(
        line_of(&progress, begins, 200),
        "sleep a: drain  [....................] 4 tasks, 8 MiB left  1.0 s, at most 480 s");
    static const char half[] =
        "{\"operation\":\"sleep\",\"instance\":\"a\",\"step\":\"drain\",\"elapsed_ms\":3000,"
        "\"deadline_in_ms\":478000,\"drain\":{\"queued\":0,\"running\":1,\"bytes_left\":2097152}}";
    cr_assert_str_eq(line_of(&progress, half, 200),
                     "sleep a: drain  [###############.....] 1 task, 2 MiB left  3.0 s, "
                     "about 1 s left, at most 478 s");
    cr_assert_str_eq(line_of(&progress, half, 24), "sleep a: drain  [#######");
    cr_assert_str_eq(
        line_of(&progress, "{}", 200),
        "operation : waits for its turn  [####################] 0 tasks, 0 B left  0.0 s");
}

Test(cli, progress_of_all_instances_says_how_many_are_done_and_which_is_the_slowest)
{
    struct kvp_progress progress = {0};
    static const char some[] =
        "{\"operation\":\"sleep\",\"instance\":\"*\",\"step\":\"offload\",\"elapsed_ms\":3000,"
        "\"slowest\":\"b\",\"instances_all\":4,\"instances_done\":1,"
        "\"drain\":{\"queued\":0,\"running\":0,\"bytes_left\":0}}";
    cr_assert_str_eq(line_of(&progress, some, 200),
                     "sleep *: offload on b, 1 of 4 done  [#####...............]  3.0 s, "
                     "about 9 s left");
    static const char drains[] =
        "{\"operation\":\"sleep\",\"instance\":\"*\",\"step\":\"drain\",\"elapsed_ms\":4000,"
        "\"slowest\":\"b\",\"instances_all\":4,\"instances_done\":1,"
        "\"drain\":{\"queued\":0,\"running\":2,\"bytes_left\":1024}}";
    cr_assert_str_eq(
        line_of(&progress, drains, 200),
        "sleep *: drain on b, 1 of 4 done  [....................] 2 tasks, 1 KiB left  "
        "4.0 s");
}

static const char *clipped(const char *text, size_t rows, size_t columns, size_t *n_p)
{
    static char out[512];
    out[0] = '\0';
    FILE *file = fmemopen(out, sizeof out, "w");
    *n_p = kvp_frame_clip(text, rows, columns, file);
    (void)fclose(file);
    return out;
}

Test(cli, a_screen_takes_no_more_than_it_has_room_for)
{
    size_t n;
    cr_assert_str_eq(clipped("abc\nde\n", 5, 80, &n), "abc\x1b[K\r\nde\x1b[K");
    cr_assert_eq(n, 2);
    cr_assert_str_eq(clipped("abc\nde\n", 1, 2, &n), "ab\x1b[K");
    cr_assert_eq(n, 1);
    cr_assert_str_eq(clipped("\x1b[1mabc\x1b[0m", 5, 2, &n), "\x1b[1mab\x1b[0m\x1b[K",
                     "what is bold ends even if it is cut");
    cr_assert_str_eq(clipped("\xc3\xa9\xc3\xa8z", 5, 2, &n), "\xc3\xa9\xc3\xa8\x1b[K");
    cr_assert_str_eq(clipped("abc", 0, 80, &n), "");
}

Test(cli, queues_are_those_of_all_ranks)
{
    json_t *queues = kvp_frame_queues("# HELP kvplane_tasks_queued x\n"
                                      "kvplane_tasks_queued{instance=\"a\",queue=\"put\"} 3\n"
                                      "kvplane_tasks_running{instance=\"a\",queue=\"put\"} 1\n"
                                      "kvplane_tasks_queued{instance=\"b\",queue=\"put\"} 4\n"
                                      "kvplane_tasks_queued{instance=\"b\",queue=\"get\"} 9\n"
                                      "other{queue=\"put\"} 50\n");
    const json_t *put = json_object_get(queues, "put");
    cr_assert_eq(json_number_value(json_object_get(put, "queued")), 7);
    cr_assert_eq(json_number_value(json_object_get(put, "running")), 1);
    cr_assert_eq(json_number_value(json_object_get(json_object_get(queues, "get"), "queued")), 9);
    json_decref(queues);
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

static void tell_odd(const char *command, kvp_tell_option_fn tell, void *ctx)
{
    (void)command;
    tell(ctx, &(struct kvp_option){"odd", NULL, NULL, ".so \\fBit's ~-^", NULL});
}

Test(cli, a_manual_page_shows_what_means_something_to_roff)
{
    static const struct kvp_command odd[] = {{"go", NULL, NULL, NULL, "goes", NULL, tell_odd}};
    static const struct kvp_commands all = {odd, 1, "1.2.3"};
    char text[2048] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    cr_assert(kvp_man(&all, "go", out));
    cr_assert_not(kvp_man(&all, "goes", out));
    (void)fclose(out);
    cr_assert_not_null(strstr(text, ".TH KVPLANE\\-GO 1 \"\" \"kvplane 1.2.3\""), "%s", text);
    cr_assert_not_null(strstr(text, "\n\\&.so \\efBit\\(aqs \\(ti\\-\\(ha.\n"), "%s", text);
}
