# Finds the libraries that lockstep::core links, and defines lockstep::libraries. An installation whose lockstep::core is
# static uses this file too, because its users link the libraries. One error names all that are missing.
#
# With --as-needed, a program links only the libraries that it uses.
#
# LOCKSTEP_PORTABLE: takes static libraries, so that programs run where the shared ones are not installed. Debian's static
# libturbojpeg, libpng and libbz2 cannot become parts of a shared library: the shared ones, and libz which libpng needs, are
# installed beside lockstep_core (LockstepInstall.cmake).
#
# libcurl is not linked: src/track/http_client.cpp loads it when a program uses a server of MLflow.

function(lockstep_find_libraries)
  # Library, one of its headers, Debian package. A static library comes before those it needs.
  set(rows
    "sodium|sodium.h|libsodium-dev"
    "uring|liburing.h|liburing-dev"
    "archive|archive.h|libarchive-dev"
    "turbojpeg|turbojpeg.h|libturbojpeg0-dev"
    "png|png.h|libpng-dev"
    "z|zlib.h|zlib1g-dev")
  if(LOCKSTEP_PORTABLE)
    # libarchive's filters.
    list(APPEND rows "bz2|bzlib.h|libbz2-dev" "lzma|lzma.h|liblzma-dev" "zstd|zstd.h|libzstd-dev")
  else()
    list(PREPEND rows "fmt|fmt/format.h|libfmt-dev")
  endif()

  set(libraries)
  set(include_dirs)
  set(missing)
  foreach(row IN LISTS rows)
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 header)
    list(GET row 2 package)
    set(library LOCKSTEP_${name}_LIBRARY)
    set(include_dir LOCKSTEP_${name}_INCLUDE_DIR)
    if(LOCKSTEP_PORTABLE AND NOT name MATCHES "^(turbojpeg|png|bz2|z)$")
      find_library(${library} NAMES lib${name}.a)
    elseif(name STREQUAL "uring")
      # The static library is small, and machines that only run a program do not need to install it.
      find_library(${library} NAMES lib${name}.a ${name})
    else()
      find_library(${library} NAMES ${name})
    endif()
    find_path(${include_dir} ${header})
    mark_as_advanced(${library} ${include_dir})
    if(NOT ${library} OR NOT ${include_dir})
      list(APPEND missing ${package})
    else()
      list(APPEND libraries ${${library}})
      list(APPEND include_dirs ${${include_dir}})
    endif()
  endforeach()
  if(missing)
    list(JOIN missing " " missing)
    message(FATAL_ERROR "Lockstep needs libraries that were not found. Install Debian's packages, or the same of another "
      "system, or run script/setup in a checkout: apt-get install ${missing}")
  endif()

  list(REMOVE_DUPLICATES include_dirs)
  list(JOIN libraries "," libraries)
  set(libraries "-Wl,--push-state,--as-needed,${libraries},--pop-state")
  add_library(lockstep::libraries INTERFACE IMPORTED GLOBAL)
  set_target_properties(lockstep::libraries PROPERTIES
    INTERFACE_LINK_LIBRARIES "${libraries}"
    INTERFACE_INCLUDE_DIRECTORIES "${include_dirs}")
endfunction()

if(NOT TARGET lockstep::libraries)
  lockstep_find_libraries()
endif()
