# Finds what the trackers write with, libcurl and libpng, and defines lockstep::tracking.
# Also used by the installed package: lockstep::core is static and needs it to link.
#
# Both are linked where something of them is used and only there: a program without
# trackers, the launcher above all, must not pay for loading libcurl and all it needs.
if(NOT TARGET lockstep::tracking)
  find_package(CURL REQUIRED)
  find_package(PNG REQUIRED)
  find_library(LOCKSTEP_CURL_LIBRARY curl)
  find_library(LOCKSTEP_PNG_LIBRARY png)
  mark_as_advanced(LOCKSTEP_CURL_LIBRARY LOCKSTEP_PNG_LIBRARY)
  add_library(lockstep::tracking INTERFACE IMPORTED GLOBAL)
  set_target_properties(lockstep::tracking PROPERTIES
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--as-needed,${LOCKSTEP_CURL_LIBRARY},${LOCKSTEP_PNG_LIBRARY},--pop-state"
    INTERFACE_INCLUDE_DIRECTORIES "${CURL_INCLUDE_DIRS};${PNG_INCLUDE_DIRS}")
endif()
