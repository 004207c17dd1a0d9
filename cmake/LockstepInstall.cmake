# cmake --install exports find_package(Lockstep) with the targets lockstep::lockstep
# and lockstep::core: see tests/consumer.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)

install(TARGETS lockstep_core lockstep_fmt lockstep EXPORT LockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})

# The programs, and the plugins that this build has.
foreach(target lockstep_program lockstep_tensor_program lockstep_mpi lockstep_cuda)
  if(TARGET ${target})
    install(TARGETS ${target}
            RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders of the source tree, and .deps is one.
foreach(target lockstep_tensor_program lockstep_mpi lockstep_cuda)
  if(TARGET ${target})
    set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH ${LOCKSTEP_TORCH_ROOT}/lib)
  endif()
endforeach()

# Installs what the program prints: shell completion and the manual page.
function(lockstep_install_output folder file)
  set(output ${PROJECT_BINARY_DIR}/installed_output/${file})
  list(JOIN ARGN " " words)
  install(CODE "
    file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/installed_output\")
    execute_process(COMMAND \"$<TARGET_FILE:lockstep_program>\" ${words}
                    OUTPUT_FILE \"${output}\" COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${output} DESTINATION ${folder})
endfunction()
lockstep_install_output(${CMAKE_INSTALL_DATADIR}/bash-completion/completions lockstep completion bash)
lockstep_install_output(${CMAKE_INSTALL_DATADIR}/zsh/site-functions _lockstep completion zsh)
lockstep_install_output(${CMAKE_INSTALL_MANDIR}/man1 lockstep.1 man)

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake
              ${PROJECT_SOURCE_DIR}/cmake/torch-versions
              ${PROJECT_SOURCE_DIR}/cmake/LockstepSodium.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepUring.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepTracking.cmake
              ${PROJECT_SOURCE_DIR}/cmake/LockstepImages.cmake
        DESTINATION ${package_dir})
