# The shared library libisthmus.so and the install rules of the Python package.
#
# Component "python" is what the wheel holds, below the package folder `isthmus`:
#   lib/libisthmus.so   the library      _C*.so   the shim      bin/   perf programs, isthmus tool
# Component "runtime" installs the library, its headers and the programs for use without Python.
# A target that this build does not have is passed over.
include(GNUInstallDirs)

set(ISTHMUS_PACKAGE_DIR "isthmus" CACHE STRING "folder of the Python package, below the prefix")

# Links every module of the tree into one library. Symbols are hidden but for ISTHMUS_API ones;
# the version script hides what third parties and templates of the standard library would show.
function(isthmus_shared_library)
  get_property(modules GLOBAL PROPERTY ISTHMUS_MODULES)
  set(objects "")
  set(third_parties "")
  foreach(module ${modules})
    get_target_property(type ${module} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects "$<TARGET_OBJECTS:${module}>")
    endif()
    get_target_property(links ${module} INTERFACE_LINK_LIBRARIES)
    list(FILTER links EXCLUDE REGEX "isthmus_|NOTFOUND")
    list(APPEND third_parties ${links})
  endforeach()
  list(REMOVE_DUPLICATES third_parties)
  # Objects, not archives: modules name each other, and an archive that is named twice would be
  # linked twice as a whole.
  add_library(isthmus SHARED ${objects})
  set_target_properties(isthmus PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(isthmus PRIVATE ${third_parties})
  set(map "${PROJECT_SOURCE_DIR}/cmake/libisthmus.map")
  target_link_options(isthmus PRIVATE "-Wl,--version-script=${map}")
  set_target_properties(isthmus PROPERTIES LINK_DEPENDS "${map}" INSTALL_RPATH "$ORIGIN")
  foreach(module ${modules})
    target_include_directories(isthmus INTERFACE
      "$<TARGET_PROPERTY:${module},INTERFACE_INCLUDE_DIRECTORIES>")
  endforeach()
  install(TARGETS isthmus LIBRARY DESTINATION "${ISTHMUS_PACKAGE_DIR}/lib" COMPONENT python
          EXCLUDE_FROM_ALL)
  install(TARGETS isthmus LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
endfunction()

# Every target of one type in a source folder, and in the folders below it unless DEEP is false.
function(isthmus_targets_of folder type deep out)
  set(found "")
  if(IS_DIRECTORY "${folder}" AND EXISTS "${folder}/CMakeLists.txt")
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
      get_target_property(got ${target} TYPE)
      get_target_property(left_out ${target} ISTHMUS_NO_INSTALL)
      if(got STREQUAL type AND NOT left_out)
        list(APPEND found ${target})
      endif()
    endforeach()
    set(below "")
    if(deep)
      get_property(below DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    endif()
    foreach(next ${below})
      isthmus_targets_of("${next}" ${type} TRUE more)
      list(APPEND found ${more})
    endforeach()
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# Programs of tools/ and of perf/ itself (what lies deeper measures limits and peers), extension
# modules of plugins/. A target that is not for users sets the property ISTHMUS_NO_INSTALL.
function(isthmus_install_targets)
  isthmus_targets_of("${PROJECT_SOURCE_DIR}/tools" EXECUTABLE TRUE programs)
  if(ISTHMUS_PERF)
    isthmus_targets_of("${PROJECT_SOURCE_DIR}/perf" EXECUTABLE FALSE more)
    list(APPEND programs ${more})
  endif()
  foreach(program ${programs})
    set_target_properties(${program} PROPERTIES
      INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS ${program} RUNTIME DESTINATION "${ISTHMUS_PACKAGE_DIR}/bin"
            COMPONENT python EXCLUDE_FROM_ALL)
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
  endforeach()
  isthmus_targets_of("${PROJECT_SOURCE_DIR}/plugins" MODULE_LIBRARY TRUE extensions)
  foreach(extension ${extensions})
    set_target_properties(${extension} PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
    install(TARGETS ${extension} LIBRARY DESTINATION "${ISTHMUS_PACKAGE_DIR}" COMPONENT python
            EXCLUDE_FROM_ALL)
  endforeach()
endfunction()

# Headers of every module, for programs that link libisthmus.so.
function(isthmus_install_headers)
  get_property(modules GLOBAL PROPERTY ISTHMUS_MODULES)
  foreach(module ${modules})
    get_target_property(source_dir ${module} SOURCE_DIR)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${source_dir}")
    install(DIRECTORY "${source_dir}/" COMPONENT runtime
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/isthmus/${folder}"
            FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
  endforeach()
endfunction()

function(isthmus_package)
  isthmus_shared_library()
  isthmus_install_targets()
  isthmus_install_headers()
endfunction()
