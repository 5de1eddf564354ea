# isthmus_module(NAME [APART] [DEPS module...] [THIRD_PARTY target...] [SUBDIRS dir...])
#
# One static library per folder. APART: it is not part of libisthmus.so. DEPS is the only list of allowed includes between modules:
# tools/check_layers.py reads it and fails the build's tests when an #include breaks it.
# Sources are every *.cc, headers every *.h, of the folder and of its SUBDIRS.
add_library(isthmus_warnings INTERFACE)
target_compile_options(isthmus_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast
  -Woverloaded-virtual -Wnon-virtual-dtor -Wcast-align -Wnull-dereference -Wformat=2
  -Wimplicit-fallthrough -Wunused-result -Wextra-semi
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond -Wlogical-op -Wsuggest-override>)
if(ISTHMUS_WERROR)
  # gcc 12 at -O3 sees null pointers, overlaps and unset values behind std::optional, std::vector
  # and std::string that cannot be: warnings only.
  target_compile_options(isthmus_warnings INTERFACE -Werror -Wno-error=null-dereference
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=restrict -Wno-error=maybe-uninitialized>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=stringop-overflow -Wno-error=array-bounds>)
endif()

set_property(GLOBAL PROPERTY ISTHMUS_MODULES "")

function(isthmus_module name)
  cmake_parse_arguments(ARG "APART" "" "DEPS;THIRD_PARTY;SUBDIRS" ${ARGN})
  set(sources "")
  set(headers "")
  foreach(dir "" ${ARG_SUBDIRS})
    set(where "${CMAKE_CURRENT_SOURCE_DIR}/${dir}")
    file(GLOB more CONFIGURE_DEPENDS "${where}/*.cc")
    list(APPEND sources ${more})
    file(GLOB more CONFIGURE_DEPENDS "${where}/*.h")
    list(APPEND headers ${more})
  endforeach()
  if(sources)
    add_library(isthmus_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(isthmus_${name} PRIVATE isthmus_warnings)
  else()
    add_library(isthmus_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_sources(isthmus_${name} ${scope} FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                                           FILES ${headers})
  target_include_directories(isthmus_${name} ${scope} "${PROJECT_SOURCE_DIR}"
                                                      "${PROJECT_BINARY_DIR}/generated")
  set_target_properties(isthmus_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(isthmus_${name} ${scope} isthmus_${dep})
  endforeach()
  target_link_libraries(isthmus_${name} ${scope} ${ARG_THIRD_PARTY})
  if(NOT ARG_APART)
    set_property(GLOBAL APPEND PROPERTY ISTHMUS_MODULES isthmus_${name})
  endif()
endfunction()

# Sets RESULT to whether a test is one of those that run several threads, and fails when it starts
# threads and is not.
function(isthmus_is_threaded result source threaded)
  get_filename_component(stem ${source} NAME_WE)
  if(threaded STREQUAL "ALL" OR stem IN_LIST threaded)
    set(${result} TRUE PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${source} starts REGEX "std::j?thread[ ({>]" LIMIT_COUNT 1)
  if(starts)
    message(FATAL_ERROR "${source} starts threads: add ${stem} to THREADED in tests/CMakeLists.txt, "
                        "so that the thread sanitizer sees it")
  endif()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# isthmus_tests(FOLDER LABEL label DEPS module... [TIMEOUT seconds] [THREADED stem... | ALL])
#
# Every tests/FOLDER/*_test.cc becomes one program and one CTest entry (GoogleTest). Exit code 77
# counts as skipped; sanitizers get four times the time. THREADED names those that run several
# threads: the thread sanitizer's build has no others.
function(isthmus_tests folder)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "DEPS;THREADED" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(ISTHMUS_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cc")
  foreach(source ${tests})
    get_filename_component(stem ${source} NAME_WE)
    isthmus_is_threaded(threaded ${source} "${ARG_THREADED}")
    if(ISTHMUS_SANITIZE STREQUAL "thread" AND NOT threaded)
      continue()
    endif()
    set(target ${folder}_${stem})
    string(REPLACE "/" "_" target ${target})
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE isthmus_warnings GTest::gtest_main)
    foreach(dep ${ARG_DEPS})
      target_link_libraries(${target} PRIVATE isthmus_${dep})
    endforeach()
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
    add_test(NAME ${folder}/${stem} COMMAND ${target})
    set_tests_properties(${folder}/${stem} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT}
                                                      SKIP_RETURN_CODE 77)
    if(ARG_LABEL STREQUAL "multiprocess")
      # Its ranks poll: beside another test both would run into their time limits.
      set_tests_properties(${folder}/${stem} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()
