# Finds libsodium, which has no CMake package, and defines lockstep::sodium. The installed package uses this file too,
# because lockstep::core is static and needs the library to link.
if(NOT TARGET lockstep::sodium)
  find_path(LOCKSTEP_SODIUM_INCLUDE_DIR sodium.h)
  find_library(LOCKSTEP_SODIUM_LIBRARY sodium)
  mark_as_advanced(LOCKSTEP_SODIUM_INCLUDE_DIR LOCKSTEP_SODIUM_LIBRARY)
  if(NOT LOCKSTEP_SODIUM_LIBRARY OR NOT LOCKSTEP_SODIUM_INCLUDE_DIR)
    message(FATAL_ERROR "libsodium not found. Run script/setup, or install libsodium-dev.")
  endif()
  add_library(lockstep::sodium UNKNOWN IMPORTED GLOBAL)
  set_target_properties(lockstep::sodium PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_SODIUM_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_SODIUM_INCLUDE_DIR})
endif()
