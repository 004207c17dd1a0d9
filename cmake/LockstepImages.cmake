# Finds the libraries that read image sets, and defines lockstep::images: zlib (MNIST's files), libarchive (CIFAR's
# archives), libjpeg-turbo and libpng. The installed package uses this file too, because lockstep::core is static
# and needs the libraries to link.
#
# With --as-needed, a program links only the libraries that it uses, so the launcher does not load them.
if(NOT TARGET lockstep::images)
  set(libraries)
  set(include_dirs)
  # name: of the library. header: one of its headers. package: the Debian package.
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
