/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"
#include "rehearse_model.h"

#include <inttypes.h>
#include <stdio.h>

void kve_table_progress(const struct kve_rehearsal *r, const char *what)
{
    if (r->progress) {
        fprintf(stderr, "\r\033[K%s %" PRIu32 " of %" PRIu32 ", %s: %s", r->play->step,
                r->row->step, r->steps, r->row->form, what);
        fflush(stderr);
    }
}

static void clear_progress(const struct kve_rehearsal *r)
{
    if (r->progress) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

void kve_trace_table_head(const struct kve_rehearsal *r)
{
    if (r->json) {
        return;
    }
    printf("%4s %-14s %-11s ", "step", "form", "told");
    if (r->cluster) {
        printf("%-18s %9s ", "happens", "hoped");
    }
    printf("%6s %7s %7s %7s %6s %6s %6s %7s %6s %8s %8s %8s %7s %7s %9s %9s  %s\n", "reqs",
           "lookup", "hit", "absent", "closed", "fenced", "other", "put", "fenced", "got MiB",
           "put MiB", "promised", "sleep", "wake", "awake", "asleep", "shared");
}

static uint64_t other_misses(const struct kve_counts *counts)
{
    uint64_t n = 0;

    for (size_t i = 0; i < KVE_MISS_COUNT; i++) {
        n += counts->missed[i];
    }
    return n - counts->missed[KVE_MISS_not_found] - counts->missed[KVE_MISS_closed] -
           counts->missed[KVE_MISS_fenced];
}

static json_t *row_json(const struct kve_row *row)
{
    json_t *object = json_pack(
        "{s:I,s:s,s:s,s:I,s:o,s:I,s:I,s:b,s:I,s:I,s:I,s:I}", "step", (json_int_t)row->step, "form",
        row->form, "told", row->naming, "requests", (json_int_t)row->requests, "counts",
        kve_counts_json(&row->counts), "promised", (json_int_t)row->promised, "promised_hits",
        (json_int_t)row->kept, "shared", row->shared, "awake_bytes", (json_int_t)row->awake_bytes,
        "asleep_bytes", (json_int_t)row->asleep_bytes, "engine_rss_asleep",
        (json_int_t)row->engine_rss, "daemon_anon_after_reset", (json_int_t)row->daemon_anon);

    if (row->happening[0] != '\0') {
        json_object_update_new(object, json_pack("{s:s,s:I,s:I}", "happens", row->happening,
                                                 "hoped", (json_int_t)row->hoped, "hoped_hits",
                                                 (json_int_t)row->had));
    }
    if (row->sleep_ms >= 0) {
        json_object_set_new(object, "sleep_ms", json_real(row->sleep_ms));
    }
    if (row->wake_ms >= 0) {
        json_object_set_new(object, "wake_ms", json_real(row->wake_ms));
    }
    return object;
}

static void print_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(object);
    putchar('\n');
    fflush(stdout);
}

static const char *ms_text(double ms, char out[32])
{
    snprintf(out, 32, ms < 0 ? "-" : "%.1f", ms);
    return out;
}

void kve_trace_table_row(const struct kve_rehearsal *r, const struct kve_row *row)
{
    const struct kve_counts *counts = &row->counts;
    char sleep[32], wake[32], promised[48], hoped[48], asleep[32];

    clear_progress(r);
    if (r->json) {
        print_json(row_json(row));
        return;
    }
    snprintf(promised, sizeof promised, "%" PRIu64 "/%" PRIu64, row->kept, row->promised);
    snprintf(asleep, sizeof asleep, row->engine_rss == 0 ? "-" : "%" PRIu64, row->asleep_bytes);
    printf("%4" PRIu32 " %-14s %-11s ", row->step, row->form, row->naming);
    if (r->cluster) {
        snprintf(hoped, sizeof hoped, row->hoped == 0 ? "-" : "%" PRIu64 "/%" PRIu64, row->had,
                 row->hoped);
        printf("%-18s %9s ", row->happening[0] == '\0' ? "-" : row->happening, hoped);
    }
    printf("%6" PRIu64 " %7" PRIu64 " %7" PRIu64 " %7" PRIu64 " %6" PRIu64 " %6" PRIu64 " %6" PRIu64
           " %7" PRIu64 " %6" PRIu64 " %8.1f %8.1f %8s %7s %7s %9" PRIu64 " %9s  %s\n",
           row->requests, counts->looked_up, counts->hits, counts->missed[KVE_MISS_not_found],
           counts->missed[KVE_MISS_closed], counts->missed[KVE_MISS_fenced], other_misses(counts),
           counts->stored, counts->put_fenced, (double)counts->bytes_got / 1048576,
           (double)counts->bytes_put / 1048576, promised, ms_text(row->sleep_ms, sleep),
           ms_text(row->wake_ms, wake), row->awake_bytes, asleep, row->shared ? "yes" : "no");
    fflush(stdout);
}

