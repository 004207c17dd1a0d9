# Finds LibTorch and defines the target lockstep::torch (tensors on the CPU) and, if LibTorch has CUDA,
# lockstep::torch_cuda.
#
# Search order: LOCKSTEP_TORCH_DIR (CMake or environment variable), the LibTorch that an installed Lockstep was built
# against or that is in its prefix, .deps of the source tree, the torch that python3 imports. The file torch-versions lists the supported
# versions. find_package(Torch) is not used, because for a CUDA wheel it requires a CUDA toolkit even if a program uses
# no GPU, and libtorch.so would load torch_cuda and cuDNN.

function(lockstep_locate_torch out)
  set(candidates)
  if(LOCKSTEP_TORCH_DIR)
    list(APPEND candidates ${LOCKSTEP_TORCH_DIR})
  elseif(DEFINED ENV{LOCKSTEP_TORCH_DIR})
    list(APPEND candidates $ENV{LOCKSTEP_TORCH_DIR})
  else()
    list(APPEND candidates ${LOCKSTEP_TORCH_DEFAULT} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.deps/torch)
    # Of PATH, not of CMAKE_PREFIX_PATH: packages in the prefix were searched before.
    find_program(LOCKSTEP_PYTHON NAMES python3 NO_PACKAGE_ROOT_PATH NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
    if(LOCKSTEP_PYTHON)
      execute_process(
        COMMAND ${LOCKSTEP_PYTHON} -c
                "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      list(APPEND candidates ${python_torch})
    endif()
  endif()
  foreach(dir IN LISTS candidates)
    if(EXISTS ${dir}/lib/libtorch_cpu.so AND EXISTS ${dir}/include/torch/csrc/api/include/torch/torch.h)
      # The real path, not the link .deps/torch, so that a change of the version causes a new build.
      get_filename_component(dir ${dir} REALPATH)
      set(${out} ${dir} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR
    "LibTorch not found in: ${candidates}. Install the Python package torch, or run script/setup in a checkout, or set "
    "LOCKSTEP_TORCH_DIR to a folder that has include/ and lib/libtorch_cpu.so.")
endfunction()

# Reads a line of torch-versions: oldest, newest or default.
function(lockstep_supported_torch key out)
  file(STRINGS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/torch-versions line REGEX "^${key} ")
  string(REPLACE "${key} " "" line "${line}")
  set(${out} ${line} PARENT_SCOPE)
endfunction()

if(NOT TARGET lockstep::torch)
  lockstep_locate_torch(LOCKSTEP_TORCH_ROOT)
  set(torch_version_header ${LOCKSTEP_TORCH_ROOT}/include/torch/headeronly/version.h)
  if(NOT EXISTS ${torch_version_header})
    # Up to LibTorch 2.9.
    set(torch_version_header ${LOCKSTEP_TORCH_ROOT}/include/torch/csrc/api/include/torch/version.h)
  endif()
  file(STRINGS ${torch_version_header} torch_version_lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX MATCHALL "[0-9]+" torch_version_parts "${torch_version_lines}")
  list(JOIN torch_version_parts . LOCKSTEP_TORCH_VERSION)
  lockstep_supported_torch(oldest torch_oldest)
  lockstep_supported_torch(newest torch_newest)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" LOCKSTEP_TORCH_MINOR "${LOCKSTEP_TORCH_VERSION}")
  if(LOCKSTEP_TORCH_MINOR VERSION_LESS torch_oldest OR LOCKSTEP_TORCH_MINOR VERSION_GREATER torch_newest)
    message(FATAL_ERROR "Lockstep supports LibTorch ${torch_oldest} to ${torch_newest}, and ${LOCKSTEP_TORCH_ROOT} "
      "is ${LOCKSTEP_TORCH_VERSION}: set LOCKSTEP_TORCH_DIR to another one, or run script/setup in a checkout.")
  endif()
  message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH_ROOT}")

  add_library(lockstep::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::c10 PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_TORCH_ROOT}/lib/libc10.so)
  add_library(lockstep::torch SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::torch PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_TORCH_ROOT}/lib/libtorch_cpu.so)
  target_include_directories(lockstep::torch SYSTEM INTERFACE
    ${LOCKSTEP_TORCH_ROOT}/include
    ${LOCKSTEP_TORCH_ROOT}/include/torch/csrc/api/include)
  target_compile_definitions(lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  # libtorch_cpu finds cudart and cupti by its own run path, so the linker does not need them.
  target_link_options(lockstep::torch INTERFACE -Wl,--allow-shlib-undefined)
  target_link_libraries(lockstep::torch INTERFACE lockstep::c10)

  if(EXISTS ${LOCKSTEP_TORCH_ROOT}/lib/libtorch_cuda.so)
    add_library(lockstep::c10_cuda SHARED IMPORTED GLOBAL)
    set_target_properties(lockstep::c10_cuda PROPERTIES
      IMPORTED_LOCATION ${LOCKSTEP_TORCH_ROOT}/lib/libc10_cuda.so)
    add_library(lockstep::torch_cuda SHARED IMPORTED GLOBAL)
    set_target_properties(lockstep::torch_cuda PROPERTIES
      IMPORTED_LOCATION ${LOCKSTEP_TORCH_ROOT}/lib/libtorch_cuda.so)
    target_link_libraries(lockstep::torch_cuda INTERFACE lockstep::torch lockstep::c10_cuda)
  endif()
endif()
