/* SPDX-License-Identifier: Apache-2.0 */
#include "misbehave.h"

#include <criterion/criterion.h>

Test(misbehave, a_list_is_read_and_counts_its_times)
{
    struct kve_misbehave misbehave = {0};

    cr_assert(kve_misbehave_parse("release-late:250,pause-never:2,relay-refuse", &misbehave));
    cr_assert_eq(misbehave.calls[KVE_CALL_release].late_ms, 250);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(kve_misbehave_next(&misbehave, KVE_CALL_release), KVE_LATE);
        cr_assert_eq(kve_misbehave_next(&misbehave, KVE_CALL_relay), KVE_REFUSE);
        cr_assert_eq(kve_misbehave_next(&misbehave, KVE_CALL_pause),
                     i < 2 ? KVE_NEVER : KVE_HONEST);
        cr_assert_eq(kve_misbehave_next(&misbehave, KVE_CALL_restore), KVE_HONEST);
    }
}

Test(misbehave, what_is_not_of_its_form_changes_nothing)
{
    static const char *const bad[] = {"",
                                      "release",
                                      "release-late",
                                      "release-late:0",
                                      "pause-soon",
                                      "pause-never:x",
                                      "pause-never:",
                                      "pause-never,",
                                      "pauses-never",
                                      "release-late:99999999999"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kve_misbehave misbehave = {0};
        cr_assert_not(kve_misbehave_parse(bad[i], &misbehave), "%s", bad[i]);
        for (size_t call = 0; call < KVE_CALL_COUNT; call++) {
            cr_assert_eq(misbehave.calls[call].how, KVE_HONEST, "%s", bad[i]);
        }
    }
}
