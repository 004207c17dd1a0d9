# Finds what the CUDA library needs to compile, and defines lockstep::cuda: the headers of CUDA and NCCL, and
# libcudart. LOCKSTEP_NVCC is nvcc. LOCKSTEP_CUDA_FOUND is true if everything was found.
#
# LOCKSTEP_CUDA: AUTO builds the library if everything is found, ON makes it an error if something is missing, OFF
# searches nothing.
#
# Search order: PyPI's wheels beside LibTorch (script/setup --cuda installs them there), CUDA_HOME, the nvcc in PATH,
# /usr/local/cuda. find_package(CUDAToolkit) is not used, because it does not know the layout of PyPI's wheels, where
# libraries exist only under names with a version.

# Sets ${out} to the first folder of the arguments that is a complete CUDA toolkit of version LOCKSTEP_TORCH_CUDA. If
# there is none, sets ${out}_REASON to what the last one lacks.
function(lockstep_locate_cuda out)
  set(reason "no CUDA toolkit was found")
  foreach(dir IN LISTS ARGN)
    if(NOT EXISTS ${dir}/include/cuda_runtime_api.h)
      continue()
    endif()
    file(STRINGS ${dir}/include/cuda_runtime_api.h line REGEX "define CUDART_VERSION +[0-9]+")
    string(REGEX REPLACE ".*CUDART_VERSION +([0-9]+)[0-9][0-9][0-9].*" "\\1" major "${line}")
    file(GLOB cudart ${dir}/lib/libcudart.so* ${dir}/lib64/libcudart.so*)
    set(lacking)
    foreach(file bin/nvcc include/cublas_v2.h include/cusparse.h include/cusolverDn.h)
      if(NOT EXISTS ${dir}/${file})
        list(APPEND lacking ${file})
      endif()
    endforeach()
    if(NOT cudart)
      list(APPEND lacking lib/libcudart.so)
    endif()
    if(LOCKSTEP_TORCH_CUDA AND NOT major EQUAL LOCKSTEP_TORCH_CUDA)
      set(reason "LibTorch is built for CUDA ${LOCKSTEP_TORCH_CUDA}, and ${dir} is CUDA ${major}")
    elseif(lacking)
      list(JOIN lacking ", " lacking)
      set(reason "${dir} lacks ${lacking}")
    else()
      list(GET cudart 0 cudart)
      set(${out} ${dir} PARENT_SCOPE)
      set(${out}_CUDART ${cudart} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
  set(${out}_REASON ${reason} PARENT_SCOPE)
endfunction()

set(LOCKSTEP_CUDA_FOUND FALSE)
set(LOCKSTEP_NVCC)
if(NOT LOCKSTEP_CUDA)
  return()
endif()

get_filename_component(wheels ${LOCKSTEP_TORCH_ROOT} DIRECTORY)
set(wheels ${wheels}/nvidia)
# The CUDA version that LibTorch is built for, as its Python package states it: cuda = '13.0'.
set(LOCKSTEP_TORCH_CUDA)
if(EXISTS ${LOCKSTEP_TORCH_ROOT}/version.py)
  file(STRINGS ${LOCKSTEP_TORCH_ROOT}/version.py line REGEX "^cuda.*=.*'[0-9]+\\.")
  string(REGEX REPLACE ".*'([0-9]+)\\..*" "\\1" LOCKSTEP_TORCH_CUDA "${line}")
endif()

set(missing)
if(NOT TARGET lockstep::torch_cuda)
  set(missing "the LibTorch in ${LOCKSTEP_TORCH_ROOT} was built without CUDA")
else()
  file(GLOB candidates ${wheels}/cu[0-9]*)
  list(APPEND candidates $ENV{CUDA_HOME} $ENV{CUDA_PATH})
  find_program(LOCKSTEP_NVCC_IN_PATH nvcc)
  mark_as_advanced(LOCKSTEP_NVCC_IN_PATH)
  if(LOCKSTEP_NVCC_IN_PATH)
    get_filename_component(dir ${LOCKSTEP_NVCC_IN_PATH} REALPATH)
    get_filename_component(dir ${dir} DIRECTORY)
    get_filename_component(dir ${dir} DIRECTORY)
    list(APPEND candidates ${dir})
  endif()
  list(APPEND candidates /usr/local/cuda)
  lockstep_locate_cuda(cuda_root ${candidates})
  # The header must belong to the NCCL that LibTorch was built with, because c10d's options contain a struct of it. The
  # wheel beside LibTorch has this version. Another header is used only if the user sets LOCKSTEP_CUDA to ON.
  set(nccl_folders ${wheels}/nccl/include)
  if(cuda_root AND NOT LOCKSTEP_CUDA STREQUAL "AUTO")
    list(APPEND nccl_folders ${cuda_root}/include /usr/include)
  endif()
  set(nccl_include)
  foreach(dir IN LISTS nccl_folders)
    if(NOT nccl_include AND EXISTS ${dir}/nccl.h)
      set(nccl_include ${dir})
    endif()
  endforeach()
  if(NOT cuda_root)
    set(missing ${cuda_root_REASON})
  elseif(NOT nccl_include)
    list(JOIN nccl_folders ", " nccl_folders)
    set(missing "there is no nccl.h in ${nccl_folders}")
  endif()
endif()

if(missing)
  if(LOCKSTEP_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA library: not built, ${missing}")
    return()
  endif()
  message(FATAL_ERROR "LOCKSTEP_CUDA is ON, but ${missing}: run script/setup --cuda, or set LOCKSTEP_CUDA to OFF.")
endif()

set(LOCKSTEP_CUDA_FOUND TRUE)
set(LOCKSTEP_NVCC ${cuda_root}/bin/nvcc)
message(STATUS "CUDA library: built with ${cuda_root}")
if(NOT TARGET lockstep::cuda)
  add_library(lockstep::cudart SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::cudart PROPERTIES IMPORTED_LOCATION ${cuda_root_CUDART})
  add_library(lockstep::cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(lockstep::cuda SYSTEM INTERFACE ${nccl_include} ${cuda_root}/include)
  target_link_libraries(lockstep::cuda INTERFACE lockstep::torch_cuda lockstep::cudart)
endif()

# Compiles sources with nvcc and adds them to the target. CMake's language CUDA is not used, because it links a test
# program, and PyPI's wheels lack the static libraries for that. Machine code for sm_80 (A100), sm_90a (H100, H200) and
# sm_100 (B200), and PTX, which the driver compiles for later ones.
function(lockstep_cuda_sources target)
  set(architectures)
  foreach(number 80 90a 100)
    list(APPEND architectures -gencode arch=compute_${number},code=sm_${number})
  endforeach()
  list(APPEND architectures -gencode arch=compute_100,code=compute_100)
  cmake_path(GET LOCKSTEP_NVCC PARENT_PATH root)
  foreach(source IN LISTS ARGN)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${LOCKSTEP_NVCC} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
              -MD -MF ${object}.d -std=c++20 -O3 -Xcompiler -fPIC,-fvisibility=hidden ${architectures}
              -I ${PROJECT_SOURCE_DIR}/src -I ${root}/../include
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Compiling ${source} with nvcc"
      VERBATIM)
    target_sources(${target} PRIVATE ${object})
  endforeach()
endfunction()
