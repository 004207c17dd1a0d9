# Finds what image sets are read with, and defines lockstep::images: zlib (MNIST's files),
# libarchive (CIFAR's archives), libjpeg-turbo and libpng.
# Also used by the installed package: lockstep::core is static and needs it to link.
#
# Linked where something of them is used and only there: the launcher must not pay for
# loading them.
if(NOT TARGET lockstep::images)
  set(libraries)
  set(include_dirs)
  # Name of the library, a header of it, the Debian package.
  function(lockstep_find_image_library name header package)
    find_library(LOCKSTEP_${name}_LIBRARY ${name})
    find_path(LOCKSTEP_${name}_INCLUDE_DIR ${header})
    mark_as_advanced(LOCKSTEP_${name}_LIBRARY LOCKSTEP_${name}_INCLUDE_DIR)
    if(NOT LOCKSTEP_${name}_LIBRARY OR NOT LOCKSTEP_${name}_INCLUDE_DIR)
      message(FATAL_ERROR "${header} or its library not found. Run script/setup, or install ${package}.")
    endif()
    set(libraries ${libraries} ${LOCKSTEP_${name}_LIBRARY} PARENT_SCOPE)
    set(include_dirs ${include_dirs} ${LOCKSTEP_${name}_INCLUDE_DIR} PARENT_SCOPE)
  endfunction()
  lockstep_find_image_library(z zlib.h zlib1g-dev)
  lockstep_find_image_library(archive archive.h libarchive-dev)
  lockstep_find_image_library(turbojpeg turbojpeg.h libturbojpeg0-dev)
  lockstep_find_image_library(png png.h libpng-dev)

  list(REMOVE_DUPLICATES include_dirs)
  list(JOIN libraries "," libraries)
  add_library(lockstep::images INTERFACE IMPORTED GLOBAL)
  set_target_properties(lockstep::images PROPERTIES
    INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--as-needed,${libraries},--pop-state"
    INTERFACE_INCLUDE_DIRECTORIES "${include_dirs}")
endif()
