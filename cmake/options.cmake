# SPDX-License-Identifier: Apache-2.0
# One INTERFACE target carries every flag of ours; nothing is written to CMAKE_C_FLAGS.
add_library(kvplane_options INTERFACE)
target_compile_definitions(kvplane_options INTERFACE _GNU_SOURCE)
target_compile_options(kvplane_options INTERFACE
  -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wcast-align -Wwrite-strings
  -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wnested-externs
  -Wredundant-decls -Wundef -Wformat=2 -Wvla -Wimplicit-fallthrough -Wconversion
  -Wno-sign-conversion -fno-omit-frame-pointer -fvisibility=hidden
  -Werror=implicit-function-declaration -Werror=incompatible-pointer-types
  -Werror=int-conversion -Werror=return-type)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  target_compile_options(kvplane_options INTERFACE
    -Wlogical-op -Wduplicated-cond -Wduplicated-branches -Wjump-misses-init)
else()
  target_compile_options(kvplane_options INTERFACE -Wthread-safety -Wcomma -Wunreachable-code)
endif()
if(KVPLANE_WERROR)
  target_compile_options(kvplane_options INTERFACE -Werror)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(kvplane_options INTERFACE KVB_SLOW_ASSERTS=1)
endif()
if(KVPLANE_FAULTS)
  target_compile_definitions(kvplane_options INTERFACE KVB_FAULTS=1)
endif()
if(KVPLANE_SANITIZE)
  target_compile_options(kvplane_options INTERFACE
    -fsanitize=${KVPLANE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(kvplane_options INTERFACE -fsanitize=${KVPLANE_SANITIZE})
endif()
if(KVPLANE_COVERAGE)
  # In C, without the optimiser, gcc knows no branches but those of the source. Several threads count.
  target_compile_options(kvplane_options INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(kvplane_options INTERFACE --coverage)
endif()

if(KVPLANE_PROFILE)
  target_compile_options(kvplane_options INTERFACE -fprofile-instr-generate -fcoverage-mapping)
  target_link_options(kvplane_options INTERFACE -fprofile-instr-generate)
endif()

# kvplane_layer(NAME SOURCES… [PUBLIC_DEPS …] [PRIVATE_DEPS …]): a static library of one folder. Its include/ is
# public, its own folder private to it; tests link the static layers and may name the private folder.
function(kvplane_layer name)
  cmake_parse_arguments(L "" "" "SOURCES;PUBLIC_DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${L_SOURCES})
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${L_PUBLIC_DEPS} PRIVATE kvplane_options ${L_PRIVATE_DEPS})
endfunction()
