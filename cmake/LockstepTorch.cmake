# Finds LibTorch and defines the target lockstep::torch (tensors on the CPU) and,
# where the CUDA half is there, lockstep::torch_cuda.
#
# Searched in this order: LOCKSTEP_TORCH_DIR (CMake or environment variable), the
# one that an installed Lockstep was built against, the project's own .deps, an
# importable Python torch. find_package(Torch) is not used: it demands a CUDA toolkit for a CUDA wheel even from a program that never
# touches a GPU, and libtorch.so would drag in torch_cuda and cuDNN.

function(lockstep_locate_torch out)
  set(candidates)
  if(LOCKSTEP_TORCH_DIR)
    list(APPEND candidates ${LOCKSTEP_TORCH_DIR})
  elseif(DEFINED ENV{LOCKSTEP_TORCH_DIR})
    list(APPEND candidates $ENV{LOCKSTEP_TORCH_DIR})
  else()
    list(APPEND candidates ${LOCKSTEP_TORCH_DEFAULT} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.deps/torch)
    find_program(LOCKSTEP_PYTHON NAMES python3)
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
      get_filename_component(dir ${dir} ABSOLUTE)
      set(${out} ${dir} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR
    "LibTorch not found. Looked in: ${candidates}. Run script/setup, or set "
    "LOCKSTEP_TORCH_DIR to a folder that holds include/ and lib/libtorch_cpu.so.")
endfunction()

if(NOT TARGET lockstep::torch)
  lockstep_locate_torch(LOCKSTEP_TORCH_ROOT)
  file(STRINGS ${LOCKSTEP_TORCH_ROOT}/include/torch/headeronly/version.h torch_version_lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX MATCHALL "[0-9]+" torch_version_parts "${torch_version_lines}")
  list(JOIN torch_version_parts . LOCKSTEP_TORCH_VERSION)
  if(NOT LOCKSTEP_TORCH_VERSION VERSION_GREATER_EQUAL 2.11 OR NOT LOCKSTEP_TORCH_VERSION VERSION_LESS 2.12)
    message(FATAL_ERROR "Lockstep needs LibTorch 2.11; ${LOCKSTEP_TORCH_ROOT} is ${LOCKSTEP_TORCH_VERSION}. "
      "Run script/setup, or set LOCKSTEP_TORCH_DIR to another one.")
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
  # libtorch_cpu finds cudart and cupti by its own run path; the linker need not.
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
