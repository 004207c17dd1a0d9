# Toolchain file of the preset aarch64: clang compiles for aarch64 on an x86-64 machine, with the startup files, libgcc
# and libstdc++ of Debian's cross toolchain, and qemu runs the programs. script/setup --aarch64 installs all of it, and
# unpacks Debian's arm64 packages into the sysroot.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(triple aarch64-linux-gnu)
foreach(language C CXX)
  set(CMAKE_${language}_COMPILER_TARGET ${triple})
  # Without it, clang searches for the cross toolchain in the sysroot.
  set(CMAKE_${language}_COMPILER_EXTERNAL_TOOLCHAIN /usr)
endforeach()
# Assembling needs no toolchain, and CMake spells the option for assemblers in a way that clang does not know.
set(CMAKE_ASM_COMPILER_TARGET ${triple})

get_filename_component(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../.deps/aarch64/root ABSOLUTE)
# Libraries and headers of this machine are of another architecture; its programs are the ones that run.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# Vectors of 128 bits, as in NVIDIA's Grace. qemu's default is 512 bits, which no processor in use has.
set(processor -cpu max,sve-max-vq=1)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT} ${processor})
# For programs with LibTorch, which reads what /proc and /sys say about the processor.
get_filename_component(arm_root ${CMAKE_SYSROOT}/../arm_root ABSOLUTE)
set(LOCKSTEP_TORCH_EMULATOR qemu-aarch64 -L ${arm_root} ${processor})
