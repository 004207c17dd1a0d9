# Finds the libraries of the trackers, libcurl and libpng, and defines lockstep::tracking. The installed package uses
# this file too, because lockstep::core is static and needs the libraries to link.
#
# With --as-needed, a program links them only if it uses them: a program without trackers, such as the launcher, does
# not load libcurl and its dependencies.
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