void kve_trace_table_end(const struct kve_rehearsal *r, bool ok)
{
    const struct kve_counts *total = &r->total;
    const uint64_t errors = total->errors + r->errors;
    /* With --json standard output is JSON alone. */
    FILE *out = r->json ? stderr : stdout;
    char faults[32] = "";

    clear_progress(r);
    if (r->cluster) {
        snprintf(faults, sizeof faults, " faults=%" PRIu32, r->nhappened);
    }
    if (r->json) {
        print_json(json_pack(
            "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s}", "result", ok ? "ok" : "failed",
            "steps", (json_int_t)r->nrows, "requests", (json_int_t)r->requests_done,
            "blocks_checked", (json_int_t)total->blocks_checked, "hits", (json_int_t)total->hits,
            "caught", (json_int_t)total->caught, "faults", (json_int_t)r->nhappened, "stale",
            (json_int_t)total->stale, "torn", (json_int_t)total->torn, "errors", (json_int_t)errors,
            "story", r->story));
    }
    if (!ok && r->story[0] != '\0') {
        fprintf(out, "%s\n", r->story);
    }
    fprintf(out,
            "rehearse: %s steps=%" PRIu32 " requests=%" PRIu64 " blocks_checked=%" PRIu64
            " hits=%" PRIu64 " caught=%" PRIu64 "%s stale=%" PRIu64 " torn=%" PRIu64
            " errors=%" PRIu64 "\n",
            ok ? "ok" : "failed", r->nrows, r->requests_done, total->blocks_checked, total->hits,
            total->caught, faults, total->stale, total->torn, errors);
    fflush(out);
}

/* ---- of a model ---- */

static const char *const sources[KVE_SOURCE_COUNT] = {
#define X(name, label) [KVE_SOURCE_##name] = label,
    KVE_SOURCES(X)
#undef X
};

void kve_model_table_head(const struct kve_rehearsal *r)
{
    if (r->json) {
        return;
    }
    printf("%5s %-14s %-11s %7s %7s %7s ", "cycle", "form", "told", "outputs", "same", "tokens");
    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        printf("%9s ", sources[i]);
    }
    printf("%7s %7s %9s %9s\n", "sleep", "wake", "awake", "asleep");
}

static json_t *tally_json(const struct kve_tally *tally)
{
    json_t *object = json_pack("{s:I,s:I,s:I,s:I}", "outputs", (json_int_t)tally->outputs,
                               "identical", (json_int_t)tally->identical, "tokens",
                               (json_int_t)tally->tokens, "store_blocks", (json_int_t)tally->store);

    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        const struct kve_share *share = &tally->shares[i];
        json_object_set_new(object, sources[i],
                            json_pack("{s:I,s:I,s:I}", "prompts", (json_int_t)share->answers,
                                      "blocks", (json_int_t)share->blocks, "from_store",
                                      (json_int_t)share->store));
    }
    return object;
}

void kve_model_table_row(const struct kve_rehearsal *r, const struct kve_row *row)
{
    const struct kve_tally *tally = &r->model->row;
    char sleep[32], wake[32], hits[48], asleep[32];

    clear_progress(r);
    if (r->json) {
        json_t *object = row_json(row);
        json_object_update_new(object, tally_json(tally));
        print_json(object);
        return;
    }
    printf("%5" PRIu32 " %-14s %-11s %7" PRIu64 " %7" PRIu64 " %7" PRIu64 " ", row->step, row->form,
           row->naming, tally->outputs, tally->identical, tally->tokens);
    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        const struct kve_share *share = &tally->shares[i];
        snprintf(hits, sizeof hits, share->blocks == 0 ? "-" : "%" PRIu64 "/%" PRIu64, share->store,
                 share->blocks);
        printf("%9s ", hits);
    }
    snprintf(asleep, sizeof asleep, row->engine_rss == 0 ? "-" : "%" PRIu64, row->asleep_bytes);
    printf("%7s %7s %9" PRIu64 " %9s\n", ms_text(row->sleep_ms, sleep), ms_text(row->wake_ms, wake),
           row->awake_bytes, asleep);
    fflush(stdout);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : 100 * (double)part / (double)whole;
}

void kve_model_table_end(const struct kve_rehearsal *r, bool ok)
{
    const struct kve_tally *total = &r->model->total;
    const uint64_t errors = r->total.errors + r->errors;
    FILE *out = r->json ? stderr : stdout;
    struct kve_share all = {0};

    clear_progress(r);
    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        kve_share_add_all(&all, &total->shares[i]);
    }
    if (r->json) {
        json_t *object = tally_json(total);
        json_object_update_new(
            object,
            json_pack("{s:s,s:I,s:I,s:I,s:I,s:I,s:s}", "result", ok ? "ok" : "failed", "cycles",
                      (json_int_t)r->nrows, "caught", (json_int_t)r->total.caught, "stale",
                      (json_int_t)r->total.stale, "torn", (json_int_t)r->total.torn, "errors",
                      (json_int_t)errors, "story", r->story));
        print_json(object);
    }
    if (!ok && r->story[0] != '\0') {
        fprintf(out, "%s\n", r->story);
    }
    fprintf(out,
            "rehearse: %s cycles=%" PRIu32 " prompts=%" PRIu64 " tokens=%" PRIu64
            " identical=%" PRIu64 " store_hits=%.1f%%",
            ok ? "ok" : "failed", r->nrows, total->outputs, total->tokens, total->identical,
            percent(all.store, all.blocks));
    for (size_t i = 0; i < KVE_SOURCE_COUNT; i++) {
        fprintf(out, " %s=%.1f%%", sources[i],
                percent(total->shares[i].store, total->shares[i].blocks));
    }
    fprintf(out, " caught=%" PRIu64 " stale=%" PRIu64 " torn=%" PRIu64 " errors=%" PRIu64 "\n",
            r->total.caught, r->total.stale, r->total.torn, errors);
    fflush(out);
}
