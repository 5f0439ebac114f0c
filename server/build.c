/* SPDX-License-Identifier: Apache-2.0 */
#include "build.h"

#include "revision.h"

const char kvp_build_revision[] = KVP_REVISION;
const char kvp_build_compiler[] = KVP_COMPILER;
const char kvp_build_features[] = KVP_FEATURES;
