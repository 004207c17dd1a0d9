# Build switches, and the settings that every target shares.

option(LOCKSTEP_TESTS "Build the tests if GoogleTest and HDF5 are found" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_BENCH "Build the benchmark programs" ${PROJECT_IS_TOP_LEVEL})
option(LOCKSTEP_MPI "Build the MPI backend plugin if MPI is found" ON)
set(LOCKSTEP_CUDA AUTO CACHE STRING "Build the CUDA library: AUTO (if CUDA is found), ON or OFF")
option(LOCKSTEP_PORTABLE "Make programs that need no libraries except LibTorch, libstdc++ and glibc, for script/package" OFF)
option(LOCKSTEP_PCH "Precompile the headers that most sources share" ON)
set(LOCKSTEP_UNITY ON CACHE STRING
  "Compile sources in batches, which reduces a full build to a fifth of the time: ON, OFF or REVERSED (last source first)")
set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizer: empty, address, thread, undefined, or fuzzer (address and undefined, for libFuzzer)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# Line tables are for debuggers and sanitizers. The build is faster without them.
option(LOCKSTEP_DEBUG_INFO "Write line tables" OFF)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
if(LOCKSTEP_SANITIZE STREQUAL "fuzzer")
  # With three sanitizers, more optimisation takes longer than it saves.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")
endif()
if(LOCKSTEP_DEBUG_INFO OR LOCKSTEP_SANITIZE)
  string(APPEND CMAKE_CXX_FLAGS_RELWITHDEBINFO " -g1")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
if(LOCKSTEP_PORTABLE)
  # Other machines have LibTorch elsewhere: `lockstep` finds it. Plugins and programs link the static libraries in
  # parts only.
  add_compile_definitions(LOCKSTEP_PORTABLE)
  add_compile_options(-ffunction-sections -fdata-sections)
  add_link_options(LINKER:--gc-sections LINKER:--icf=safe LINKER:--strip-all)
  # Shared libraries keep the symbols of static ones to themselves: libsodium.a cannot be linked otherwise.
  string(APPEND CMAKE_MODULE_LINKER_FLAGS " -Wl,--exclude-libs,ALL")
  string(APPEND CMAKE_SHARED_LINKER_FLAGS " -Wl,--exclude-libs,ALL -Wl,-Bsymbolic-functions")
  # libstdc++ of GCC 12 has a second version of this function, which differs in noexcept alone. With the first one the
  # programs run with libstdc++ of GCC 11 (Red Hat Enterprise Linux 9).
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-include${PROJECT_SOURCE_DIR}/cmake/portable_symbols.h>)
else()
  # Installed programs must find the plugins and LibTorch without LD_LIBRARY_PATH.
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()

# Warnings and sanitizers must not affect users, so this target is linked PRIVATE and never exported.
add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  # x86-64's baseline has no fused multiply-add, but aarch64's has: without this, a * b + c would round differently there.
  target_compile_options(lockstep_flags INTERFACE -ffp-contract=off)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(lockstep_flags INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND LOCKSTEP_UNITY)
  # In a batch, g++ warns about types in unnamed namespaces, because the source is not the main file.
  target_compile_options(lockstep_flags INTERFACE -Wno-subobject-linkage)
endif()
if(LOCKSTEP_SANITIZE)
  set(sanitizers ${LOCKSTEP_SANITIZE})
  set(sanitizer_flags -fno-omit-frame-pointer)
  if(LOCKSTEP_SANITIZE MATCHES "^(undefined|fuzzer)$")
    # vptr and function compare type information, most of which LibTorch hides.
    set(undefined undefined,float-cast-overflow)
    list(APPEND sanitizer_flags -fno-sanitize-recover=${undefined} -fno-sanitize=vptr,function
      -fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/tests/sanitizers/undefined.ignore)
    set(sanitizers ${undefined})
    if(LOCKSTEP_SANITIZE STREQUAL "fuzzer")
      set(sanitizers fuzzer-no-link,address,${undefined})
    endif()
  endif()
  add_compile_options(-fsanitize=${sanitizers} ${sanitizer_flags})
  string(REPLACE "fuzzer-no-link," "" sanitizers ${sanitizers})
  add_link_options(-fsanitize=${sanitizers})
endif()

# Lets a program use the precompiled header of the library. The header works with one code model only, so the program
# is compiled with -fPIC instead of -fPIE.
function(lockstep_reuse_pch target)
  if(LOCKSTEP_PCH)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM lockstep)
  endif()
endfunction()

# Compiles the sources of a target in batches. A change of one source compiles its whole batch again, so batches are
# small. Sources with their own compile options are compiled alone.
#
# REVERSED finds sources that do not compile alone: an include or a name that a source uses from an earlier one then
# comes after it.
function(lockstep_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "BATCH" "")
  if(NOT arg_BATCH)
    set(arg_BATCH 12)
  endif()
  if(LOCKSTEP_UNITY STREQUAL "REVERSED")
    get_target_property(sources ${target} SOURCES)
    list(REVERSE sources)
    set_target_properties(${target} PROPERTIES SOURCES "${sources}")
  endif()
  if(LOCKSTEP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${arg_BATCH})
  endif()
endfunction()
