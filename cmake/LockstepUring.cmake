# Finds liburing and defines lockstep::uring. The installed package uses this file too, because lockstep::core is static
# and needs the library to link.
#
# The static library is preferred: it is small, and machines that only run a program do not need to install it.
if(NOT TARGET lockstep::uring)
  find_path(LOCKSTEP_URING_INCLUDE_DIR liburing.h)
  find_library(LOCKSTEP_URING_LIBRARY NAMES liburing.a uring)
  mark_as_advanced(LOCKSTEP_URING_INCLUDE_DIR LOCKSTEP_URING_LIBRARY)
  if(NOT LOCKSTEP_URING_LIBRARY OR NOT LOCKSTEP_URING_INCLUDE_DIR)
    message(FATAL_ERROR "liburing not found. Run script/setup, or install liburing-dev.")
  endif()
  add_library(lockstep::uring UNKNOWN IMPORTED GLOBAL)
  set_target_properties(lockstep::uring PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_URING_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_URING_INCLUDE_DIR})
endif()
