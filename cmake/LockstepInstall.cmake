# cmake --install exports find_package(Lockstep) with the targets lockstep::lockstep
# and lockstep::core: see tests/consumer.
#
#   bin/lockstep                       the program without LibTorch
#   lib/lockstep/torch-2.15            the program with LibTorch, and the plugins, for this version of LibTorch. script/package
#                                      installs several versions beside each other; src/cli/installation.h chooses one
#   lib/lockstep/*.so                  in a portable installation: lockstep_core, which all programs share, and libraries for it
#   include, lib/*.a, lib/cmake        for programs that link Lockstep
#   share                              completion scripts, manual page, licences
#
# The components program, tensor, cuda and development let script/package install parts.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
set(tensor_dir lib/lockstep/torch-${LOCKSTEP_TORCH_MINOR})

install(TARGETS lockstep_core lockstep_fmt lockstep EXPORT LockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        LIBRARY DESTINATION lib/lockstep COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h")
install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir} COMPONENT development)

install(TARGETS lockstep_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(LOCKSTEP_PORTABLE)
  set_target_properties(lockstep_program PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/lockstep")
  set_target_properties(lockstep_core PROPERTIES INSTALL_RPATH "$ORIGIN")
  # Under the names that the loader looks for, as files: a wheel has no links.
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"$<TARGET_FILE:lockstep_core>\" RESOLVED_DEPENDENCIES_VAR libraries
         PRE_EXCLUDE_REGEXES \"^ld-linux\" \"^lib(c|m|stdc\\\\+\\\\+|gcc_s)\\\\.so\")
    foreach(library IN LISTS libraries)
      cmake_path(GET library FILENAME name)
      file(COPY_FILE \"\${library}\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/lockstep/\${name}\")
    endforeach()" COMPONENT program)
endif()
# The program with LibTorch, and the plugins that this build has.
function(lockstep_install_tensor target component)
  if(NOT TARGET ${target})
    return()
  endif()
  install(TARGETS ${target}
          RUNTIME DESTINATION ${tensor_dir} COMPONENT ${component}
          LIBRARY DESTINATION ${tensor_dir} COMPONENT ${component})
  if(LOCKSTEP_PORTABLE)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/..")
  else()
    # CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders of the source tree, and .deps is one.
    set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH ${LOCKSTEP_TORCH_ROOT}/lib)
  endif()
endfunction()
lockstep_install_tensor(lockstep_tensor_program tensor)
lockstep_install_tensor(lockstep_mpi tensor)
lockstep_install_tensor(lockstep_cuda cuda)

# Installs what the program prints: shell completion and the manual page.
function(lockstep_install_output folder file)
  set(output ${PROJECT_BINARY_DIR}/installed_output/${file})
  list(JOIN ARGN " " words)
  install(CODE "
    file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/installed_output\")
    execute_process(COMMAND \"$<TARGET_FILE:lockstep_program>\" ${words}
                    OUTPUT_FILE \"${output}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
  install(FILES ${output} DESTINATION ${folder} COMPONENT program)
endfunction()
lockstep_install_output(${CMAKE_INSTALL_DATADIR}/bash-completion/completions lockstep completion bash)
lockstep_install_output(${CMAKE_INSTALL_DATADIR}/zsh/site-functions _lockstep completion zsh)
lockstep_install_output(${CMAKE_INSTALL_MANDIR}/man1 lockstep.1 man)

# What LockstepConfig.cmake finds at the machine where it is used.
set(LOCKSTEP_TORCH_DEFAULT ${LOCKSTEP_TORCH_ROOT})
if(LOCKSTEP_PORTABLE)
  set(LOCKSTEP_TORCH_DEFAULT)
endif()
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake
              ${PROJECT_SOURCE_DIR}/cmake/torch-versions
              ${PROJECT_SOURCE_DIR}/cmake/LockstepLibraries.cmake
        DESTINATION ${package_dir} COMPONENT development)
