/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void kvb_assert_failed(const char *expression, const char *file, int line,
                                 const char *function)
{
    fprintf(stderr, "level=error msg=\"assertion failed\" expression=\"%s\" function=%s at=%s:%d\n",
            expression, function, file, line);
    abort();
}
